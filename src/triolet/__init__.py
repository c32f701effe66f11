"""triolet: an LLM serving engine built as a tree of trio actors.

General layout, in the order one request meets it:

    server -> protocol -> engine -> tracker -> scheduler -> runner -> models
    -> triolet_kernels, and back: runner -> scheduler -> dispatcher -> engine -> server

`messages` names every channel between two actors; `actor` says what an actor is.
Names are loaded on first use, so importing a pure module never imports trio or torch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triolet.config import EngineConfig as EngineConfig
    from triolet.engine.engine import Engine as Engine
    from triolet.engine.open_engine import open_engine as open_engine
    from triolet.engine.portal import LLM as LLM
    from triolet.errors import (
        ConfigError as ConfigError,
        DeadlineExceeded as DeadlineExceeded,
        EngineDead as EngineDead,
        InvalidRequest as InvalidRequest,
        NotServing as NotServing,
        QueueFull as QueueFull,
        Rejected as Rejected,
        RequestCancelled as RequestCancelled,
        RequestFailed as RequestFailed,
        TrioletError as TrioletError,
    )
    from triolet.request import FinishReason as FinishReason, Timeouts as Timeouts
    from triolet.sampling_params import (
        SamplingParams as SamplingParams,
        StructuredOutputs as StructuredOutputs,
    )

__version__: str

_EXPORTS = {
    "ConfigError": "triolet.errors",
    "DeadlineExceeded": "triolet.errors",
    "EngineDead": "triolet.errors",
    "InvalidRequest": "triolet.errors",
    "NotServing": "triolet.errors",
    "QueueFull": "triolet.errors",
    "Rejected": "triolet.errors",
    "RequestCancelled": "triolet.errors",
    "RequestFailed": "triolet.errors",
    "TrioletError": "triolet.errors",
    "LLM": "triolet.engine.portal",
    "Engine": "triolet.engine.engine",
    "EngineConfig": "triolet.config",
    "FinishReason": "triolet.request",
    "SamplingParams": "triolet.sampling_params",
    "StructuredOutputs": "triolet.sampling_params",
    "Timeouts": "triolet.request",
    "open_engine": "triolet.engine.open_engine",
}
__all__ = [
    "LLM",
    "ConfigError",
    "DeadlineExceeded",
    "Engine",
    "EngineConfig",
    "EngineDead",
    "FinishReason",
    "InvalidRequest",
    "NotServing",
    "QueueFull",
    "Rejected",
    "RequestCancelled",
    "RequestFailed",
    "SamplingParams",
    "StructuredOutputs",
    "Timeouts",
    "TrioletError",
    "open_engine",
]


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    if name == "__version__":
        return importlib.metadata.version("triolet")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
