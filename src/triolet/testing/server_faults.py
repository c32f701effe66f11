"""How the fake OpenAI server can mistreat a request."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class ServerFault:
    """How one request is mistreated."""


@attrs.frozen(kw_only=True)
class RateLimit(ServerFault):
    """429 with a Retry-After header.

    Attributes:
        retry_after_s: Its value; None leaves the header out.
    """

    retry_after_s: float | None = 1.0


@attrs.frozen(kw_only=True)
class ErrorStatus(ServerFault):
    """An error answer.

    Attributes:
        status: HTTP status.
        message: What it says.
    """

    status: int = 500
    message: str = "broken on purpose"


@attrs.frozen(kw_only=True)
class SlowStart(ServerFault):
    """A pause before the status line.

    Attributes:
        seconds: How long.
    """

    seconds: float = 1.0


@attrs.frozen(kw_only=True)
class Truncate(ServerFault):
    """The body ends early, in good order: no finish reason, no `[DONE]`.

    Attributes:
        after_chunks: Pieces of text before that.
    """

    after_chunks: int = 1


@attrs.frozen(kw_only=True)
class Stall(ServerFault):
    """Nothing more comes for a while.

    Attributes:
        after_chunks: Pieces of text before that.
        seconds: How long; infinity is until the client gives up.
    """

    after_chunks: int = 1
    seconds: float = float("inf")


@attrs.frozen(kw_only=True)
class MalformedEvent(ServerFault):
    """One event is no JSON; the stream then goes on.

    Attributes:
        after_chunks: Pieces of text before that.
    """

    after_chunks: int = 1


@attrs.frozen(kw_only=True)
class ErrorEvent(ServerFault):
    """An error object in the middle of the stream, and then its end.

    Attributes:
        after_chunks: Pieces of text before that.
        message: What it says.
    """

    after_chunks: int = 1
    message: str = "broken on purpose"


@attrs.frozen(kw_only=True)
class DieMidStream(ServerFault):
    """The connection is reset in the middle of the body.

    Attributes:
        after_chunks: Pieces of text before that.
    """

    after_chunks: int = 1
