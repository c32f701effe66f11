"""ASGI 3.0 names, and the keys that our own server adds to a scope."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CONNECTION_KEY = "triolet.connection"
"""In `scope["state"]`: the `ConnectionControl` of a request on our own server."""


class ConnectionControl(Protocol):
    """What our own server lets the API do to the connection of a request."""

    @property
    def direct(self) -> bool:
        """Whether `write_nowait` may carry a body: plain TCP or a Unix socket."""
        ...

    def write_nowait(self, data: bytes) -> int:
        """Hand bytes to the socket; return how many it took, 0 when its buffer is full.

        Raises:
            OSError: The connection is gone.
        """
        ...

    async def wait_writable(self) -> None:
        """Wait until the socket takes bytes again, or is gone. A checkpoint."""
        ...

    def abort(self) -> None:
        """Close the connection at once; what it was sending is cut off."""
        ...


def connection_of(scope: Scope) -> ConnectionControl | None:
    """The connection of a request, or None on a foreign server."""
    state = scope.get("state")
    return None if state is None else state.get(CONNECTION_KEY)
