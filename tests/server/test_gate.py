"""Keys and CORS: deny by default, pre-flight before keys, nothing leaks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from triolet.config import ServerConfig
from triolet.errors import ConfigError
from triolet.server.api.gate import PUBLIC_PATHS, Caller, Keys
from triolet.server.api.table import ENDPOINTS
from triolet.server.app import create_app
from triolet.testing.fake_engine import FakeEngine
from triolet.testing.http import AsgiClient

ORIGIN = "https://app.example"


@asynccontextmanager
async def app(**settings: object) -> AsyncGenerator[AsgiClient]:
    async with FakeEngine() as engine:
        config = ServerConfig(**settings)  # type: ignore[arg-type]  # any setting
        yield AsgiClient(create_app(engine, config).serve_asgi)


async def test_every_path_but_the_public_ones_needs_a_key() -> None:
    async with app(api_keys=("secret",)) as client:
        paths = {endpoint.path: next(iter(endpoint.methods)) for endpoint in ENDPOINTS}
        odd = {"/nope": "GET", "//v1/models": "GET", "/V1/models": "GET", "/health/": "GET"}
        for path, method in {**paths, **odd}.items():
            reply = await client.request(method, path)
            if path in PUBLIC_PATHS:
                assert reply.status == 200, path
            else:
                assert reply.status == 401, path
                assert reply.json()["error"]["code"] == "invalid_api_key"
        for page in ("/", "/playground", "/docs", "/debug", "/static/playground/style.css"):
            assert (await client.get(page)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer two"},
        {"authorization": "bearer  two "},
        {"authorization": "BEARER two"},
        {"x-api-key": "two"},
        {"authorization": "Basic abc", "x-api-key": "two"},
    ],
)
async def test_any_key_in_either_header_opens(headers: dict[str, str]) -> None:
    async with app(api_keys=("one", "two")) as client:
        assert (await client.get("/v1/models", headers)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "two"},
        {"authorization": "Basic two"},
        {"authorization": "Bearer tw"},
        {"authorization": "Bearer twoo"},
        {"x-api-key": ""},
        {"x-api-key": "t\xffo"},
    ],
)
async def test_anything_else_does_not(headers: dict[str, str]) -> None:
    async with app(api_keys=("one", "two")) as client:
        reply = await client.get("/v1/models", headers)
        assert reply.status == 401
        assert reply.headers["x-should-retry"] == "false"


async def test_a_large_body_is_not_read_before_the_key() -> None:
    async with app(api_keys=("k",), max_body_bytes=10) as client:
        assert (await client.post("/v1/completions", {"prompt": "x" * 100})).status == 401


def test_keys_of_a_file_are_added(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# team\n\none\n  two  \n")
    keys = Keys.of(ServerConfig(api_keys=("zero",), api_keys_file=path))
    callers = {keys.caller({"x-api-key": key}).tenant for key in ("zero", "one", "two")}
    assert len(callers) == 3
    assert all(caller is not None and "one" not in caller for caller in callers)


def test_a_key_file_that_protects_nothing_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("# none yet\n")
    for path in (empty, tmp_path / "missing"):
        with pytest.raises(ConfigError) as caught:
            Keys.of(ServerConfig(api_keys_file=path))
        assert caught.value.param == "api_keys_file"


def test_salts_differ_by_key_and_cannot_be_chosen() -> None:
    keys = Keys(("one", "two"))
    one, two = (keys.caller({"x-api-key": key}) for key in ("one", "two"))
    assert one.cache_salt(None) != two.cache_salt(None)
    assert two.cache_salt(one.cache_salt(None)) != one.cache_salt(None)
    assert Caller().cache_salt("mine") == "mine"


async def test_preflight_needs_no_key_and_errors_carry_cors_headers() -> None:
    async with app(api_keys=("k",), cors_allowed_origins=(ORIGIN,)) as client:
        preflight = await client.request(
            "OPTIONS",
            "/v1/chat/completions",
            headers={"origin": ORIGIN, "access-control-request-method": "POST"},
        )
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-origin"] == ORIGIN
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        refused = await client.post("/v1/chat/completions", {}, {"origin": ORIGIN})
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == ORIGIN
        assert "x-request-id" in refused.headers["access-control-expose-headers"]


async def test_other_origins_and_a_server_without_cors_say_nothing() -> None:
    for settings in ({}, {"cors_allowed_origins": (ORIGIN,)}):
        async with app(**settings) as client:
            headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}
            reply = await client.request("OPTIONS", "/v1/chat/completions", headers=headers)
            assert reply.status == 405
            assert "access-control-allow-origin" not in reply.headers


async def test_any_origin_may_be_allowed() -> None:
    async with app(cors_allowed_origins=("*",)) as client:
        reply = await client.get("/health", {"origin": "https://x.example"})
        assert reply.headers["access-control-allow-origin"] == "*"
