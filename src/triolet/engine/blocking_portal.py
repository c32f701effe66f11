"""A thread that runs trio with an engine in it, and calls into it from any other thread.

This is the border between trio and the rest of the world: exceptions of any kind, Ctrl-C
included, cross it in a future.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar, cast

import trio

from triolet.actor.supervisor import only_exception
from triolet.config import EngineConfig
from triolet.engine.engine import Engine
from triolet.engine.open_engine import open_engine
from triolet.errors import NotServing, TrioletError

R = TypeVar("R")

CLOSE_TIMEOUT_S = 90.0
"""Longer than a runner's thread is given to end, so that its own error arrives first."""


class EnginePortal:
    """A thread that runs trio with an engine in it, and calls into it from any other thread."""

    def __init__(self) -> None:
        self._opened: concurrent.futures.Future[Engine] = concurrent.futures.Future()
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._close_asked: trio.Event | None = None
        self._end: BaseException | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this process opened it: a fork has a copy of the object and no threads."""
        return os.getpid() == self._pid

    @property
    def engine(self) -> Engine:
        """The engine, once it is open."""
        return self._opened.result()

    def open(self, model: str, config: EngineConfig | None, settings: Mapping[str, object]) -> None:
        """Start the thread and wait until the engine serves."""
        if config is None:
            config = EngineConfig.of(model, **settings)
        elif settings:
            raise TypeError("give config or single settings, not both")
        # A daemon, so that a script that forgets to close it can still exit.
        self._thread = threading.Thread(
            target=self._run, args=(config,), name="triolet-llm", daemon=True
        )
        self._thread.start()
        try:
            self._opened.result()
        except BaseException:  # Ctrl-C while loading too
            self.close()
            raise

    def call(self, function: Callable[..., Awaitable[R]], *args: object) -> R:
        """Run `function(engine, *args)` in the trio thread and wait; Ctrl-C cancels it."""
        future = self.start(function, *args)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(
        self, function: Callable[..., Awaitable[R]], *args: object
    ) -> concurrent.futures.Future[R]:
        """Run `function(engine, *args)` in the trio thread; cancelling the future cancels it."""
        future: concurrent.futures.Future[R] = concurrent.futures.Future()
        self._check_process()
        assert self._token is not None
        try:
            self._token.run_sync_soon(self._spawn, function, args, future)
        except trio.RunFinishedError:
            raise NotServing("this LLM is closed") from None
        return future

    def close(self) -> None:
        """Leave the engine's block and join the thread."""
        thread = self._thread
        if thread is None or os.getpid() != self._pid:
            return  # closed already, or a fork's copy: the engine is its parent's
        if self._token is not None:
            with contextlib.suppress(trio.RunFinishedError):  # it has ended by itself
                self._token.run_sync_soon(self._ask_close)
        thread.join(CLOSE_TIMEOUT_S)
        self._thread = None
        if isinstance(self._end, TrioletError):
            raise self._end

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise NotServing(
                "this LLM was opened by the process that forked this one, and its threads are "
                "there; open another one here"
            )

    def _ask_close(self) -> None:
        assert self._close_asked is not None
        self._close_asked.set()

    def _spawn(
        self,
        function: Callable[..., Awaitable[R]],
        args: tuple[object, ...],
        future: concurrent.futures.Future[R],
    ) -> None:
        if self._nursery is None or self._nursery.cancel_scope.cancel_called:
            future.set_exception(NotServing("this LLM is closed"))
            return
        self._nursery.start_soon(self._serve, function, args, future)

    async def _serve(
        self,
        function: Callable[..., Awaitable[R]],
        args: tuple[object, ...],
        future: concurrent.futures.Future[R],
    ) -> None:
        with trio.CancelScope() as scope:
            token = trio.lowlevel.current_trio_token()

            def cancel_here(done: concurrent.futures.Future[R]) -> None:
                if done.cancelled():
                    with contextlib.suppress(trio.RunFinishedError):  # all is cancelled already
                        token.run_sync_soon(scope.cancel)

            future.add_done_callback(cancel_here)
            try:
                result = await function(self.engine, *args)
            except Exception as error:
                _settle(future, error=error)
            else:
                _settle(future, result=result)
        if not future.done():
            _settle(future, error=NotServing("this LLM was closed"))

    def _run(self, config: EngineConfig) -> None:
        try:
            trio.run(self._main, config)
        except BaseException as raised:
            error = only_exception(raised) if isinstance(raised, BaseExceptionGroup) else raised
            self._end = error
            if not self._opened.done():
                self._opened.set_exception(error)

    async def _main(self, config: EngineConfig) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._close_asked = trio.Event()
        async with trio.open_nursery() as opening:
            opening.start_soon(self._cancel_when_asked, opening.cancel_scope)
            async with open_engine(config=config) as engine, trio.open_nursery() as nursery:
                self._nursery = nursery
                self._opened.set_result(engine)
                await self._close_asked.wait()
                nursery.cancel_scope.cancel()
            opening.cancel_scope.cancel()
        if not self._opened.done():
            self._opened.set_exception(NotServing("this LLM was closed while it was loading"))

    async def _cancel_when_asked(self, scope: trio.CancelScope) -> None:
        assert self._close_asked is not None
        await self._close_asked.wait()
        if not self._opened.done():
            scope.cancel()


def _settle(
    future: concurrent.futures.Future[R],
    result: R | None = None,
    error: Exception | None = None,
) -> None:
    """Complete a future unless its owner has cancelled it."""
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(cast("R", result))
