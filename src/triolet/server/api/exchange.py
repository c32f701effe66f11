"""One HTTP request and its answer, over ASGI: headers, body within limits, one response."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from triolet.config import ServerConfig
from triolet.errors import TrioletError
from triolet.server.api.asgi import Receive, Scope, Send
from triolet.server.api.error_response import Headers, HttpRefused, Response, error_response

MESSAGES_PATH = "/v1/messages"
"""Root of the paths of Anthropic's API that no other API has."""

CLOSE: Headers = ((b"connection", b"close"),)


class ClientGone(Exception):
    """The client left before its request was complete: there is nobody to answer."""


class Exchange:
    """A request as it comes in, and the way its answer goes out.

    Args:
        scope: ASGI scope of type "http".
        receive: ASGI receive.
        send: ASGI send.
        config: Limits.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, config: ServerConfig) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: Mapping[str, str] = _headers(scope)
        self.common_headers: list[tuple[bytes, bytes]] = []
        self.started = False
        self.status = 0
        self._config = config

    @property
    def is_anthropic(self) -> bool:
        """Whether the client speaks Anthropic's API: by the path, or by its header."""
        if self.path == MESSAGES_PATH or self.path.startswith(f"{MESSAGES_PATH}/"):
            return True
        return "anthropic-version" in self.headers

    async def read_body(self) -> bytes:
        """The whole request body. A checkpoint.

        Raises:
            HttpRefused: It is too large (413), too slow (408), encoded (415) or without a
                length (411).
            ClientGone: The client left while sending it.
        """
        self._check_body_headers()
        chunks: list[bytes] = []
        size = 0
        with trio.move_on_after(self._config.request_timeout_s) as scope:
            while True:
                message = await self.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                chunk: bytes = message.get("body", b"")
                size += len(chunk)
                if size > self._config.max_body_bytes:
                    raise self._too_large(f"more than {self._config.max_body_bytes}")
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
        assert scope.cancelled_caught
        raise HttpRefused(
            408,
            f"the request body did not arrive within {self._config.request_timeout_s:g} s",
            "request_timeout",
            CLOSE,
        )

    def check_json(self) -> None:
        """Refuse a body that does not say it is JSON.

        Raises:
            HttpRefused: 415. A page of another origin could send other types without asking
                first (CORS), so this also keeps such pages out.
        """
        content_type = self.headers.get("content-type", "")
        media_type, _, parameters = content_type.partition(";")
        charset = parameters.lower().partition("charset=")[2].partition(";")[0].strip(' "')
        if media_type.strip().lower() != "application/json" or charset not in ("", "utf-8", "utf8"):
            raise HttpRefused(
                415,
                "send the header 'Content-Type: application/json' and a body in UTF-8; got "
                f"{content_type[:100]!r}",
                "unsupported_media_type",
                CLOSE,
            )

    async def respond(self, response: Response) -> None:
        """Send an answer in one piece. A checkpoint."""
        headers = response.headers
        if response.status != 204:  # which has no content (RFC 9110 section 8.6)
            length = str(len(response.body)).encode()
            content: Headers = (
                (b"content-type", response.content_type),
                (b"content-length", length),
            )
            headers = (*content, *headers)
        await self.start(response.status, headers)
        await self.send({"type": "http.response.body", "body": response.body, "more_body": False})

    async def respond_error(self, error: TrioletError) -> None:
        """Send an error. A checkpoint."""
        await self.respond(error_response(error, anthropic=self.is_anthropic))

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status and headers. A checkpoint."""
        assert not self.started, "an exchange has one response"
        self.started = True
        self.status = status
        await self.send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *self.common_headers],
            }
        )

    def _check_body_headers(self) -> None:
        length = self.headers.get("content-length")
        if length is None and "chunked" not in self.headers.get("transfer-encoding", "").lower():
            if self.scope.get("http_version") not in ("2", "3"):
                raise HttpRefused(
                    411,
                    "send the body's size in Content-Length, or send it in chunks",
                    "length_required",
                    CLOSE,
                )
        elif length is not None and (
            len(length) > 18 or not length.isdigit() or int(length) > self._config.max_body_bytes
        ):
            raise self._too_large(length)
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise HttpRefused(
                415, "send the body without Content-Encoding", "unsupported_encoding", CLOSE
            )

    def _too_large(self, size: str) -> HttpRefused:
        return HttpRefused(
            413,
            f"the request body has {size[:20]} bytes, at most {self._config.max_body_bytes} are "
            "taken (max_body_bytes)",
            "request_too_large",
            CLOSE,
        )


def _headers(scope: Scope) -> dict[str, str]:
    """Names in lower case; values of a name sent several times are joined (RFC 9110 5.2)."""
    out: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        out[name] = f"{out[name]}, {value}" if name in out else value
    return out
