"""`python -m triolet.model_source.download`: fetch a model from the Hugging Face hub.

Runs in a process of its own (see `helper`).
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, cast

from tqdm import tqdm

from triolet.errors import ConfigError
from triolet.model_source.helper import Report, helper_main

WANTED = ("*.json", "*.safetensors", "*.jinja")
"""Configuration, tokenizer and weights: no pickle, no code."""
UNWANTED = ("consolidated*", "original/*", "onnx/*", "openvino/*", "*/*.safetensors")
"""The same weights once more, in other layouts."""
REPORT_INTERVAL_S = 0.5


def download(request: Mapping[str, Any], report: Report) -> Mapping[str, Any]:
    """Fetch the files of `repo_id` at `revision`; their directory is the result.

    Raises:
        ConfigError: The hub has no such model or revision, does not give it, or is not there.
    """
    import huggingface_hub
    from huggingface_hub import errors

    repo_id, revision = request["repo_id"], request["revision"]
    at = f" at revision {revision!r}" if revision else ""
    try:
        directory = huggingface_hub.snapshot_download(
            repo_id,
            revision=revision,
            allow_patterns=list(WANTED),
            ignore_patterns=list(UNWANTED),
            tqdm_class=bar_class(report),
        )
    except errors.GatedRepoError as error:
        raise ConfigError(
            f"{repo_id} is gated: accept its terms on the hub, then set HF_TOKEN", param="model"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ConfigError(f"{repo_id} has no revision {revision!r}", param="revision") from error
    except errors.RepositoryNotFoundError as error:
        raise ConfigError(
            f"there is no file, directory or hub model {repo_id!r}; a private one needs HF_TOKEN",
            param="model",
        ) from error
    except errors.LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE is set" if huggingface_hub.constants.HF_HUB_OFFLINE else "no network"
        raise ConfigError(
            f"{repo_id!r}{at} is neither a file nor a directory here nor in the hub's cache, and "
            f"the hub cannot be asked ({why}); fetch it first, or name a directory",
            param="model",
        ) from error
    except (errors.HfHubHTTPError, OSError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConfigError(f"cannot fetch {repo_id}{at}: {reason}", param="model") from error
    return {"directory": directory}


def bar_class(report: Report) -> type[Any]:
    """A tqdm that reports bytes (the hub's bar of all files) instead of drawing."""

    class ReportingBar(tqdm):  # type: ignore[misc]  # tqdm has no types
        def __init__(self, *args: object, **options: object) -> None:
            # Without a terminal a bar would switch itself off.
            options |= {"disable": False, "file": io.StringIO(), "mininterval": REPORT_INTERVAL_S}
            super().__init__(*cast("tuple[Any]", args), **cast("dict[str, Any]", options))

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            if shown and self.total and self.unit == "B":
                percent = int(100 * self.n / self.total)
                report(f"{self.n / 1e6:.0f} of {self.total / 1e6:.0f} MB {percent}%")
            return shown

    return ReportingBar


if __name__ == "__main__":
    helper_main(download)
