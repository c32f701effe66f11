"""The fake server answers well, and misbehaves in every way it promises, to a real client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from functools import partial

import httpx
import openai
import pytest
import trio
from openai.types.chat import ChatCompletionUserMessageParam
from pytest_trio import trio_fixture

from triolet.testing import (
    DieMidStream,
    ErrorEvent,
    ErrorStatus,
    FakeOpenAIServer,
    MalformedEvent,
    RateLimit,
    SlowStart,
    Stall,
    Truncate,
    open_fake_openai_server,
)

MESSAGES: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Hi"}]


@trio_fixture  # type: ignore[untyped-decorator]  # pytest-trio has no types
async def server() -> AsyncGenerator[FakeOpenAIServer]:
    async with open_fake_openai_server() as fake:
        yield fake


@pytest.fixture
def client(server: FakeOpenAIServer) -> Iterator[openai.OpenAI]:
    """A client in threads: openai's asynchronous one leaves its generators to the collector."""
    with openai.OpenAI(base_url=server.url, api_key="any", max_retries=0, timeout=5.0) as made:
        yield made


async def ask(client: openai.OpenAI) -> str:
    """Text of a whole answer."""

    def call() -> str:
        reply = client.chat.completions.create(model="fake", messages=MESSAGES)
        return reply.choices[0].message.content or ""

    return await trio.to_thread.run_sync(call)


async def stream(client: openai.OpenAI) -> tuple[str, str | None]:
    """Text and finish reason of a streamed answer."""

    def call() -> tuple[str, str | None]:
        pieces, finish_reason = [], None
        with client.chat.completions.create(model="fake", messages=MESSAGES, stream=True) as chunks:
            for chunk in chunks:
                pieces.append(chunk.choices[0].delta.content or "")
                finish_reason = chunk.choices[0].finish_reason or finish_reason
        return "".join(pieces), finish_reason

    return await trio.to_thread.run_sync(call)


async def test_without_faults_it_serves(server: FakeOpenAIServer, client: openai.OpenAI) -> None:
    assert await ask(client) == server.text
    assert await stream(client) == (server.text, "stop")
    complete = partial(client.completions.create, model="fake", prompt="Hi")
    assert (await trio.to_thread.run_sync(complete)).choices[0].text == server.text
    models = await trio.to_thread.run_sync(client.models.list)
    assert [model.id for model in models.data] == ["fake"]
    assert [request.path for request in server.requests] == [
        "/v1/chat/completions",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
    ]
    assert server.requests[0].body["messages"] == MESSAGES
    assert server.requests[0].headers["authorization"] == "Bearer any"


async def test_a_rate_limit_is_obeyed_by_a_client_that_retries(server: FakeOpenAIServer) -> None:
    server.next_faults += [RateLimit(retry_after_s=0.01), ErrorStatus(status=503)]
    with openai.OpenAI(base_url=server.url, api_key="any", max_retries=2) as client:
        assert await ask(client) == server.text
    assert len(server.requests) == 3


async def test_error_statuses_reach_the_client(
    server: FakeOpenAIServer, client: openai.OpenAI
) -> None:
    server.next_faults += [RateLimit(retry_after_s=2.5), RateLimit(retry_after_s=None)]
    with pytest.raises(openai.RateLimitError) as caught:
        await ask(client)
    assert caught.value.response.headers["retry-after"] == "2.5"
    with pytest.raises(openai.RateLimitError) as caught:
        await ask(client)
    assert "retry-after" not in caught.value.response.headers


async def test_a_truncated_stream_has_no_finish_reason(
    server: FakeOpenAIServer, client: openai.OpenAI
) -> None:
    server.next_faults.append(Truncate(after_chunks=2))
    assert await stream(client) == ("".join(server.pieces[:2]), None)


async def test_a_malformed_event_breaks_parsing(
    server: FakeOpenAIServer, client: openai.OpenAI
) -> None:
    server.next_faults.append(MalformedEvent(after_chunks=1))
    with pytest.raises(ValueError, match="Expecting value"):
        await stream(client)


async def test_an_error_event_raises(server: FakeOpenAIServer, client: openai.OpenAI) -> None:
    server.next_faults.append(ErrorEvent(after_chunks=1, message="oops"))
    with pytest.raises(openai.APIError, match="oops"):
        await stream(client)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_connection_dies_in_the_middle(
    is_stream: bool, server: FakeOpenAIServer, client: openai.OpenAI
) -> None:
    server.next_faults.append(DieMidStream(after_chunks=2))
    with pytest.raises((openai.APIConnectionError, httpx.ReadError, httpx.RemoteProtocolError)):
        await (stream(client) if is_stream else ask(client))
    assert await ask(client) == server.text


async def test_a_stall_is_the_clients_to_end(
    server: FakeOpenAIServer, client: openai.OpenAI
) -> None:
    server.next_faults.append(Stall(after_chunks=1))
    with pytest.raises((openai.APITimeoutError, httpx.ReadTimeout)):
        await stream(client.with_options(timeout=0.05))
    assert await ask(client) == server.text


async def test_a_short_stall_and_a_slow_start_end_well(
    server: FakeOpenAIServer, client: openai.OpenAI
) -> None:
    server.next_faults += [Stall(after_chunks=4, seconds=0.01), SlowStart(seconds=0.01), None]
    assert await stream(client) == (server.text, "stop")
    assert await ask(client) == server.text


async def test_nonsense_is_refused(server: FakeOpenAIServer) -> None:
    async with httpx.AsyncClient(base_url=server.url) as http:
        assert (await http.get("/nothing")).status_code == 404
        assert (await http.post("/completions", content=b"{")).status_code == 400
    server.next_faults.append(RateLimit())
    port = int(server.url.rsplit(":", 1)[1].split("/")[0])
    async with await trio.open_tcp_stream("127.0.0.1", port) as raw:
        await raw.send_all(b"no http at all\r\n\r\n")
        assert await raw.receive_some() == b""
    assert len(server.next_faults) == 1
