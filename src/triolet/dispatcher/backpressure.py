"""What becomes of output that a slow consumer has not taken yet: it is merged, never waited for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TypeVar

from triolet.errors import InternalError
from triolet.output import OutputDelta
from triolet.sampling_params import OutputKind

T = TypeVar("T")

TOKEN_BYTES = 8
LOGPROB_BYTES = 48
DELTA_BYTES = 64
"""Rough sizes in memory of a token id, of one reported log-probability and of a delta."""


def merge(
    earlier: OutputDelta, later: OutputDelta, kind: OutputKind = OutputKind.DELTA
) -> OutputDelta:
    """One delta that says what both say in order.

    Args:
        earlier: A piece of an output that was not taken yet.
        later: The next piece of the same output.
        kind: What the pieces carry; the later one of two cumulative ones says it all.

    Raises:
        InternalError: They belong to different outputs, or the earlier one was the last.
    """
    return merge_all((earlier, later), kind)


def merge_all(deltas: Sequence[OutputDelta], kind: OutputKind = OutputKind.DELTA) -> OutputDelta:
    """`merge` of any number of deltas, at least one, in time linear in their size."""
    last = deltas[-1]
    for delta in deltas[:-1]:
        if delta.index != last.index or delta.finish_reason is not None:
            raise InternalError(
                f"cannot merge a delta of output {delta.index} "
                f"(finish_reason {delta.finish_reason}) with one of output {last.index}"
            )
    if len(deltas) == 1 or kind is not OutputKind.DELTA:
        return last
    return OutputDelta(
        index=last.index,
        text="".join([delta.text for delta in deltas]),
        token_ids=tuple(itertools.chain.from_iterable(delta.token_ids for delta in deltas)),
        logprobs=_concatenate(delta.logprobs for delta in deltas),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        token_texts=_concatenate(delta.token_texts for delta in deltas),
    )


def num_bytes(delta: OutputDelta) -> int:
    """Estimate of the memory a waiting delta takes, in bytes."""
    size = DELTA_BYTES + len(delta.text.encode()) + TOKEN_BYTES * len(delta.token_ids)
    if delta.logprobs is not None:
        size += LOGPROB_BYTES * sum(1 + len(entry.top) for entry in delta.logprobs)
    if delta.token_texts is not None:
        size += sum(len(text.encode()) for text in delta.token_texts)
    return size


class DeltaBuffer:
    """The outputs of one request that wait for its consumer, one merged slot per output.

    Args:
        kind: What the deltas carry.

    Attributes:
        num_bytes: Estimated size of what waits, for a bound on it.
    """

    def __init__(self, kind: OutputKind = OutputKind.DELTA) -> None:
        self._kind = kind
        self._waiting: dict[int, list[OutputDelta]] = {}
        self.num_bytes = 0

    def __len__(self) -> int:
        """Outputs that have something waiting."""
        return len(self._waiting)

    def put(self, delta: OutputDelta) -> None:
        """Add a piece. Amortised constant time however much waits."""
        slot = self._waiting.setdefault(delta.index, [])
        if slot and self._kind is not OutputKind.DELTA:
            self.num_bytes -= num_bytes(slot.pop())
        slot.append(delta)
        self.num_bytes += num_bytes(delta)

    def take_nowait(self) -> OutputDelta | None:
        """The merged pieces of the output that has waited longest, None if nothing waits."""
        if not self._waiting:
            return None
        index = next(iter(self._waiting))
        slot = self._waiting.pop(index)
        self.num_bytes -= sum(map(num_bytes, slot))
        return merge_all(slot, self._kind)


def _concatenate(parts: Iterable[tuple[T, ...] | None]) -> tuple[T, ...] | None:
    present = [part for part in parts if part is not None]
    return tuple(itertools.chain.from_iterable(present)) if present else None
