"""Responses that can be asked for again, and those that are made in the background.

Everything is in memory and bounded: by number, by bytes and by age. A background response
belongs to the nursery of `run`, not to the HTTP request that asked for it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import attrs
import trio

from triolet.errors import InternalError, NotServing, QueueFull, Rejected, TrioletError
from triolet.protocol import sse
from triolet.protocol.chat_request import ChatMessage
from triolet.protocol.json_body import clip
from triolet.protocol.responses_answer import ResponseAnswer, ResponseObject

logger = logging.getLogger("triolet.server")

RESPONSES_MAX = 1024
BYTES_MAX = 64 << 20
TTL_S = 3600.0
"""An hour: as long as a conversation usually pauses; OpenAI keeps responses for 30 days."""

BACKGROUND_MAX = 64
"""Background responses at a time; more are refused, and the engine queues what it is given."""


class ResponseNotFound(Rejected):
    """No response of that id is kept, or it is somebody else's."""

    code = "response_not_found"
    http_status = 404


class EventLog:
    """Events of one response, for readers that come at any time."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.closed = False
        self._events: list[bytes] = []
        self._changed = trio.Event()

    def write(self, events: bytes) -> None:
        """Append whole events."""
        self._events += [event + b"\n\n" for event in events.split(b"\n\n") if event]
        self.num_bytes += len(events)
        self._wake()

    def close(self) -> None:
        """No more will come."""
        self.closed = True
        self._wake()

    async def read(self, start: int) -> AsyncIterator[bytes]:
        """Events from a sequence number on, as they come. Each wait is a checkpoint."""
        while True:
            while start < len(self._events):
                yield self._events[start]
                start += 1
            if self.closed:
                return
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


@attrs.define
class StoredResponse:
    """One response that is kept.

    Attributes:
        response: The object, as it is now.
        tenant: Whose it is.
        input_items: What it was asked, as the client wrote it, with ids.
        messages: The conversation before it, without instructions.
        reply: Its output as a turn, once it has ended.
        log: Its events, for a background response.
        scope: Ends the work of a background response.
        expires_at: On trio's clock.
        num_bytes: About how much memory it takes.
    """

    response: ResponseObject
    tenant: str | None
    input_items: tuple[Mapping[str, object], ...]
    messages: tuple[ChatMessage, ...]
    reply: Callable[[], ChatMessage]
    log: EventLog | None = None
    scope: trio.CancelScope | None = None
    expires_at: float = 0.0
    num_bytes: int = 0

    @property
    def response_id(self) -> str:
        """Its id."""
        return str(self.response["id"])

    @property
    def has_ended(self) -> bool:
        """Whether its status is final."""
        return self.response["status"] not in ("queued", "in_progress")


class ResponseStore:
    """Responses by id, the oldest dropped first."""

    def __init__(self) -> None:
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._bytes = 0
        self._nursery: trio.Nursery | None = None
        self._in_background = 0

    def statistics(self) -> Mapping[str, int]:
        """What is kept and what is being made, for `/debug/tree`."""
        return {
            "kept": len(self._responses),
            "bytes": self._bytes,
            "in_background": self._in_background,
        }

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the background responses. Runs until it is cancelled, and ends them then."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def put(self, stored: StoredResponse) -> None:
        """Keep a response, or measure again one that has grown."""
        self._forget(stored.response_id)
        size = len(sse.dump(stored.response)) + len(sse.dump(stored.input_items))
        stored.num_bytes = size + (0 if stored.log is None else stored.log.num_bytes)
        stored.expires_at = trio.current_time() + TTL_S
        self._responses[stored.response_id] = stored
        self._bytes += stored.num_bytes
        self._drop_old()

    def get(self, response_id: str, tenant: str | None) -> StoredResponse:
        """A response of a tenant.

        Raises:
            ResponseNotFound: The tenant has none of that id, or no more.
        """
        self._drop_old()
        stored = self._responses.get(response_id)
        if stored is None or stored.tenant != tenant:
            raise ResponseNotFound(
                f"no response {clip(response_id)} is kept here: it was made with store false, "
                f"deleted, or is more than {TTL_S / 60:.0f} minutes old",
                param="response_id",
            )
        return stored

    def delete(self, response_id: str, tenant: str | None) -> None:
        """Forget a response, and end its work.

        Raises:
            ResponseNotFound: See `get`.
        """
        stored = self.get(response_id, tenant)
        if stored.scope is not None:
            stored.scope.cancel(reason="response deleted")
        self._forget(response_id)

    def start(
        self,
        stored: StoredResponse,
        answer: ResponseAnswer,
        work: Callable[[Callable[[bytes], None]], Awaitable[None]],
    ) -> None:
        """Make a response in the background.

        Args:
            stored: What is kept of it; its `log` and `scope` are set here.
            answer: Tells how it ends when the work does not.
            work: Does it, given where to write events.

        Raises:
            QueueFull: Too many are being made.
            NotServing: Nothing owns background work here.
        """
        if self._nursery is None:
            raise NotServing(
                "background responses need the server's own task: run the API with triolet.serve, "
                "or start api.run in a nursery"
            )
        if self._in_background >= BACKGROUND_MAX:
            raise QueueFull(
                f"{BACKGROUND_MAX} background responses are being made, which is the limit",
                retry_after_s=1,
            )
        stored.log, stored.scope = EventLog(), trio.CancelScope()
        self.put(stored)
        self._in_background += 1
        self._nursery.start_soon(self._make, stored, answer, work)

    async def _make(
        self,
        stored: StoredResponse,
        answer: ResponseAnswer,
        work: Callable[[Callable[[bytes], None]], Awaitable[None]],
    ) -> None:
        assert stored.log is not None
        assert stored.scope is not None
        log = stored.log
        try:
            with stored.scope:
                try:
                    await work(log.write)
                except TrioletError as error:
                    log.write(answer.fail(error))
                except Exception:  # a bug: this response fails, the server goes on
                    logger.exception("response %s failed unexpectedly", stored.response_id)
                    mistake = "the server made a mistake; its log has the details"
                    log.write(answer.fail(InternalError(mistake)))
        finally:
            if not stored.has_ended:
                answer.cancel()
            log.close()
            self._in_background -= 1
            if stored.response_id in self._responses:
                self.put(stored)

    def _forget(self, response_id: str) -> None:
        stored = self._responses.pop(response_id, None)
        if stored is not None:
            self._bytes -= stored.num_bytes

    def _drop_old(self) -> None:
        """Drop what is too old or too much, oldest first, and never what is being made."""
        now = trio.current_time()
        for stored in list(self._responses.values()):
            too_much = len(self._responses) > RESPONSES_MAX or self._bytes > BYTES_MAX
            if not too_much and stored.expires_at > now:
                return
            if stored.has_ended:
                self._forget(stored.response_id)


def page_of_items(
    items: Sequence[Mapping[str, object]], *, after: str | None, limit: int, descending: bool
) -> dict[str, object]:
    """One page of input items, as the protocol lists them.

    Args:
        items: All of them, oldest first.
        after: Id of the last item that the client has.
        limit: Items of a page.
        descending: Newest first.
    """
    ordered = list(reversed(items)) if descending else list(items)
    ids = [item["id"] for item in ordered]
    start = ids.index(after) + 1 if after in ids else 0
    page = ordered[start : start + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + limit < len(ordered),
    }
