"""Prove one grammar in a process of its own: `python -m triolet.grammar.check`.

The parent writes one question as JSON to standard input, closes it, and reads one answer; past
its deadline it kills the process. What a native compiler does with a stranger's grammar (time,
memory, a crash) stays in here. No pickle: both sides are JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, cast

import attrs

from triolet.errors import InvalidRequest
from triolet.grammar.compile import check_grammar, field_name
from triolet.sampling_params import StructuredOutputs

COMMAND = (sys.executable, "-m", "triolet.grammar.check")
"""What the parent runs."""

MEMORY_BYTES_MAX = 2 << 30
CPU_SECONDS_MAX = 60
"""The process ends by itself should its parent die while it works."""


def encode_question(structured: StructuredOutputs) -> bytes:
    """What the parent writes."""
    return json.dumps(attrs.asdict(structured)).encode()


def decode_question(data: bytes) -> StructuredOutputs:
    """What the helper reads.

    Raises:
        InvalidRequest: The fields contradict each other.
    """
    fields = cast("dict[str, Any]", json.loads(data))
    if fields["choice"] is not None:
        fields["choice"] = tuple(fields["choice"])
    return StructuredOutputs(**fields)


def answer(question: bytes) -> bytes:
    """The answer to a question: warnings, or the fault."""
    try:
        reply: Mapping[str, object] = {"warnings": check_grammar(decode_question(question))}
    except InvalidRequest as error:
        reply = {"error": error.message, "param": error.param}
    return json.dumps(reply).encode()


def decode_answer(data: bytes) -> tuple[str, ...]:
    """What the parent reads.

    Returns:
        Warnings.

    Raises:
        InvalidRequest: The grammar was refused.
        ValueError: This is no answer: the helper died.
    """
    reply = cast("dict[str, Any]", json.loads(data))
    if "error" in reply:
        raise InvalidRequest(reply["error"], param=reply["param"])
    return tuple(reply["warnings"])


def no_answer(structured: StructuredOutputs, deadline_s: float) -> InvalidRequest:
    """The error for a helper that was killed at its deadline, or died."""
    param = field_name(structured)
    return InvalidRequest(
        f"{param} could not be compiled within {deadline_s:g} s and {MEMORY_BYTES_MAX >> 20} MiB;"
        " simplify it",
        param=param,
    )


def _limit_resources() -> None:
    """Bound memory and CPU time of this process, where the system can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))


def main() -> None:
    """Answer the one question on standard input."""
    _limit_resources()
    sys.stdout.buffer.write(answer(sys.stdin.buffer.read()))


if __name__ == "__main__":
    main()
