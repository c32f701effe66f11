"""Deltas of outputs for tests of answers: texts cut anywhere, fed to an answer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from support.chat_models import hermes
from triolet.output import OutputDelta, Usage
from triolet.protocol.answer import AcceptedPrompt, Answer
from triolet.protocol.output_reader import Reading
from triolet.protocol.parsers.formats import FORMATS
from triolet.protocol.parsers.output_parser import ParserSettings, ReasoningMarks
from triolet.request import FinishReason

THINK = ReasoningMarks("<think>", "</think>")
READING = Reading(
    parser=ParserSettings(reasoning=THINK, calls=FORMATS["hermes"], tools={"f": {}, "g": {}})
)

FRAGMENTS = st.sampled_from(
    ["<think>", "hm\n", "</think>", "\n\n", "Hi ", "é<", hermes("f", a="x"), hermes("g"), "<tool_"]
)
TEXTS = st.lists(FRAGMENTS, max_size=7).map("".join)


def cut(
    text: str, cuts: Iterable[int], reason: FinishReason, stop: str | None
) -> list[OutputDelta]:
    """Deltas of a text; a token is a character."""
    bounds = sorted({0, len(text), *cuts})
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)] or [""]
    deltas = [OutputDelta(0, piece, tuple(map(ord, piece))) for piece in pieces]
    last = deltas[-1]
    deltas[-1] = OutputDelta(0, last.text, last.token_ids, None, reason, stop)
    return deltas


@st.composite
def outputs(draw: st.DrawFn) -> list[OutputDelta]:
    """One whole output in any pieces."""
    text = draw(TEXTS)
    reason = draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.TIMEOUT]))
    stop = draw(st.sampled_from([None, "END"])) if reason is FinishReason.STOP else None
    return cut(text, draw(st.sets(st.integers(0, len(text)), max_size=8)), reason, stop)


def answered(answer: Answer, deltas: Iterable[OutputDelta], usage: Usage) -> str:
    """Everything an answer writes."""
    out = [answer.start(0, AcceptedPrompt(tuple(range(usage.prompt_tokens))))]
    out += [answer.put(0, delta) for delta in deltas]
    out.append(answer.finish([usage]))
    return b"".join(out).decode()


def named_events(stream: str) -> list[dict[str, Any]]:
    """Events of a stream whose events have names; each name is its type."""
    out: list[dict[str, Any]] = []
    for event in stream.removesuffix("\n\n").split("\n\n"):
        if event.startswith(":"):
            continue
        name, _, data = event.partition("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        out.append(value)
    return out
