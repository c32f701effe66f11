"""What operators use: load, metrics, logs, traces, hosts, root path, keys from the environment."""

from __future__ import annotations

import http.server
import json
import logging
import sys
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
import trio
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from triolet.config import ServerConfig
from triolet.errors import ConfigError, PoisonRequest
from triolet.server.app import TrioletApp, create_app
from triolet.telemetry.log import Event
from triolet.telemetry.tracing import Tracer, open_tracer
from triolet.testing.fake_engine import FakeEngine, Gate, Script
from triolet.testing.http import AsgiClient

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}
PROMPT = {"prompt": "hi"}


@attrs.frozen
class Served:
    """A server in memory."""

    client: AsgiClient
    engine: FakeEngine
    app: TrioletApp


@asynccontextmanager
async def served(
    script: Script | None = None, *, gate: Gate | None = None, **settings: object
) -> AsyncGenerator[Served]:
    async with FakeEngine(script, gate=gate) as engine:
        app = create_app(engine, ServerConfig(**settings))  # type: ignore[arg-type]  # any setting
        yield Served(AsgiClient(app.serve_asgi), engine, app)


async def test_load_counts_generating_requests_and_nothing_else() -> None:
    gate = Gate()
    async with served(gate=gate) as server, trio.open_nursery() as nursery:

        async def load() -> int:
            return int((await server.client.get("/load")).json()["server_load"])

        assert await load() == 0
        nursery.start_soon(server.client.post, CHAT, HELLO)
        await wait_all_tasks_blocked()
        async with server.client.stream(COMPLETIONS, {**PROMPT, "stream": True}):
            assert await load() == 2
        await wait_all_tasks_blocked()
        assert await load() == 1  # a client that leaves takes its load with it
        gate.release(8)
        with trio.fail_after(5):
            while await load():
                await trio.sleep(0.01)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("TEXT", "TEXT named_metrics.kv_cache_usage_perc=0.0,named_metrics.num_requests_waiting=0"),
        (
            "json",
            'JSON {"named_metrics":{"kv_cache_usage_perc":0.0,"num_requests_waiting":0}}',
        ),
        ("xml", None),
    ],
)
async def test_the_load_header_comes_in_the_format_asked_for(
    wanted: str, expected: str | None
) -> None:
    async with served() as server:
        headers = {"endpoint-load-metrics-format": wanted}
        reply = await server.client.post(CHAT, HELLO, headers)
        assert reply.headers.get("endpoint-load-metrics") == expected
        assert "endpoint-load-metrics" not in (await server.client.post(CHAT, HELLO)).headers


@pytest.mark.parametrize(("path", "body"), [(CHAT, HELLO), (COMPLETIONS, PROMPT)])
async def test_render_shows_the_prompt_that_would_run(path: str, body: dict[str, object]) -> None:
    async with served() as server:
        fields = {**body, "return_token_ids": True}
        ran = (await server.client.post(path, fields)).json()
        before = len(server.engine.requests)
        reply = (await server.client.post(f"{path}/render", fields)).json()
        assert len(server.engine.requests) == before
        rendered = reply if path == CHAT else reply["prompts"][0]
        ran_ids = ran["prompt_token_ids"] if path == CHAT else ran["choices"][0]["prompt_token_ids"]
        assert rendered["prompt_token_ids"] == ran_ids
        assert rendered["count"] == ran["usage"]["prompt_tokens"]
        ids = server.engine.tokenizer.decode(ran_ids, skip_special_tokens=False)
        assert rendered["prompt"] == ids
        bad = await server.client.post(f"{path}/render", {**fields, "temperature": 9})
        assert (bad.status, bad.json()["error"]["param"]) == (400, "temperature")


async def test_tokenizer_info_has_what_evaluators_ask_for(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ x }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    async with served() as server:
        server.engine.facts = attrs.evolve(server.engine.facts, directory=tmp_path)
        info = (await server.client.get("/tokenizer_info")).json()
        assert (info["bos_token"], info["eos_token"], info["pad_token"]) == ("<s>", "</s>", None)
        assert info["chat_template"] == "{{ x }}"
        assert info["model_max_length"] == 4096


