"""create_app: pages beside the API, also on a stock hypercorn."""

from __future__ import annotations

import re

import pytest
import trio
from hypercorn.config import Config
from hypercorn.trio import serve as hypercorn_serve

from support.live_server import STREAM, WHOLE, RawClient, post, wait_until
from triolet.server.app import create_app
from triolet.testing.fake_engine import FakeEngine, Gate
from triolet.testing.http import AsgiClient


async def test_pages_load_nothing_from_elsewhere() -> None:
    async with FakeEngine() as engine:
        client = AsgiClient(create_app(engine).serve_asgi)
        for path in ("/", "/playground", "/docs", "/debug"):
            page = await client.get(path)
            assert page.status == 200
            assert "default-src 'self'" in page.headers["content-security-policy"]
            for reference in re.findall(rb'(?:src|href)="([^"]+)"', page.body):
                # Relative, so that a proxy may put a path before it; the pages are all on top.
                assert not reference.startswith((b"/", b"http"))
                assert (await client.get(f"/{reference.decode()}")).status == 200
        assert (await client.get("/static/playground/missing.js")).status == 404
        assert (await client.get("/static/../serve.py")).status in (400, 404)
        refused = await client.request("POST", "/playground")
        assert (refused.status, refused.json()["error"]["code"]) == (405, "method_not_allowed")
        assert (await client.get("/playground/x")).json()["error"]["code"] == "route_not_found"


@pytest.mark.e2e
async def test_app_on_a_stock_hypercorn_answers_streams_and_sees_a_disconnect() -> None:
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = None
    config.keep_alive_timeout = 1
    gate = Gate()
    async with FakeEngine(gate=gate) as engine:
        app = create_app(engine)
        async with trio.open_nursery() as nursery:
            (bound,) = await nursery.start(
                lambda task_status: hypercorn_serve(
                    app, config, mode="asgi", task_status=task_status
                )
            )
            port = int(bound.rpartition(":")[2])
            async with RawClient(await trio.open_tcp_stream("127.0.0.1", port)) as client:
                gate.release(8)
                await client.send(post(WHOLE))
                assert (await client.answer()).json()["choices"][0]["text"] == "Hello, world!"
                await client.send(post(STREAM))
                await client.read_until(b"data: [DONE]\n\n\r\n0\r\n\r\n")
                await client.send(post(STREAM))
                gate.release()
                await client.read_until(b'"text":"Hello"')
                await client.stream.aclose()
                await wait_until(lambda: not engine.live)
            nursery.cancel_scope.cancel()
    assert [request.state for request in engine.requests] == ["finished", "finished", "ended"]


def test_an_asyncio_server_is_refused_with_a_reason() -> None:
    import anyio

    from triolet.errors import ConfigError
    from triolet.server.api.app import Api

    async def call() -> None:
        with pytest.raises(ConfigError, match="trio"):
            await Api(None)({"type": "lifespan"}, never, never)  # type: ignore[arg-type]

    async def never(*_: object) -> None:
        raise AssertionError

    anyio.run(call, backend="asyncio")
