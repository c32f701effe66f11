"""Dispatcher to stream, through `triolet.output.Sink`. Bound: one merged slot per output.

The methods of `Sink` are the commands; these are the values they leave in a stream's slot.
"""

from __future__ import annotations

import attrs

from triolet.output import OutputDelta, Usage


@attrs.frozen
class Delta:
    """More of one output; deltas that were not taken yet are merged."""

    delta: OutputDelta


@attrs.frozen
class Finished:
    """Every output has ended."""

    usage: Usage


@attrs.frozen
class Failed:
    """The request failed."""

    error: Exception
