"""The OpenAPI document: current, complete, and true of requests and answers.

Requests are generated from the document. Whatever is sent, no answer is a 5xx, and every
answer has the shape that the document says. Enough of the requests make sense that answers of
a 200 are seen, too; the shares are properties in pytest's JUnit report (`--junitxml`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import trio
from hypothesis import HealthCheck, given, settings, strategies as st

from support.openapi import FILE, ROUTES, page
from support.schema_strategies import ANYTHING, Schema, Strategies
from triolet.server.api.app import Api
from triolet.server.api.table import ENDPOINTS
from triolet.server.app import create_app
from triolet.testing.fake_engine import FakeEngine
from triolet.testing.http import AsgiClient, HttpReply

DOCUMENT: dict[str, Any] = json.loads(FILE.read_text())
SCHEMAS: Schema = DOCUMENT["components"]["schemas"]

GENERATING = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
)
OTHERS = (
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/messages/count_tokens",
    "/v1/responses/input_tokens",
    "/tokenize",
    "/detokenize",
)
SHARE_MIN = 1 / 3
"""Of a generating endpoint's requests that are answered 200."""

EXAMPLES = 100

ALWAYS: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["fake-model", "fake-model", "fake-model", "other"]),
    "max_tokens": st.integers(1, 9),
    "max_completion_tokens": st.integers(1, 9) | st.none(),
    "max_output_tokens": st.integers(1, 9) | st.none(),
    "role": st.sampled_from(["user", "assistant"]),
    "n": st.integers(1, 4),
}
OFTEN: dict[str, st.SearchStrategy[Any]] = {
    name: st.text("abc 123", min_size=1, max_size=9) for name in ("prompt", "content", "input")
}
OFTEN["tokens"] = st.lists(st.integers(0, 255), max_size=5)
OFTEN["tools"] = st.none()
"""Values without which nearly every request would be refused for the same few reasons."""


def test_the_document_is_current() -> None:
    assert FILE.read_text() == page(), "run: python tests/support/openapi.py"


def test_every_route_is_described() -> None:
    routes = {(endpoint.path, method) for endpoint in ENDPOINTS for method in endpoint.methods}
    assert routes == set(ROUTES)


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    text = json.dumps(DOCUMENT)
    for part in text.split('"#/components/schemas/')[1:]:
        assert part.partition('"')[0] in SCHEMAS
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_the_document_and_its_page_are_served_without_a_key() -> None:
    from triolet.config import ServerConfig

    async with FakeEngine() as engine:
        app = create_app(engine, ServerConfig(api_keys=("k",)))
        client = AsgiClient(app.serve_asgi)
        reply = await client.get("/openapi.json")
        assert reply.headers["content-type"].startswith("application/json")
        assert reply.json() == DOCUMENT
        for path in ("/docs", "/static/pages/docs.js", "/static/pages/docs.css"):
            assert (await client.get(path)).status == 200


def violations(value: object, schema: Schema) -> list[str]:
    """Where a value breaks a schema of the document."""
    whole = {**schema, "components": {"schemas": SCHEMAS}}
    found = jsonschema.Draft202012Validator(whole).iter_errors(value)
    return [f"{error.json_path}: {error.message[:200]}" for error in found]


def operation(path: str) -> dict[str, Any]:
    described: dict[str, Any] = DOCUMENT["paths"][path]["post"]
    return described


def check(path: str, body: object, reply: HttpReply) -> None:
    """An answer is no 5xx and has the shape that the document says."""
    assert reply.status < 500, (body, reply.body)
    assert len(reply.body) < 8192 or reply.status == 200
    responses = operation(path)["responses"]
    described = responses["200" if reply.status == 200 else "default"]["content"]
    content_type = reply.headers["content-type"].partition(";")[0]
    if content_type == "application/json":
        schema = described["application/json"]["schema"]
        assert violations(reply.json(), schema) == [], (body, reply.body)
        return
    assert content_type == "text/event-stream"
    schema = described[content_type]["x-event-schema"]
    events = [part for part in reply.body.decode().split("\n\n") if part]
    for event in events:
        data = event.partition("data: ")[2]
        if data != "[DONE]":
            value = json.loads(data)
            assert "error" in value or violations(value, schema) == [], (body, value)
    if path in ("/v1/chat/completions", "/v1/completions"):
        assert events[-1] == "data: [DONE]"


@pytest.mark.slow
@pytest.mark.parametrize("path", [*GENERATING, *OTHERS])
def test_generated_requests_are_answered_as_the_document_says(
    path: str, record_testsuite_property: Callable[[str, object], None]
) -> None:
    statuses: Counter[int] = Counter()
    schema = operation(path)["requestBody"]["content"]["application/json"]["schema"]
    requests = Strategies(SCHEMAS, ALWAYS, OFTEN).value(schema)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(requests)
    def run(body: dict[str, Any]) -> None:
        async def send() -> HttpReply:
            async with FakeEngine() as engine:
                reply = await AsgiClient(Api(engine)).post(path, body)
                assert engine.live == []
                return reply

        reply = trio.run(send)
        statuses[reply.status] += 1
        check(path, body, reply)

    run()
    share = statuses[200] / statuses.total()
    record_testsuite_property(path, f"{share:.0%} of {statuses.total()} are 200; {dict(statuses)}")
    if path in GENERATING:
        assert share >= SHARE_MIN, statuses


@pytest.mark.slow
@pytest.mark.parametrize("path", [*GENERATING, *OTHERS])
def test_generated_requests_with_one_wrong_field_are_refused_or_answered(path: str) -> None:
    schema = operation(path)["requestBody"]["content"]["application/json"]["schema"]
    strategies = Strategies(SCHEMAS, ALWAYS, OFTEN)
    names = sorted(SCHEMAS[schema["$ref"].split("/")[-1]]["properties"])

    @settings(
        max_examples=EXAMPLES // 2,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategies.value(schema), st.sampled_from(names), ANYTHING)
    def run(body: dict[str, Any], name: str, value: object) -> None:
        async def send() -> HttpReply:
            async with FakeEngine() as engine:
                return await AsgiClient(Api(engine)).post(path, {**body, name: value})

        check(path, {**body, name: value}, trio.run(send))

    run()
