"""Which architectures the generic decoder runs."""

from __future__ import annotations

from typing import Final

from triolet.errors import ConfigError
from triolet.models.families import FAMILIES, Family

_BY_ARCHITECTURE: Final[dict[str, Family]] = {
    architecture: family for family in FAMILIES for architecture in family.architectures
}


def supported() -> tuple[str, ...]:
    """Architectures of the generic decoder, as config.json names them, sorted."""
    return tuple(sorted(_BY_ARCHITECTURE))


def find(architecture: str) -> Family | None:
    """The family of an architecture, or None."""
    return _BY_ARCHITECTURE.get(architecture)


def need(architecture: str) -> Family:
    """The family of an architecture.

    Raises:
        ConfigError: The generic decoder does not run it; supported ones are listed.
    """
    family = find(architecture)
    if family is None:
        raise ConfigError(
            f"triolet's own decoder does not run {architecture}; it runs "
            f"{', '.join(supported())}. Most others run with model_implementation='transformers'",
            param="model",
        )
    return family