def http_requests(exposition: bytes) -> dict[tuple[str, ...], float]:
    """Labels in the order of their names -> count, of both counters of requests."""
    out: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(exposition.decode()):
        for sample in family.samples:
            if sample.name.startswith("triolet:http_requests") and sample.name.endswith("_total"):
                out[tuple(sample.labels.values())] = sample.value
    return out


async def test_metrics_count_requests_by_route_and_status() -> None:
    async with served(api_keys=("k",)) as server:
        key = {"x-api-key": "k"}
        await server.client.post(CHAT, HELLO, key)
        await server.client.post(CHAT, {}, key)
        await server.client.get("/v1/models/some/name", key)
        await server.client.get("/nope", key)
        await server.client.post(CHAT, HELLO)
        await server.client.get("/health")
        reply = await server.client.get("/metrics", key)
        assert b"vllm" not in reply.body
        assert http_requests(reply.body) == {
            ("POST", CHAT, "200"): 1,
            ("POST", CHAT, "400"): 1,
            ("GET", "/v1/models/{model}", "404"): 1,
            ("route_not_found", "404"): 1,
            ("invalid_api_key", "401"): 1,
        }


async def test_metrics_can_have_vllms_names_too() -> None:
    async with served(vllm_metrics=True) as server:
        body = (await server.client.get("/metrics")).body
        assert b"\ntriolet:num_requests_running 0" in b"\n" + body
        assert b'vllm:num_requests_running{engine="0"} 0' in body


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:8000", 200),
        ("[::1]:8000", 200),
        ("::1", 421),
        ("evil.example", 421),
        ("evil.example:8000", 421),
        ("localhost.evil.example", 421),
        ("", 421),
    ],
)
async def test_only_allowed_hosts_are_answered(host: str, status: int) -> None:
    async with served(allowed_hosts=("localhost", "::1")) as server:
        reply = await server.client.post(CHAT, HELLO, {"host": host})
        assert reply.status == status
        if status == 421:
            assert reply.json()["error"]["code"] == "host_not_allowed"
            assert server.engine.requests == []
        # Probes come by address.
        assert (await server.client.get("/health", {"host": host})).status == 200


@pytest.mark.parametrize("prefix", ["", "/llm"])
async def test_a_proxy_may_leave_its_path_on_or_take_it_off(prefix: str) -> None:
    async with served(root_path="/llm") as server:
        for path in ("/health", "/v1/models", "/playground", "/static/playground/style.css", "/"):
            assert (await server.client.get(prefix + path)).status == 200, path
        assert (await server.client.get("/llmx/health")).status == 404
        assert (await server.client.get("/llm/llm/health")).status == 404


@pytest.mark.parametrize(
    ("fields", "role"),
    [
        ({}, "bot"),
        ({"add_generation_prompt": False}, "user"),
    ],
)
async def test_the_role_of_answers_is_configured(fields: dict[str, object], role: str) -> None:
    async with served(response_role="bot") as server:
        reply = await server.client.post(CHAT, {**HELLO, **fields})
        assert reply.json()["choices"][0]["message"]["role"] == role
        async with server.client.stream(CHAT, {**HELLO, **fields, "stream": True}) as stream:
            events = [event async for event in stream.events()]
        assert json.loads(events[0])["choices"][0]["delta"]["role"] == role


def events_of(caplog: pytest.LogCaptureFixture, name: str) -> list[Mapping[str, Any]]:
    return [
        record.msg.fields
        for record in caplog.records
        if isinstance(record.msg, Event) and record.msg.name == name
    ]


async def test_requests_are_logged_on_demand_with_the_beginning_of_the_prompt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "triolet.server")
    secret = "s" * 50
    body = {"messages": [{"role": "user", "content": "question " + secret}], "temperature": 0.5}
    async with served() as server:
        await server.client.post(CHAT, body)
        assert "question" not in caplog.text
        assert events_of(caplog, "request_received") == []
    async with served(log_requests=True, log_prompt_chars=10) as server:
        await server.client.post(CHAT, body, {"x-request-id": "job-1"})
        await server.client.post(COMPLETIONS, {"prompt": [[*range(20)], "x" * 20][0]})
        await server.client.post(COMPLETIONS, {"prompt": "y" * 20, "stop": ["z"]})
    chat, ids, text = events_of(caplog, "request_received")
    assert secret not in caplog.text
    assert chat["prompt"] == "[1 messages, last of user] question s... (59 chars)"
    assert (chat["label"], chat["sampling"]) == ("job-1", {"temperature": 0.5})
    assert ids["prompt"] == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]... (20 ids)"
    assert text["prompt"] == "yyyyyyyyyy... (20 chars)"
    assert text["sampling"] == {"max_tokens": 16, "stop": ("z",)}


