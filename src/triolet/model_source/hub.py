"""A model of the Hugging Face hub -> the directory of its snapshot in the hub's own cache."""

from __future__ import annotations

import re
from pathlib import Path

from triolet.model_source.helper import run_helper
from triolet.model_source.progress import Progress

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_id(model: str) -> bool:
    """Whether a name has the form of a hub id: "owner/name", or an old one without owner."""
    return HUB_ID.fullmatch(model) is not None and ".." not in model and "--" not in model


def snapshot_directory(model: str, revision: str | None, progress: Progress) -> Path:
    """The local snapshot of a hub model; downloads what is missing.

    A process of its own downloads, because a download cannot be stopped between two bytes.
    HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE mean what they mean to huggingface_hub.

    Raises:
        ConfigError: There is no such model, no access to it, or no network and no copy.
    """
    result = run_helper(
        "triolet.model_source.download",
        {"repo_id": model, "revision": revision},
        lambda text: progress(f"fetching {model}: {text}"),
    )
    return Path(result["directory"])
