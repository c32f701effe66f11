from collections.abc import Awaitable, Callable, Sequence

import trio
import trio.testing

from triolet.cli.chat import Conversation
from triolet.errors import InvalidRequest, PoisonRequest
from triolet.request import FinishReason
from triolet.testing.fake_engine import FakeEngine, Gate, Script

Talk = Callable[[str], Awaitable[str | None]]


def reader(lines: Sequence[str]) -> Talk:
    remaining = iter(lines)

    async def read_line(prompt: str) -> str | None:
        await trio.lowlevel.checkpoint()
        return next(remaining, None)

    return read_line


async def converse(engine: FakeEngine, *lines: str, system: str = "") -> tuple[Conversation, str]:
    shown: list[str] = []
    conversation = Conversation(engine, shown.append, system)
    interrupt, interrupts = trio.open_memory_channel[object](0)
    async with engine, interrupt:
        await conversation.run(reader(lines), interrupts)
    return conversation, "".join(shown)


async def test_answer_is_streamed_and_remembered() -> None:
    engine = FakeEngine(Script(pieces=("Hel", "lo")))
    conversation, shown = await converse(engine, "hi", "  ", "again")
    assert shown == "Hello\nHello\n"
    assert engine.requests[1].prompt == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "again"},
    ]
    assert len(conversation.messages) == 4


async def test_system_message_leads_and_reset_keeps_it() -> None:
    engine = FakeEngine(Script(pieces=("x",)))
    await converse(engine, "a", "/reset", "b", "/system be nice", "c", "/system", "d", system="old")
    prompts = [request.prompt for request in engine.requests]
    assert prompts == [
        [{"role": "system", "content": "old"}, {"role": "user", "content": "a"}],
        [{"role": "system", "content": "old"}, {"role": "user", "content": "b"}],
        [{"role": "system", "content": "be nice"}, {"role": "user", "content": "c"}],
        [{"role": "user", "content": "d"}],
    ]


async def test_commands() -> None:
    engine = FakeEngine()
    _, shown = await converse(engine, "/help", "/nonsense", "/exit", "not read any more")
    assert "Ctrl-C" in shown
    assert "there is no command /nonsense" in shown
    assert engine.requests == []


async def test_cut_answer_says_so() -> None:
    _, shown = await converse(
        FakeEngine(Script(pieces=("x",), finish_reason=FinishReason.LENGTH)), "a"
    )
    assert shown == "x [length]\n"


async def test_refused_or_failed_message_does_not_end_the_conversation() -> None:
    for script in (
        Script(admission_error=InvalidRequest("too long")),
        Script(error=PoisonRequest("too long"), pieces=("x",)),
    ):
        conversation, shown = await converse(FakeEngine(script), "a", "b")
        assert shown.count("too long") == 2
        assert conversation.messages == []


async def test_ctrl_c_ends_the_answer_and_nothing_else() -> None:
    gate = Gate()
    engine = FakeEngine(Script(pieces=("one ", "two ", "three")), gate=gate)
    shown: list[str] = []
    interrupt, interrupts = trio.open_memory_channel[object](1)
    conversation = Conversation(engine, shown.append)
    async with engine, trio.open_nursery() as nursery:
        lines = reader(["a", "/exit"])
        nursery.start_soon(conversation.run, lines, interrupts)
        gate.release(2)
        await trio.testing.wait_all_tasks_blocked()
        assert len(engine.live) == 1
        interrupt.send_nowait(None)
        await trio.testing.wait_all_tasks_blocked()
        assert engine.requests[0].state == "ended"
    assert "".join(shown) == "one two  [stopped]\n"
    assert conversation.messages[-1] == {"role": "assistant", "content": "one two "}


async def test_ctrl_c_at_the_prompt_only_says_how_to_leave() -> None:
    engine = FakeEngine()
    shown: list[str] = []
    interrupt, interrupts = trio.open_memory_channel[object](1)
    said = trio.Event()

    async def read_line(prompt: str) -> str | None:
        await said.wait()
        return None

    async with engine, trio.open_nursery() as nursery:
        nursery.start_soon(Conversation(engine, shown.append).run, read_line, interrupts)
        await trio.testing.wait_all_tasks_blocked()
        interrupt.send_nowait(None)
        await trio.testing.wait_all_tasks_blocked()
        assert "/exit or Ctrl-D leaves" in "".join(shown)
        said.set()
