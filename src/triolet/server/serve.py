"""`serve`: engine and HTTP server as siblings in one nursery, from the first byte to exit.

listen -> answer /health while the model loads -> ready -> SIGTERM or SIGINT:
stop accepting -> drain for the grace -> end the rest with an error -> close the engine
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import trio

from triolet.config import EngineConfig, ServerConfig
from triolet.engine.client import EngineClient, Health
from triolet.errors import EngineDead
from triolet.server.api.app import Api
from triolet.server.app import create_app
from triolet.server.http_server import HttpServer
from triolet.server.listeners import Listening, open_listeners

logger = logging.getLogger("triolet.server")

EngineFactory = Callable[[EngineConfig], AbstractAsyncContextManager[EngineClient]]
OnReady = Callable[[str, EngineClient], None]

SWITCH_INTERVAL_S = 0.0005
"""A thread that runs Python delays each wake-up of the loop by this much; the default is 5 ms."""

HEALTH_INTERVAL_S = 0.5
"""How often the server looks whether its engine is dead: a process without one has to end."""

ENGINE_FAILURE_GRACE_S = 1.0
"""Seconds for clients to be told that the engine has died, before the process ends."""


def _open_engine(config: EngineConfig) -> AbstractAsyncContextManager[EngineClient]:
    from triolet.engine.open_engine import open_engine

    return open_engine(config=config)


async def serve(
    config: EngineConfig,
    server: ServerConfig,
    *,
    engine_factory: EngineFactory = _open_engine,
    on_ready: OnReady | None = None,
    on_listening: Callable[[str], None] | None = None,
    handle_signals: bool = True,
    shutdown: trio.Event | None = None,
) -> int:
    """Serve a model over HTTP until a signal. A checkpoint; cancelled, it closes at once.

    Args:
        config: Of the engine.
        server: Of the HTTP server.
        engine_factory: Opens the engine.
        on_ready: Called once with the URL and the engine, when requests are taken.
        on_listening: Called once with the URL, when `/health` answers and the model loads.
        handle_signals: Receive SIGTERM and SIGINT; only possible in the main thread.
        shutdown: Setting it does what a first signal does.

    Returns:
        The exit status: 0 after an orderly end, 130 or 143 after a second signal.

    Raises:
        ConfigError: The configuration cannot be used; nothing was started.
        EngineDead: The engine died.
    """
    server.check()
    app = create_app(None, server)
    process = _Process(app.api, HttpServer(app.serve_asgi, server), server, shutdown)
    app.api.services.tree = process.http.tree
    listening = await open_listeners(server)
    switch_interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        async with trio.open_nursery() as nursery:
            process.scope = nursery.cancel_scope
            await nursery.start(app.api.run)
            await nursery.start(process.http.run, listening.listeners)
            if handle_signals:
                await nursery.start(process.receive_signals)
            if on_listening is not None:
                on_listening(listening.url)
            await process.run_engine(engine_factory, config, listening, on_ready)
            await app.api.aclose()
            nursery.cancel_scope.cancel(reason="served")
    finally:
        sys.setswitchinterval(switch_interval_s)
        if server.uds is not None:
            server.uds.unlink(missing_ok=True)
    if process.failure is not None:
        raise _single(process.failure)
    return process.exit_status


class _Process:
    """What the parts of a serving process know of each other."""

    def __init__(
        self, api: Api, http: HttpServer, config: ServerConfig, shutdown: trio.Event | None
    ) -> None:
        self.http = http
        self.exit_status = 0
        self.failure: Exception | None = None
        self.scope: trio.CancelScope | None = None
        self._loaded = False
        self._api = api
        self._config = config
        self._shutdown = trio.Event() if shutdown is None else shutdown

    async def receive_signals(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """The first signal asks for an orderly end, the second ends at once."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for number in signals:
                if not self._shutdown.is_set():
                    logger.info("%s: draining", signal.Signals(number).name)
                    self._shutdown.set()
                    continue
                self.exit_status = 128 + number
                assert self.scope is not None
                self.scope.cancel(reason="second signal")

    async def run_engine(
        self,
        engine_factory: EngineFactory,
        config: EngineConfig,
        listening: Listening,
        on_ready: OnReady | None,
    ) -> None:
        """Load, serve, drain. A checkpoint."""
        loading = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_loading, loading)
            try:
                with loading:
                    async with engine_factory(config) as engine:
                        self._loaded = True
                        self._api.attach(engine)
                        if on_ready is not None:
                            on_ready(listening.url, engine)
                        if await self._wait_shutdown(engine):
                            await self._drain(self._config.shutdown_grace_s)
                        else:
                            raise EngineDead("the engine has died; its log has the cause")
            except Exception as error:
                # The engine has failed its requests; their answers get time to go out.
                self.failure = error
                await self._drain(ENGINE_FAILURE_GRACE_S)
            nursery.cancel_scope.cancel(reason="engine closed")

    async def _wait_shutdown(self, engine: EngineClient) -> bool:
        """True once somebody asked for an orderly end, False if the engine died before."""
        while engine.health is not Health.DEAD:
            with trio.move_on_after(HEALTH_INTERVAL_S):
                await self._shutdown.wait()
                return True
        return False

    async def _drain(self, grace_s: float) -> None:
        self._api.drain()
        await self.http.shut_down(
            grace_s, partial(self._api.end_all, "the server is shutting down")
        )

    async def _stop_loading(self, loading: trio.CancelScope) -> None:
        """A signal while the model loads: nobody waits for it any more."""
        await self._shutdown.wait()
        if not self._loaded:
            loading.cancel(reason="shutdown while loading")


def _single(error: Exception) -> Exception:
    """The one error inside groups of one, as nurseries wrap it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
