"""The API over a fake engine, in memory: routes, errors, headers, cancelling."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from triolet.config import EngineConfig, ServerConfig
from triolet.engine.client import Health, PromptOptions
from triolet.errors import (
    DeadlineExceeded,
    EngineDead,
    InternalError,
    NotServing,
    PoisonRequest,
    QueueFull,
    TrioletError,
)
from triolet.request import FinishReason
from triolet.server.api.app import Api
from triolet.testing.fake_engine import FakeEngine, Gate, Script
from triolet.testing.http import AsgiClient, HttpReply

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}
PROMPT = {"prompt": "hi"}


@asynccontextmanager
async def api(
    script: Script | None = None, *, gate: Gate | None = None, **settings: object
) -> AsyncGenerator[tuple[AsgiClient, FakeEngine, Api]]:
    async with FakeEngine(script, gate=gate) as engine:
        app = Api(engine, ServerConfig(**settings), clock=lambda: 1700000000.5)  # type: ignore[arg-type]  # any setting
        yield AsgiClient(app), engine, app


def error_of(reply: HttpReply) -> dict[str, Any]:
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error = body["error"]
    assert isinstance(error, dict)
    return error


async def test_chat_and_completion_answer_whole() -> None:
    async with api() as (client, engine, _):
        reply = await client.post(CHAT, {**HELLO, "n": 2})
        body = reply.json()
        assert reply.status == 200
        assert [c["message"]["content"] for c in body["choices"]] == ["Hello, world!"] * 2
        assert body["usage"] == {
            "prompt_tokens": len(engine.tokenizer.encode(rendered("hi"))),
            "completion_tokens": 26,
            "total_tokens": len(engine.tokenizer.encode(rendered("hi"))) + 26,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        assert (body["object"], body["created"], body["model"]) == (
            "chat.completion",
            1700000000,
            "fake-model",
        )
        body = (await client.post(COMPLETIONS, {"prompt": ["a", "b"], "echo": True})).json()
        assert [c["text"] for c in body["choices"]] == ["aHello, world!", "bHello, world!"]
        assert body["usage"]["prompt_tokens"] == 2


def rendered(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


async def test_a_request_reaches_the_engine_with_all_it_says() -> None:
    async with api(api_keys=("k",)) as (client, engine, _):
        await client.post(
            COMPLETIONS,
            {**PROMPT, "priority": 3, "cache_salt": "s", "deadline_ms": 1500, "max_tokens": 3},
            headers={"authorization": "Bearer k", "x-request-id": "job-7"},
        )
        (request,) = engine.requests
        assert request.prompt == "hi"
        assert request.sampling.max_tokens == 3
        assert request.options["priority"] == 3
        assert request.options["deadline"] == 1.5
        assert request.options["label"] == "job-7"
        tenant = request.options["tenant"]
        assert isinstance(tenant, str)
        assert tenant.startswith("key-")
        salt = request.options["cache_salt"]
        assert isinstance(salt, str)
        assert salt.endswith(":s")
        assert len(salt) > 20


async def test_template_options_are_rendered_before_the_engine_sees_the_prompt() -> None:
    async with api() as (client, engine, _):
        last = {"role": "assistant", "content": "Once"}
        await client.post(
            CHAT,
            {
                "messages": [*HELLO["messages"], last],
                "add_generation_prompt": False,
                "continue_final_message": True,
                "echo": True,
            },
        )
        options = engine.requests[0].options["options"]
        assert isinstance(options, PromptOptions)
        token_ids = await engine.tokenize(engine.requests[0].prompt, options)
        text = engine.tokenizer.decode(token_ids, skip_special_tokens=False)
        assert text.endswith("assistant\nOnce")


async def test_stream_is_the_whole_answer_in_pieces() -> None:
    async with api() as (client, _, _):
        whole = (await client.post(CHAT, HELLO)).json()
        request = {**HELLO, "stream": True, "stream_options": {"include_usage": True}}
        async with client.stream(CHAT, request) as stream:
            assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
            events = [event async for event in stream.events()]
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
        assert text == whole["choices"][0]["message"]["content"]
        assert chunks[-1]["usage"] == whole["usage"]
        assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (CHAT, {"messages": []}, 400, "messages"),
        (CHAT, {**HELLO, "temperature": 5}, 400, "temperature"),
        (CHAT, {**HELLO, "tools": [{}]}, 400, "tools[0].function"),
        (CHAT, {**HELLO, "tools": []}, 400, "tools"),
        (CHAT, {**HELLO, "model": "other"}, 404, "model"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 5000}]}, 400, "messages"),
        (CHAT, {**HELLO, "n": 200}, 400, "n"),
        (COMPLETIONS, {"prompt": "x" * 5000}, 400, "prompt"),
        (COMPLETIONS, {"prompt": [1, 2, 100_000]}, 400, "prompt"),
        (COMPLETIONS, {"prompt": ["ok", "x" * 5000]}, 400, "prompt"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": -1}, 400, "max_tokens"),
    ],
)
async def test_faults_are_answered_before_the_first_byte_in_streams_too(
    path: str, body: dict[str, object], status: int, param: str, stream: bool
) -> None:
    async with api() as (client, engine, _):
        reply = await client.post(path, {**body, "stream": stream})
        assert reply.status == status
        assert error_of(reply)["param"] == param
        assert reply.headers["x-should-retry"] == "false"
        assert reply.headers["content-type"] == "application/json"
        assert engine.live == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after", "should_retry"),
    [
        (QueueFull("full", retry_after_s=2.2), 429, "queue_full", "3", None),
        (NotServing("starting"), 503, "not_serving", "1", None),
        (EngineDead("dead"), 503, "engine_dead", "1", None),
        (PoisonRequest("poison"), 500, "poison_request", None, "false"),
        (InternalError("bug"), 500, "internal_error", None, "false"),
    ],
)
async def test_refusals_say_whether_and_when_to_come_back(
    error: TrioletError,
    status: int,
    code: str,
    retry_after: str | None,
    should_retry: str | None,
    stream: bool,
) -> None:
    async with api(Script(admission_error=error)) as (client, _, _):
        reply = await client.post(COMPLETIONS, {**PROMPT, "stream": stream})
        assert (reply.status, error_of(reply)["code"]) == (status, code)
        assert reply.headers.get("retry-after") == retry_after
        assert reply.headers.get("x-should-retry") == should_retry


async def test_failure_in_mid_stream_is_an_event_and_the_terminator() -> None:
    async with api(Script(error=PoisonRequest("it kills the runner"), error_after=2)) as (
        client,
        _,
        _,
    ):
        async with client.stream(COMPLETIONS, {**PROMPT, "stream": True}) as stream:
            events = [event async for event in stream.events()]
        assert stream.complete
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["error"]["code"] == "poison_request"
        assert len(events) == 4
        reply = await client.post(COMPLETIONS, PROMPT)
        assert (reply.status, error_of(reply)["code"]) == (500, "poison_request")


async def test_unexpected_exceptions_become_internal_errors_without_details() -> None:
    async with api(Script(error=RuntimeError("secret /etc/path"))) as (client, _, _):
        reply = await client.post(COMPLETIONS, PROMPT)
        assert reply.status == 500
        assert b"secret" not in reply.body
    async with api(Script(admission_error=RuntimeError("secret"))) as (client, _, _):
        reply = await client.post(COMPLETIONS, PROMPT)
        assert (reply.status, error_of(reply)["code"]) == (500, "internal_error")
        assert b"secret" not in reply.body


async def test_timeout_after_the_first_token_is_a_length_with_a_reason() -> None:
    async with api(Script(finish_reason=FinishReason.TIMEOUT)) as (client, _, _):
        choice = (await client.post(COMPLETIONS, PROMPT)).json()["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "timeout")


async def test_deadline_before_the_first_token_is_504(autojump_clock: MockClock) -> None:
    async with api(Script(first_token_s=60)) as (client, _, _):
        reply = await client.post(COMPLETIONS, {**PROMPT, "deadline_ms": 2000})
        assert (reply.status, error_of(reply)["code"]) == (504, DeadlineExceeded.code)


async def test_quiet_stream_sends_comments_and_lasts_longer_than_a_minute(
    autojump_clock: MockClock,
) -> None:
    script = Script(pieces=("a", "b"), first_token_s=100, step_s=100)
    async with api(script, sse_keep_alive_s=15.0) as (client, _, _):
        async with client.stream(COMPLETIONS, {**PROMPT, "stream": True}) as stream:
            body = await stream.read()
        assert body.count(b": keep-alive\n\n") == 6 + 6
        assert body.endswith(b"data: [DONE]\n\n")


async def test_no_comments_when_switched_off(autojump_clock: MockClock) -> None:
    script = Script(pieces=("a",), first_token_s=100)
    async with api(script, sse_keep_alive_s=0.0) as (client, _, _):
        async with client.stream(COMPLETIONS, {**PROMPT, "stream": True}) as stream:
            assert b"keep-alive" not in await stream.read()


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_by_id_ends_the_request_with_an_error(stream: bool) -> None:
    gate = Gate()
    async with api(gate=gate) as (client, engine, app):
        replies: list[bytes] = []

        async def ask() -> None:
            async with client.stream(COMPLETIONS, {**PROMPT, "stream": stream}) as answer:
                replies.append(await answer.read())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            (live,) = app.services.live.tree()
            reply = await client.request("POST", f"/v1/requests/cmpl-{live['request_id']}/cancel")
            assert reply.json()["cancelled"] is True
        assert engine.requests[0].state == "ended"
        assert b"request_cancelled" in replies[0]
        assert replies[0].endswith(b"data: [DONE]\n\n") == stream
        again = await client.request("POST", f"/v1/requests/{live['request_id']}/cancel")
        assert (again.status, error_of(again)["code"]) == (404, "request_not_found")


async def test_nobody_cancels_the_request_of_another_key() -> None:
    async with api(gate=Gate(), api_keys=("a", "b")) as (client, engine, app):
        async with client.stream(
            COMPLETIONS, {**PROMPT, "stream": True}, {"authorization": "Bearer a"}
        ):
            (live,) = app.services.live.tree()
            path = f"/v1/requests/{live['request_id']}/cancel"
            for key, status in (("b", 404), ("a", 200)):
                reply = await client.request("POST", path, headers={"x-api-key": key})
                assert reply.status == status
                await wait_all_tasks_blocked()
        assert engine.requests[0].state == "ended"


async def test_draining_refuses_new_work_and_lets_old_work_end() -> None:
    gate = Gate()
    async with api(gate=gate) as (client, _, app):
        async with client.stream(COMPLETIONS, {**PROMPT, "stream": True}) as stream:
            app.drain()
            reply = await client.post(COMPLETIONS, PROMPT)
            assert (reply.status, error_of(reply)["code"]) == (503, "not_serving")
            assert reply.headers["retry-after"] == "1"
            assert reply.headers["connection"] == "close"
            assert (await client.get("/health")).status == 200
            ready = await client.get("/ready")
            assert (ready.status, ready.json()) == (503, {"status": "draining"})
            gate.release(4)
            assert (await stream.read()).endswith(b"data: [DONE]\n\n")


async def test_ending_all_tells_every_client() -> None:
    async with api(gate=Gate()) as (client, engine, app):
        replies: list[HttpReply] = []

        async def ask_whole() -> None:
            replies.append(await client.post(COMPLETIONS, PROMPT))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_whole)
            async with client.stream(COMPLETIONS, {**PROMPT, "stream": True}) as stream:
                await wait_all_tasks_blocked()
                app.end_all("the server is shutting down")
                events = [event async for event in stream.events()]
        assert json.loads(events[0])["error"]["code"] == "not_serving"
        assert events[1:] == ["[DONE]"]
        assert replies[0].status == 503
        assert engine.live == []


@pytest.mark.parametrize(
    ("health", "health_status", "ready_status"),
    [
        (Health.SERVING, 200, 200),
        (Health.STARTING, 200, 503),
        (Health.DRAINING, 200, 503),
        (Health.STUCK, 503, 503),
        (Health.DEAD, 503, 503),
    ],
)
async def test_health_and_readiness(health: Health, health_status: int, ready_status: int) -> None:
    async with api() as (client, engine, _):
        engine.health = health
        for path, status in (
            ("/health", health_status),
            ("/ping", health_status),
            ("/ready", ready_status),
        ):
            reply = await client.get(path)
            assert (reply.status, reply.json()) == (status, {"status": health.value})


async def test_before_the_engine_is_there() -> None:
    client = AsgiClient(Api(None, ServerConfig()))
    assert (await client.get("/health")).json() == {"status": "starting"}
    assert (await client.get("/ready")).status == 503
    for reply in (
        await client.post(CHAT, HELLO),
        await client.get("/v1/models"),
        await client.get("/metrics"),
    ):
        assert (reply.status, error_of(reply)["code"]) == (503, "not_serving")
        assert "loaded" in error_of(reply)["message"]


async def test_models_metrics_version_and_tree() -> None:
    async with api(served_model_name=("alias", "org/name")) as (client, _, _):
        models = (await client.get("/v1/models")).json()["data"]
        assert [m["id"] for m in models] == ["alias", "org/name"]
        assert models[0]["root"] == "fake-model"
        assert (await client.get("/v1/models/org/name")).json() == models[1]
        assert (await client.get("/v1/models/fake-model")).status == 404
        assert (await client.post(COMPLETIONS, {**PROMPT, "model": "org/name"})).json()[
            "model"
        ] == "alias"
        metrics = await client.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert (await client.get("/version")).json()["version"]
        tree = (await client.get("/debug/tree")).json()
        assert tree["engine"]["health"] == "serving"
        assert [r["path"] for r in tree["requests"]] == ["/debug/tree"]


async def test_tokenize_and_detokenize() -> None:
    async with api() as (client, engine, _):
        reply = await client.post("/tokenize", {"prompt": "hi", "return_token_strs": True})
        assert reply.json() == {
            "count": 2,
            "max_model_len": engine.max_model_len,
            "tokens": [104, 105],
            "token_strs": ["h", "i"],
        }
        reply = await client.post("/tokenize", HELLO)
        assert reply.json()["count"] == len(engine.tokenizer.encode(rendered("hi")))
        assert (await client.post("/detokenize", {"tokens": [104, 105]})).json() == {"prompt": "hi"}
        for path, body, param in (
            ("/tokenize", {}, "prompt"),
            ("/tokenize", {"prompt": "x", **HELLO}, "prompt"),
            ("/detokenize", {"tokens": "x"}, "tokens"),
            ("/detokenize", {"tokens": [1, 5000]}, "tokens[1]"),
        ):
            reply = await client.post(path, body)
            assert (reply.status, error_of(reply)["param"]) == (400, param)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nope", 404, None),
        ("GET", "/v1", 404, None),
        ("GET", "/V1/models", 404, None),
        ("GET", "//v1/models", 404, None),
        ("GET", "/v1/models/", 404, None),
        ("GET", CHAT, 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET"),
        ("OPTIONS", CHAT, 405, "POST"),
        ("POST", "/health", 405, "GET"),
    ],
)
async def test_wrong_paths_and_methods_get_json_errors(
    method: str, path: str, status: int, allow: str | None
) -> None:
    async with api() as (client, _, _):
        reply = await client.request(method, path)
        assert reply.status == status
        assert error_of(reply)["code"] in ("route_not_found", "method_not_allowed")
        assert reply.headers.get("allow") == allow


async def test_request_ids_are_echoed_only_when_plain_and_short() -> None:
    async with api() as (client, _, _):
        own = "x-triolet-request-id"
        reply = await client.get("/version", {"x-request-id": "job-7.a:b"})
        assert reply.headers["x-request-id"] == "job-7.a:b"
        assert len(reply.headers[own]) == 32
        for bad in ("x" * 6000, "a b", "<script>", ""):
            reply = await client.get("/version", {"x-request-id": bad})
            assert reply.headers["x-request-id"] == reply.headers[own]


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=UTF-8", 200),
        ('application/json; charset="utf-8"; x=y', 200),
        ("application/json; charset=latin-1", 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
    ],
)
async def test_bodies_must_say_that_they_are_json(content_type: str, status: int) -> None:
    async with api() as (client, _, _):
        reply = await client.post(COMPLETIONS, PROMPT, {"content-type": content_type})
        assert reply.status == status


async def test_two_requests_may_have_one_label() -> None:
    async with api() as (client, engine, _):
        async with client.stream(
            COMPLETIONS, {**PROMPT, "stream": True, "request_id": "same"}
        ) as one:
            async with client.stream(
                COMPLETIONS, {**PROMPT, "stream": True, "request_id": "same"}
            ) as two:
                first, second = await one.read(), await two.read()
        assert first.endswith(b"[DONE]\n\n")
        assert second.endswith(b"[DONE]\n\n")
        assert [r.options["label"] for r in engine.requests] == ["same", "same"]


async def test_unknown_fields_are_accepted_and_reported() -> None:
    async with api() as (client, _, _):
        reply = await client.post(CHAT, {**HELLO, "temprature": 1, "store": True})
        assert (reply.status, reply.headers["x-triolet-ignored"]) == (200, "temprature")
        assert "x-triolet-ignored" not in (await client.post(CHAT, HELLO)).headers


async def test_large_bodies_are_parsed_off_the_loop_with_the_same_result() -> None:
    async with api() as (client, _, _):
        reply = await client.post(COMPLETIONS, {**PROMPT, "metadata": {"x": "y" * 100_000}})
        assert reply.status == 200
        reply = await client.post(COMPLETIONS, {"prompt": "x" * 200_000, "seed": "y"})
        assert error_of(reply)["param"] == "seed"


async def test_error_bodies_stay_under_8_kb() -> None:
    async with api() as (client, _, _):
        for body in (
            {"messages": [{"role": "user", "content": [{"type": 5}] * 4000}]},
            {"messages": [{"role": "é" * 100_000, "content": ""}]},
            {**HELLO, "model": "m" * 100_000},
            {**HELLO, "stop": ["x" * 5000] * 10},
            {**HELLO, "chat_template_kwargs": {"k" * 100_000: []}},
            {**HELLO, "response_format": {"type": "\U0001f600" * 50_000}},
        ):
            reply = await client.post(CHAT, body)
            assert 400 <= reply.status < 500
            assert len(reply.body) < 8192


async def test_generation_defaults_come_from_the_model_unless_switched_off() -> None:
    for mode, expected in (("auto", 0.3), ("none", 1.0)):
        config = EngineConfig.of(generation_config=mode)
        async with FakeEngine(config=config) as engine:
            engine.facts = attrs.evolve(engine.facts, generation={"temperature": 0.3})
            await AsgiClient(Api(engine)).post(COMPLETIONS, PROMPT)
            assert engine.requests[0].sampling.temperature == expected


@pytest.mark.parametrize(
    ("header", "body", "deadline"), [("250", {}, 0.25), ("250", {"deadline_ms": 1500}, 1.5)]
)
async def test_a_deadline_can_come_in_a_header_and_the_body_wins(
    header: str, body: dict[str, object], deadline: float
) -> None:
    async with api() as (client, engine, _):
        headers = {"x-request-deadline-ms": header}
        await client.post(COMPLETIONS, {**PROMPT, **body, "max_tokens": 3}, headers=headers)
        assert engine.requests[0].options["deadline"] == deadline


@pytest.mark.parametrize("header", ["0", "-5", "1.5", "soon", "", "9" * 30])
async def test_a_deadline_header_that_is_none_is_400(header: str) -> None:
    async with api() as (client, engine, _):
        answer = await client.post(
            COMPLETIONS, {**PROMPT, "max_tokens": 3}, headers={"x-request-deadline-ms": header}
        )
        assert answer.status == 400
        assert answer.json()["error"]["param"] == "X-Request-Deadline-Ms"
        assert engine.requests == []
