"""Requests in progress: who may end one from outside, and with what error.

The work of a request runs in a cancel scope of its own. Ending it cancels only the work;
what was decided is sent to the client afterwards, outside that scope.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import trio

from triolet.errors import InternalError, RequestCancelled, TrioletError
from triolet.server.api.exchange import Exchange

R = TypeVar("R")

logger = logging.getLogger("triolet.server")


class LiveRequest:
    """One request whose work is going on.

    Attributes:
        request_id: Our own id of it, as in its answer without the prefix.
        tenant: Whose it is.
        path: Its route.
        started_at: On trio's clock.
        error: What it was ended with, from outside.
        gone: Whether its client left.
    """

    def __init__(self, request_id: str, tenant: str | None, path: str) -> None:
        self.request_id = request_id
        self.tenant = tenant
        self.path = path
        self.started_at = trio.current_time()
        self.error: TrioletError | None = None
        self.gone = False
        self._scope: trio.CancelScope | None = None

    def end(self, error: TrioletError) -> None:
        """Cancel its work; the client gets `error`. The first error stays."""
        if self.error is None:
            self.error = error
            if self._scope is not None:
                self._scope.cancel(reason=error.code)

    async def run(
        self, exchange: Exchange, work: Callable[[], Awaitable[R]]
    ) -> R | TrioletError | None:
        """Do the work while watching the client. A checkpoint.

        Returns:
            What the work returned, the error it was ended with, or None if the client left.
        """
        outcome: R | TrioletError | None = None
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            if self.error is not None:
                self._scope.cancel(reason=self.error.code)
            nursery.start_soon(self._watch, exchange, nursery.cancel_scope)
            try:
                outcome = await work()
            except TrioletError as error:
                outcome = error
            except Exception as error:  # a bug: this request fails, the server goes on
                logger.exception("request %s failed with an unexpected error", self.request_id)
                outcome = InternalError("the server made a mistake; its log has the details")
                outcome.__cause__ = error
            nursery.cancel_scope.cancel(reason="answered")
        if self.gone:
            return None
        return self.error if self.error is not None and outcome is None else outcome

    async def _watch(self, exchange: Exchange, scope: trio.CancelScope) -> None:
        """Cancel the work, and nothing else, when the client leaves."""
        while (await exchange.receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        scope.cancel(reason="client disconnected")


class LiveRequests:
    """Every request in progress, by our own id. Bound: one per connection."""

    def __init__(self) -> None:
        self._requests: dict[str, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    @contextmanager
    def entered(self, request: LiveRequest) -> Generator[LiveRequest]:
        """List a request for as long as the block lasts."""
        assert request.request_id not in self._requests, "our ids are unique"
        self._requests[request.request_id] = request
        try:
            yield request
        finally:
            del self._requests[request.request_id]

    def count(self, paths: Collection[str]) -> int:
        """How many there are on these paths."""
        return sum(request.path in paths for request in self._requests.values())

    def cancel(self, request_id: str, tenant: str | None) -> bool:
        """End one request of a tenant by its id; False if the tenant has none of that id."""
        request = self._requests.get(request_id)
        if request is None or request.tenant != tenant:
            return False
        request.end(RequestCancelled("the request was cancelled by its id"))
        return True

    def end_all(self, error: TrioletError) -> None:
        """End every request with the same error."""
        for request in list(self._requests.values()):
            request.end(error)

    def tree(self) -> list[Mapping[str, object]]:
        """Each request for `/debug/tree`."""
        now = trio.current_time()
        return [
            {
                "request_id": request.request_id,
                "path": request.path,
                "tenant": request.tenant,
                "age_s": round(now - request.started_at, 3),
            }
            for request in self._requests.values()
        ]
