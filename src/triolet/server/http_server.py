"""Accepts connections, counts them, and brings them to an end in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import trio
from hypercorn.trio.worker_context import WorkerContext

from triolet.config import ServerConfig
from triolet.server.api.asgi import App
from triolet.server.connection import Connection, Stream
from triolet.server.http1 import hypercorn_config, plain_error
from triolet.server.listeners import Listener

logger = logging.getLogger("triolet.server")

REFUSE_S = 1.0
"""Seconds to tell a client that there are too many connections."""

HARD_STOP_S = 1.0
"""Seconds for the last error events to go out; then sockets are closed under their clients."""


class HttpServer:
    """Serves one ASGI app on listeners.

    Args:
        app: The application.
        config: Limits.
    """

    def __init__(self, app: App, config: ServerConfig) -> None:
        self._app = app
        self._config = config
        self._protocol_config = hypercorn_config(config)
        self._context = WorkerContext(None)
        self._connections: set[Connection] = set()
        self._accepted = 0
        self._refused = 0
        self._accept_scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._emptied = trio.Event()

    async def run(
        self,
        listeners: tuple[Listener, ...],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until `shut_down` has ended, or for ever. Closes the listeners. A checkpoint."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            with self._accept_scope:
                await trio.serve_listeners(
                    self._serve_connection,
                    list(listeners),
                    handler_nursery=nursery,
                    task_status=_ignoring_value(task_status),
                )

    async def shut_down(self, grace_s: float, end_all: Callable[[], None]) -> None:
        """Stop accepting, let requests end, end the rest, close. A checkpoint.

        Takes at most `grace_s` and `HARD_STOP_S` more, whatever clients do.

        Args:
            grace_s: Seconds that requests may go on.
            end_all: Ends every request that still runs.
        """
        self._accept_scope.cancel(reason="server draining")
        await self._context.terminated.set()
        for connection in list(self._connections):
            connection.drain()
        with trio.move_on_after(grace_s):
            await self._wait_empty()
        if self._connections:
            logger.info("%d connections are open after the grace", len(self._connections))
            end_all()
            with trio.move_on_after(HARD_STOP_S):
                await self._wait_empty()
        for connection in list(self._connections):
            connection.abort()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel(reason="server stopped")

    def tree(self) -> Mapping[str, object]:
        """Connections for `/debug/tree`."""
        return {
            "connections": len(self._connections),
            "connections_idle": sum(connection.idle for connection in self._connections),
            "connections_max": self._config.max_connections,
            "accepted": self._accepted,
            "refused": self._refused,
        }

    async def _serve_connection(self, stream: Stream) -> None:
        if len(self._connections) >= self._config.max_connections:
            self._refused += 1
            await _refuse(stream)
            return
        self._accepted += 1
        connection = Connection(
            self._app, self._config, self._protocol_config, self._context, stream
        )
        self._connections.add(connection)
        try:
            await connection.run()
        except Exception:  # a bug, or hypercorn's: this client is cut off, the others are served
            logger.exception("a connection failed")
        finally:
            self._connections.remove(connection)
            if not self._connections:
                self._emptied.set()
                self._emptied = trio.Event()

    async def _wait_empty(self) -> None:
        while self._connections:
            await self._emptied.wait()


async def _refuse(stream: Stream) -> None:
    with trio.move_on_after(REFUSE_S):
        try:
            await stream.send_all(plain_error(503))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            logger.debug("a client beyond max_connections had left")
    await trio.aclose_forcefully(stream)


def _ignoring_value(task_status: trio.TaskStatus[None]) -> trio.TaskStatus[object]:
    """serve_listeners reports its listeners; who starts the server wants only the moment."""

    class Started:
        def started(self, value: object = None) -> None:
            task_status.started()

    return Started()
