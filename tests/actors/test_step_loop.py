"""The step loop takes everything in its inbox, then the end marks, then decides."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import attrs
from pytest_trio import trio_fixture
from trio import open_nursery
from trio.testing import wait_all_tasks_blocked

from triolet.actor.channel import Channel
from triolet.actor.end_marks import EndMarks
from triolet.actor.faultpoint import FaultPoints
from triolet.config import EngineConfig
from triolet.messages.runner_to_scheduler import RunnerReady
from triolet.messages.scheduler_to_dispatcher import StepFacts
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.messages.tracker_to_scheduler import Admit
from triolet.request import GenerationRequest, RequestId
from triolet.sampling_params import SamplingParams
from triolet.scheduler.actor import Message, StepLoop
from triolet.scheduler.scheduler import Scheduler
from triolet.testing.fake_runner import FakeRunner, fake_facts

CONFIG = EngineConfig.of("fake")
FACTS = fake_facts()


def request(name: str) -> GenerationRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=50, seed=0)
    return GenerationRequest(RequestId(name), tuple(range(40, 60)), sampling, 0.0)


@attrs.define
class House:
    inbox: Channel[Message]
    batches: Channel[ScheduledBatch]
    marks: EndMarks
    loop: StepLoop
    runner: FakeRunner

    def live(self) -> list[str]:
        assert self.loop.scheduler is not None
        return [live.request_id for live in self.loop.scheduler.requests()]

    def batch(self) -> ScheduledBatch:
        (batch,) = self.batches.receive_all_nowait()
        self.runner.launch(batch)
        return batch


@trio_fixture  # type: ignore[untyped-decorator]  # pytest-trio has no types
async def house() -> AsyncGenerator[House]:
    inbox = Channel[Message]("scheduler", 32)
    batches, facts = Channel[ScheduledBatch]("runner", 8), Channel[StepFacts]("dispatcher", 32)
    marks = EndMarks(inbox.wake)
    runner = FakeRunner(CONFIG, FACTS)
    info = runner.load(lambda text: None)

    def make_scheduler(ready: RunnerReady) -> Scheduler:
        return Scheduler(
            CONFIG.scheduler,
            CONFIG.cache,
            ready.info,
            eos_token_ids=FACTS.eos_token_ids,
            model_key="fake",
            secret=b"",
        )

    loop = StepLoop(inbox, batches, facts, marks, make_scheduler, FaultPoints(), lambda *step: None)
    async with open_nursery() as nursery:
        nursery.start_soon(loop.run)
        inbox.send_nowait(RunnerReady(1, info))
        inbox.send_nowait(Admit(request("first")))
        await wait_all_tasks_blocked()
        yield House(inbox, batches, marks, loop, runner)
        nursery.cancel_scope.cancel()


async def test_a_mark_outlives_a_result_in_front_of_its_admission(house: House) -> None:
    """Found by the simulation: the result used the mark up, and the request ran for nobody."""
    house.batch()
    house.inbox.send_nowait(house.runner.collect())
    house.inbox.send_nowait(Admit(request("left")))
    house.marks.mark(RequestId("left"))
    await wait_all_tasks_blocked()
    assert house.live() == ["first"]
    assert len(house.batch().scheduled) == 1


async def test_a_mark_ends_a_request_without_any_other_message(house: House) -> None:
    house.marks.mark(RequestId("first"))
    await wait_all_tasks_blocked()
    assert house.live() == []
