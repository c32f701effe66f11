"""`triolet bench serve` against the real server over a fake engine."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from support.live_server import live_server
from triolet.cli.bench.http_client import EventReader, HttpClient, HttpFailure, HttpTarget
from triolet.cli.bench.measure import measure_server
from triolet.cli.bench.server_load import ServerLoad
from triolet.cli.bench.workload import BenchRequest, WorkloadConfig
from triolet.errors import ConfigError

WORKLOAD = WorkloadConfig(num_prompts=6, input_len=4, output_len=3, repeat=2)


@pytest.mark.parametrize("settings", [{"concurrency": 3}, {"rate": 500.0}, {"endpoint": "chat"}])
async def test_every_request_is_answered_and_counted(settings: dict[str, object]) -> None:
    async with live_server() as server:
        load = ServerLoad(url=server.url, **settings)  # type: ignore[arg-type]  # any field
        rows, asked = await measure_server(load, WORKLOAD)
    assert asked["model"] == server.engine.facts.name
    assert len(rows) == 2
    for row in rows:
        assert row["requests"] == 6
        assert row["failed"] == 0
        assert row["completion_tokens"] > 0
        assert row["ttft_ms_p50"] > 0


async def test_connection_is_used_again() -> None:
    async with live_server() as server:
        client = HttpClient(server.url)
        for _ in range(5):
            assert (await client.request("GET", "/v1/models")).status == 200
            assert server.connections == 1
        await client.aclose()


async def test_refusal_is_in_the_record() -> None:
    async with live_server() as server:
        client = HttpClient(f"{server.url}/v1")
        record = await target_of(client).ask(BenchRequest("Hi", None, -1))
        await client.aclose()
    assert record.error is not None
    assert record.error.startswith("HTTP 400")


async def test_nobody_there_is_said_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="cannot connect") as error:
        await measure_server(ServerLoad(url="http://127.0.0.1:1"), WORKLOAD)
    assert error.value.param == "url"


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://"])
def test_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="url must be like"):
        HttpClient(url)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHOICE = {"text": "a", "finish_reason": None}


def event(value: object) -> bytes:
    data = b"data: " + json.dumps(value).encode() + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@asynccontextmanager
async def canned_server(*answers: bytes) -> AsyncGenerator[str]:
    """Answers each request of a connection with the next bytes, then closes it."""

    async def serve(stream: trio.SocketStream) -> None:
        for answer in answers:
            if not await stream.receive_some(65536):
                return
            await stream.send_all(answer)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "the connection broke"),
        (HEAD, "the answer is not HTTP"),
        (b"nonsense\r\n\r\n", "the answer is not HTTP"),
        (HEAD + event({"error": {"message": "gone"}}) + b"0\r\n\r\n", "gone"),
        (HEAD + event({"choices": [CHOICE]}) + b"0\r\n\r\n", "ended before the answer"),
        (
            HEAD + event({"choices": [{**CHOICE, "finish_reason": "stop"}]}) + b"0\r\n\r\n",
            "no usage",
        ),
        (HEAD + b"7\r\ndata: {\r\n2\r\n\n\n\r\n0\r\n\r\n", "not JSON"),
    ],
)
async def test_broken_answer_is_an_error_of_its_request(answer: bytes, error: str) -> None:
    async with canned_server(answer) as url:
        client = HttpClient(url)
        record = await target_of(client).ask(BenchRequest("Hi", None, 1))
        await client.aclose()
    assert record.error is not None
    assert error in record.error


async def test_connection_that_the_server_gave_up_is_replaced() -> None:
    async with canned_server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as url:
        client = HttpClient(url)
        for _ in range(3):
            assert (await client.request("GET", "/")).body == b"{}"
        await client.aclose()


async def test_request_past_its_time_has_failed() -> None:
    async with canned_server(HEAD) as url:
        client = HttpClient(url)
        with pytest.raises(HttpFailure):
            await client.request("GET", "/", on_event=print)

    async def hang(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, hang, 0)
        port = listeners[0].socket.getsockname()[1]
        target = target_of(HttpClient(f"http://127.0.0.1:{port}"), timeout_s=0.05)
        record = await target.ask(BenchRequest("Hi", None, 1))
        nursery.cancel_scope.cancel()
    assert record.error == "no whole answer within 0.05 s"


def target_of(client: HttpClient, timeout_s: float = 5.0) -> HttpTarget:
    return HttpTarget(
        client=client,
        model="m",
        endpoint="completions",
        as_token_ids=False,
        fields={},
        timeout_s=timeout_s,
    )


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_events_do_not_depend_on_how_they_are_cut(size: int) -> None:
    data = b": comment\n\ndata: {}\n\nevent: x\r\ndata: [DONE]\r\n\r\n"
    reader = EventReader()
    payloads: list[bytes] = []
    take: Callable[[bytes], None] = payloads.append
    for start in range(0, len(data), size):
        for payload in reader.feed(data[start : start + size]):
            take(payload)
    assert payloads == [b"{}", b"[DONE]"]


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"rate": -1.0}, "rate"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"warmup": -1}, "warmup"),
        ({"token_ids": True}, "token_ids"),
        ({"token_ids": True, "tokenizer": "demo", "endpoint": "chat"}, "token_ids"),
        ({"extra_body": "{"}, "extra_body"),
        ({"extra_body": "[]"}, "extra_body"),
    ],
)
def test_wrong_option_is_named(settings: dict[str, object], param: str) -> None:
    with pytest.raises(ConfigError) as error:
        ServerLoad(**settings).check()  # type: ignore[arg-type]  # any field
    assert error.value.param == param
