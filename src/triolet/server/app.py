"""`create_app`: the whole server as one QuartTrio app.

The paths of the API go to `triolet.server.api` at ASGI level and never see Quart; the pages
(playground, debug tree, API notes) are Quart's. The app can be served by `triolet.server.serve`,
by hypercorn's trio worker, or be mounted beside other routes.
"""

from __future__ import annotations

from typing import cast

import hypercorn.typing as hypercorn
import trio
from quart import Response
from quart_trio import QuartTrio
from typing_extensions import override
from werkzeug.exceptions import HTTPException

from triolet.config import ServerConfig
from triolet.engine.client import EngineClient
from triolet.protocol import sse
from triolet.protocol.error_object import error_object
from triolet.server.api.app import Api
from triolet.server.api.asgi import Event, Receive, Scope, Send
from triolet.server.pages.pages import PAGE_PATHS, pages


def create_app(engine: EngineClient | None, config: ServerConfig | None = None) -> TrioletApp:
    """The API and the pages over one engine.

    Args:
        engine: The engine, or None until `app.api.attach(engine)`.
        config: Limits, keys and names; None takes the defaults.

    Raises:
        ConfigError: The key file cannot be used.
    """
    app = TrioletApp(Api(engine, config))
    app.register_blueprint(pages)
    app.register_error_handler(HTTPException, _page_error)
    return app


class TrioletApp(QuartTrio):
    """Pages by Quart, everything else by the API.

    Attributes:
        api: The API.
    """

    def __init__(self, api: Api) -> None:
        super().__init__("triolet.server", static_folder=None)
        self.api = api
        # Quart's own clocks and caps: pages are small, and the API has its own limits.
        self.config["RESPONSE_TIMEOUT"] = None
        self.config["BODY_TIMEOUT"] = None
        self.config["MAX_CONTENT_LENGTH"] = None

    async def serve_asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3.0: pages to Quart, every other path to the API."""
        scope = _within_root(scope, self.api.config.root_path)
        is_page = scope["type"] == "http" and _is_page(scope["path"])
        if not is_page and scope["type"] != "lifespan":
            await self.api(scope, receive, send)
            return
        page = _Page(receive, send)
        await super().asgi_app(
            cast("hypercorn.Scope", scope),
            cast("hypercorn.ASGIReceiveCallable", page.receive),
            cast("hypercorn.ASGISendCallable", page.send),
        )

    @override
    async def asgi_app(
        self,
        scope: hypercorn.Scope,
        receive: hypercorn.ASGIReceiveCallable,
        send: hypercorn.ASGISendCallable,
    ) -> None:
        """What other ASGI servers call, with their own types."""
        await self.serve_asgi(cast("Scope", scope), cast("Receive", receive), cast("Send", send))


async def _page_error(error: HTTPException) -> Response:
    """Quart's errors (405, 500) in the shape of all others."""
    status = error.code or 500
    code = "method_not_allowed" if status == 405 else "page_failed"
    body = sse.dump(error_object(status, f"this page cannot be served: {error.name}", code))
    return Response(body, status=status, content_type="application/json")


def _within_root(scope: Scope, root_path: str) -> Scope:
    """The scope with a path below ours, whether a proxy took `root_path` off or left it on."""
    path = scope.get("path", "")
    if not root_path or not (path == root_path or path.startswith(f"{root_path}/")):
        return scope
    return {**scope, "path": path[len(root_path) :] or "/"}


def _is_page(path: str) -> bool:
    return path in PAGE_PATHS or path.startswith("/static/")


class _Page:
    """ASGI callables for Quart, which cancels its request when it is told of a disconnect.

    hypercorn tells of one at the end of every answer, while the last send is still at work;
    Quart would cancel that send, and the connection would never be idle, closed or reused.
    So a disconnect that comes during the last send is not passed on.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._finishing = False

    async def receive(self) -> Event:
        """ASGI receive."""
        message = await self._receive()
        if message["type"] == "http.disconnect" and self._finishing:
            await trio.sleep_forever()  # until Quart has finished and cancels this task
        return message

    async def send(self, message: Event) -> None:
        """ASGI send."""
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._finishing = True
        await self._send(message)
