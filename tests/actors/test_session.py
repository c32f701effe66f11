"""Streaming input: each piece is answered in the context of everything before it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from triolet.engine.client import Prompt
from triolet.errors import InvalidRequest
from triolet.request import FinishReason
from triolet.sampling_params import OutputKind, SamplingParams
from triolet.testing.engines import open_fake_engine
from triolet.testing.fake_runner import expected_tokens

GREEDY = SamplingParams(temperature=0.0, max_tokens=5)


class Pieces:
    """Input that arrives when the test says so."""

    def __init__(self, pieces: list[Prompt], delay: float = 0.0) -> None:
        self._pieces = list(pieces)
        self._delay = delay
        self.taken = 0

    def __aiter__(self) -> AsyncIterator[Prompt]:
        return self

    async def __anext__(self) -> Prompt:
        await trio.sleep(self._delay)
        if self.taken == len(self._pieces):
            raise StopAsyncIteration
        self.taken += 1
        return self._pieces[self.taken - 1]


async def test_each_piece_is_answered_in_the_context_so_far(autojump_clock: MockClock) -> None:
    pieces: list[Prompt] = [[40] * 30, [50] * 7, [60]]
    async with open_fake_engine() as house:
        async with house.engine.session(Pieces(pieces), GREEDY) as session:
            answers: list[list[int]] = [[]]
            async for delta in session:
                answers[-1] += delta.token_ids
                if delta.finish_reason is not None:
                    assert delta.finish_reason is FinishReason.LENGTH
                    answers.append([])
        assert house.engine.statistics().requests_live == 0
    context: list[int] = []
    for piece, answer in zip(pieces, answers, strict=False):
        context += piece  # type: ignore[arg-type] # token ids here
        assert answer == expected_tokens(context, 5)
        context += answer
    assert list(session.context) == context


async def test_a_waiting_session_holds_nothing(autojump_clock: MockClock) -> None:
    async with open_fake_engine() as house:
        async with house.engine.session(Pieces([[40] * 30, [50]], delay=50.0), GREEDY) as session:
            while (await session.__anext__()).finish_reason is None:
                pass
            with trio.move_on_after(25.0):
                await session.__anext__()
            await wait_all_tasks_blocked()
            assert house.engine.statistics().blocks_used == 0
            assert house.engine.statistics().requests_live == 0


async def test_leaving_in_the_middle_ends_the_open_request(autojump_clock: MockClock) -> None:
    async with open_fake_engine() as house:
        async with house.engine.session(Pieces([[40] * 30]), GREEDY) as session:
            await session.__anext__()
        await wait_all_tasks_blocked()
        assert house.engine.statistics().blocks_used == 0
        assert house.engine.statistics().requests_live == 0


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(n=2),
        SamplingParams(stop="x"),
        SamplingParams(output_kind=OutputKind.FINAL_ONLY),
        SamplingParams(beam_width=2),
        SamplingParams(prompt_logprobs=1),
    ],
)
async def test_what_makes_no_sense_is_refused(
    sampling: SamplingParams, autojump_clock: MockClock
) -> None:
    async with open_fake_engine() as house:
        with pytest.raises(InvalidRequest, match="session"):
            house.engine.session(Pieces([]), sampling)