async def test_the_access_log_has_the_figures_of_a_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "triolet.server")
    async with served() as server:
        await server.client.post(COMPLETIONS, PROMPT)
        await server.client.get("/health")
        await server.client.get("/metrics")
    (answered,) = events_of(caplog, "request_answered")
    assert (answered["path"], answered["status"]) == (COMPLETIONS, 200)
    assert (answered["prompt_tokens"], answered["completion_tokens"]) == (2, 13)
    assert answered["first_output_s"] <= answered["elapsed_s"]


TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


async def test_a_request_is_a_span_below_the_clients(caplog: pytest.LogCaptureFixture) -> None:
    exporter = InMemorySpanExporter()
    async with served(
        Script(error=PoisonRequest("bad"), error_after=99), api_keys=("k",)
    ) as server:
        tracing = server.app.api._tracing  # no collector listens: spans are kept
        tracing.tracer = Tracer(exporter, "triolet", "1")
        headers = {"x-api-key": "k", "traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01"}
        await server.client.post(CHAT, HELLO, headers)
        await server.client.post(CHAT, {}, headers)
        server.engine.script = Script(error=PoisonRequest("bad"))
        await server.client.post(CHAT, HELLO, headers)
        await server.client.get("/health")
        await server.app.api.aclose()
    good, bad, failed = exporter.get_finished_spans()
    for span in (good, bad, failed):
        assert span.name == "POST /v1/chat/completions"
        assert span.context is not None
        assert f"{span.context.trace_id:032x}" == TRACE_ID
        assert span.parent is not None
    assert good.attributes is not None
    assert good.attributes["gen_ai.usage.output_tokens"] == 13
    assert good.attributes["http.response.status_code"] == 200
    assert [event.name for event in good.events] == ["first_output"]
    assert bad.attributes is not None
    assert bad.attributes["error.type"] == "invalid_value"
    assert bad.status.is_unset
    assert not failed.status.is_ok
    assert not failed.status.is_unset
    assert "hi" not in str(good.attributes)


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes traces and keeps them."""

    received: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.received.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    @override
    def log_message(self, *args: object) -> None:
        """Nothing on standard error."""


@pytest.mark.e2e
@pytest.mark.slow
async def test_spans_reach_a_collector_before_the_server_ends() -> None:
    Collector.received.clear()
    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as collector, trio.fail_after(30):
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
            async with served(otlp_traces_endpoint=endpoint) as server:
                reply = await server.client.post(CHAT, HELLO)
                await server.app.api.aclose()
            names = {one.name for one in threading.enumerate()}
            assert not any("OtelBatch" in name or "BatchSpan" in name for name in names), names
        finally:
            await trio.to_thread.run_sync(collector.shutdown)
            thread.join()
    ((path, body),) = Collector.received
    assert path == "/v1/traces"
    assert reply.headers["x-triolet-request-id"].encode() in body
    assert b"POST /v1/chat/completions" in body


def test_traces_without_the_package_or_a_url_are_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="URL"):
        open_tracer("localhost:4318", "triolet", "1")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"triolet\[otel\]"):
        create_app(None, ServerConfig(otlp_traces_endpoint="http://localhost:4318/v1/traces"))


async def test_preflight_allows_the_headers_of_any_sdk() -> None:
    async with served(cors_allowed_origins=("https://a.example",)) as server:
        ask = {
            "origin": "https://a.example",
            "access-control-request-method": "DELETE",
            "access-control-request-headers": "authorization, x-stainless-lang",
        }
        reply = await server.client.request("OPTIONS", "/v1/responses/x", headers=ask)
        assert reply.status == 204
        assert reply.headers["access-control-allow-headers"] == "authorization, x-stainless-lang"
        assert "DELETE" in reply.headers["access-control-allow-methods"]
        odd = {**ask, "access-control-request-headers": "a\tb: c"}
        reply = await server.client.request("OPTIONS", "/v1/responses/x", headers=odd)
        assert reply.headers["access-control-allow-headers"] == "authorization, content-type"
