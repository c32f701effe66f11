"""Frames between an engine and its worker process: a length, then MessagePack; no pickle.

A frame is a 4-byte little-endian length and a MessagePack array [kind, payload]. Payloads are
the frozen classes of `messages/`, encoded and decoded by msgspec with their declared types,
so that whatever does not fit them is refused instead of believed.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import attrs
import msgspec

from triolet.errors import ConfigError
from triolet.messages.runner_to_scheduler import BatchResult, RunnerInfo
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.runner.worker import WorkerSpec

FRAME_BYTES_MAX = 256 << 20
"""Larger than any batch that fits a context; a length beyond it is garbage."""

_LENGTH = struct.Struct("<I")


@attrs.frozen
class Setup:
    """First frame to a worker: what to build."""

    spec: WorkerSpec
    num_blocks: int | None


@attrs.frozen
class End:
    """Last frame to a worker."""


@attrs.frozen
class LoadProgress:
    """What the loading does now."""

    text: str


@attrs.frozen
class Failure:
    """The backend raised. `config_param` is set if it was a ConfigError."""

    message: str
    is_config_error: bool
    config_param: str | None


Frame = Setup | ScheduledBatch | End | LoadProgress | RunnerInfo | BatchResult | Failure

KINDS: dict[str, type[Frame]] = {
    "setup": Setup,
    "batch": ScheduledBatch,
    "end": End,
    "progress": LoadProgress,
    "info": RunnerInfo,
    "result": BatchResult,
    "failure": Failure,
}
_NAMES = {cls: kind for kind, cls in KINDS.items()}


class GarbledFrame(Exception):
    """What was received is no frame of ours."""


def _encode_foreign(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value)} does not travel")


def _decode_foreign(wanted: type[Any], value: object) -> object:
    if wanted is Path and isinstance(value, str):
        return Path(value)
    raise TypeError(f"{wanted} does not travel")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_foreign)
_outer = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_decoders: dict[str, msgspec.msgpack.Decoder[Frame]] = {
    kind: msgspec.msgpack.Decoder(cls, dec_hook=_decode_foreign) for kind, cls in KINDS.items()
}


def encode(frame: Frame) -> bytes:
    """One frame, ready to send."""
    body = _encoder.encode((_NAMES[type(frame)], frame))
    return _LENGTH.pack(len(body)) + body


def failure_of(error: Exception) -> Failure:
    """What to tell of an exception; the traceback stays in the worker's log."""
    config_error = isinstance(error, ConfigError)
    message = str(error) if config_error else f"{type(error).__name__}: {error}"
    return Failure(message, config_error, error.param if isinstance(error, ConfigError) else None)


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what was received."""
        self._buffer += data

    def next(self) -> Frame | None:
        """The next whole frame, or None.

        Raises:
            GarbledFrame: The stream makes no sense; nothing after it can be trusted.
        """
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > FRAME_BYTES_MAX:
            raise GarbledFrame(f"a frame of {length} bytes")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        try:
            kind, payload = _outer.decode(body)
            return _decoders[kind].decode(payload)
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            raise GarbledFrame(str(error)) from error
