"""The openai client, unmodified, against the real server on loopback."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import openai
import pytest
import trio
from openai.types.chat import ChatCompletionMessageParam

from support.live_server import LiveServer, live_server, wait_until
from triolet.errors import PoisonRequest, QueueFull
from triolet.testing.fake_engine import Gate, Script

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

T = TypeVar("T")
MODEL = "fake-model"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


async def call(
    server: LiveServer, use: Callable[[openai.OpenAI], T], key: str = "none", retries: int = 0
) -> T:
    """Use the blocking client in a thread, as most programs do."""

    def work() -> T:
        url = f"{server.url}/v1"
        with openai.OpenAI(base_url=url, api_key=key, max_retries=retries) as client:
            return use(client)

    return await trio.to_thread.run_sync(work)


async def test_chat_streamed_joins_to_the_whole_answer() -> None:
    def use(client: openai.OpenAI) -> None:
        whole = client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert whole.choices[0].message.content == "Hello, world!"
        text, usage, finish = "", None, None
        for chunk in client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        ):
            usage = chunk.usage or usage
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
                finish = chunk.choices[0].finish_reason or finish
        assert (text, finish) == ("Hello, world!", "stop")
        assert usage == whole.usage

    async with live_server() as server:
        await call(server, use)
        assert server.http.tree()["accepted"] == 1  # the client kept its connection


async def test_models_completions_and_logprobs() -> None:
    def use(client: openai.OpenAI) -> None:
        assert [model.id for model in client.models.list().data] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL
        got = client.completions.create(
            model=MODEL, prompt=[[104, 105]], echo=True, logprobs=1, max_tokens=1
        )
        assert got.choices[0].text == "hiH"
        assert got.choices[0].logprobs is not None
        assert got.choices[0].logprobs.tokens == ["h", "i", "H"]
        chat = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2
        )
        assert chat.choices[0].logprobs is not None
        assert chat.choices[0].logprobs.content is not None
        assert len(chat.choices[0].logprobs.content[0].top_logprobs) == 2

    async with live_server() as server:
        await call(server, use)


async def test_faults_arrive_as_the_clients_own_errors() -> None:
    def faulty(client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as bad:
            client.completions.create(model=MODEL, prompt="x", temperature=9)
        assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
        with pytest.raises(openai.NotFoundError) as missing:
            client.completions.create(model="other", prompt="x")
        assert missing.value.code == "model_not_found"

    def locked_out(client: openai.OpenAI) -> None:
        with pytest.raises(openai.AuthenticationError):
            client.models.list()

    async with live_server(api_keys=("k",)) as server:
        await call(server, faulty, key="k")
        await call(server, locked_out, key="wrong")


async def test_failure_in_mid_stream_raises_in_the_client() -> None:
    def use(client: openai.OpenAI) -> list[str]:
        texts: list[str] = []
        with pytest.raises(openai.APIError, match="it kills the runner"):
            for chunk in client.completions.create(model=MODEL, prompt="x", stream=True):
                texts.append(chunk.choices[0].text)  # noqa: PERF401  kept when it raises
        return texts

    script = Script(error=PoisonRequest("it kills the runner"), error_after=2)
    async with live_server(script) as server:
        assert await call(server, use) == ["Hello", ", "]


async def test_client_repeats_a_full_queue_and_not_a_poison() -> None:
    def full(client: openai.OpenAI) -> None:
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model=MODEL, prompt="x")

    def poison(client: openai.OpenAI) -> None:
        with pytest.raises(openai.InternalServerError):
            client.completions.create(model=MODEL, prompt="x")

    script = Script(admission_error=QueueFull("full", retry_after_s=0.01))
    async with live_server(script) as server:
        await call(server, full, retries=1)
        assert len(server.engine.requests) == 2
        server.engine.script = Script(admission_error=PoisonRequest("poison"))
        await call(server, poison, retries=1)
        assert len(server.engine.requests) == 3


async def test_closing_a_stream_ends_the_request() -> None:
    def use(client: openai.OpenAI) -> str:
        with client.completions.create(model=MODEL, prompt="x", stream=True) as stream:
            return next(iter(stream)).choices[0].text

    gate = Gate()
    gate.release()
    async with live_server(gate=gate) as server:
        assert await call(server, use) == "Hello"
        await wait_until(lambda: server.engine.requests and not server.engine.live)
        assert server.engine.requests[0].state == "ended"


async def test_cancelling_a_call_of_the_async_client_ends_the_request() -> None:
    async with live_server(gate=Gate()) as server:
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    await client.completions.create(model=MODEL, prompt="x")

                nursery.start_soon(ask)
                await wait_until(lambda: server.engine.live)
                nursery.cancel_scope.cancel()
            await wait_until(lambda: not server.engine.live)
        assert server.engine.requests[0].state == "ended"
