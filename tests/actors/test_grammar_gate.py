"""Grammars are proved in a process that dies when it must."""

from __future__ import annotations

import pytest
import trio

from triolet.engine.grammar_gate import GrammarGate, answer_in_process
from triolet.errors import InvalidRequest
from triolet.sampling_params import StructuredOutputs


@pytest.mark.slow
async def test_good_and_bad_grammars_are_told_apart_in_a_process() -> None:
    gate = GrammarGate(answer_in_process, timeout_s=30.0)
    await gate.prove(StructuredOutputs(json_schema='{"type": "integer"}'))
    with pytest.raises(InvalidRequest) as caught:
        await gate.prove(StructuredOutputs(regex="((("))
    assert caught.value.param is not None
    assert "regex" in caught.value.param


async def test_what_was_proved_is_remembered_and_what_timed_out_is_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked: list[bytes] = []
    slow = [True]

    async def answer(question: bytes) -> bytes:
        asked.append(question)
        if slow[0]:
            await trio.sleep_forever()
        return b'{"warnings": []}'

    gate = GrammarGate(answer, timeout_s=3.0)
    structured = StructuredOutputs(regex="a+")
    with pytest.raises(InvalidRequest, match="3 s"):
        await gate.prove(structured)
    slow[0] = False
    await gate.prove(structured)
    await gate.prove(structured)
    assert len(asked) == 2


async def test_a_helper_that_died_refuses_its_request_only() -> None:
    async def answer(question: bytes) -> bytes:
        return b""

    with pytest.raises(InvalidRequest, match="simplify"):
        await GrammarGate(answer, timeout_s=3.0).prove(StructuredOutputs(regex="a+"))
