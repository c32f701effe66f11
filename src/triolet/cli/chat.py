"""`triolet chat`: a conversation in the terminal, on an engine in this process.

A generation is a scope: Ctrl-C leaves it, and the engine forgets it at once; the program and
the conversation go on.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Annotated

import attrs
import trio
from cyclopts import Parameter

from triolet.cli import settings
from triolet.cli.console import error_console
from triolet.cli.log_output import configure_logging
from triolet.cli.progress import StartProgress
from triolet.cli.settings import (
    CacheSettings,
    LimitSettings,
    LogSettings,
    ModelSettings,
    RunnerSettings,
    SchedulerSettings,
    Sources,
    engine_config,
)
from triolet.config import EngineConfig
from triolet.engine.client import EngineClient
from triolet.errors import ConfigError, Rejected, RequestFailed
from triolet.request import FinishReason
from triolet.tokenizer.tokenizer import Message

PROMPT = ">>> "
HELP = """\
/reset          forget the conversation, keep the system message
/system TEXT    begin again with this system message; without TEXT, with none
/help           show this
/exit, Ctrl-D   leave
Ctrl-C          stop the answer, not the program
"""

ReadLine = Callable[[str], Awaitable[str | None]]
"""Shows a prompt and reads a line; None at the end of the input."""


def chat(
    model: ModelSettings = settings.DEFAULT_MODEL,
    *,
    cache: CacheSettings = settings.DEFAULT_CACHE,
    scheduler: SchedulerSettings = settings.DEFAULT_SCHEDULER,
    runner: RunnerSettings = settings.DEFAULT_RUNNER,
    limits: LimitSettings = settings.DEFAULT_LIMITS,
    log: LogSettings = settings.DEFAULT_LOG,
    system: Annotated[str, Parameter(help="System message of the conversation.")] = "",
    sources: Annotated[Sources, Parameter(parse=False)],
) -> None:
    """Chat with a model in the terminal; no server is involved."""
    config = engine_config(model, cache, scheduler, runner, limits)
    level = log.log_level if sources.was_given("log_level") else "warning"
    configure_logging(log.log_format, level)
    trio.run(_chat, config, system)


async def _chat(config: EngineConfig, system: str) -> None:
    from triolet.engine.open_engine import open_engine

    with StartProgress(error_console()) as progress:
        async with open_engine(config=config, progress=progress) as engine:
            progress.stop()
            if not engine.tokenizer.has_chat_template:
                raise ConfigError(
                    f"{engine.facts.name} has no chat template: it is not made for "
                    "conversations; give one with --chat-template, or take another model",
                    param="chat_template",
                )
            conversation = Conversation(engine, _write, system)
            with trio.open_signal_receiver(signal.SIGINT) as interrupts:
                _write(f"{engine.facts.name} is ready; /help lists the commands\n")
                await conversation.run(_read_line, interrupts)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


async def _read_line(prompt: str) -> str | None:
    """Read a line in a thread. Cancelled, the thread stays behind until a line comes."""
    importlib.import_module("readline")  # gives input() line editing and history
    try:
        return await trio.to_thread.run_sync(input, prompt, abandon_on_cancel=True)
    except EOFError:
        _write("\n")
        return None


@attrs.define
class Conversation:
    """Messages so far, and the loop that makes the next ones.

    Attributes:
        engine: Answers.
        write: Shows text at once.
        system: System message, "" for none.
        messages: User and assistant messages in order.
    """

    engine: EngineClient
    write: Callable[[str], None]
    system: str = ""
    messages: list[Message] = attrs.field(factory=list[Message])
    _generation: trio.CancelScope | None = attrs.field(default=None, init=False)

    async def run(self, read_line: ReadLine, interrupts: AsyncIterable[object]) -> None:
        """Read and answer until the input ends or /exit.

        Args:
            read_line: Reads what the user says.
            interrupts: Yields at each Ctrl-C.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, interrupts)
            while (line := await read_line(PROMPT)) is not None:
                text = line.strip()
                if text in ("/exit", "/bye", "/quit"):
                    break
                if text.startswith("/"):
                    self.command(text)
                elif text:
                    await self.say(text)
            nursery.cancel_scope.cancel(reason="the conversation is over")

    async def _watch(self, interrupts: AsyncIterable[object]) -> None:
        async for _ in interrupts:
            if self._generation is not None:
                self._generation.cancel(reason="Ctrl-C")
            else:
                self.write(f"\n(/exit or Ctrl-D leaves)\n{PROMPT}")

    def command(self, text: str) -> None:
        """Carry out a line that begins with a slash."""
        name, _, argument = text.partition(" ")
        match name:
            case "/reset":
                self.messages.clear()
                self.write("the conversation is forgotten\n")
            case "/system":
                self.messages.clear()
                self.system = argument.strip()
                self.write("the conversation begins again\n")
            case "/help":
                self.write(HELP)
            case _:
                self.write(f"there is no command {name}; /help lists them\n")

    async def say(self, text: str) -> None:
        """Answer one message; what was said before an interruption stays in the conversation."""
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        asked: Message = {"role": "user", "content": text}
        pieces: list[str] = []
        reason: FinishReason | None = None
        with trio.CancelScope() as self._generation:
            try:
                async with self.engine.generate([*system, *self.messages, asked]) as stream:
                    async for delta in stream:
                        self.write(delta.text)
                        pieces.append(delta.text)
                        reason = delta.finish_reason or reason
            except (Rejected, RequestFailed) as error:
                self.write(f"{error.message}\n")
                return
            finally:
                self._generation = None
        self.write("\n" if reason is FinishReason.STOP else f" [{reason or 'stopped'}]\n")
        self.messages += [asked, {"role": "assistant", "content": "".join(pieces)}]
