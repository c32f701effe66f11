"""The anthropic client, unmodified, against the real server on loopback."""

from __future__ import annotations

from collections.abc import Callable

import anthropic
import pytest
import trio

from support.chat_models import hermes, qwen
from support.live_server import LiveServer, live_server, wait_until
from triolet.errors import PoisonRequest
from triolet.testing.fake_engine import FakeEngine, Gate, Script

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODEL = "fake-model"
CLOCK: anthropic.types.ToolParam = {
    "name": "clock",
    "description": "The time",
    "input_schema": {"type": "object", "properties": {"zone": {"type": "string"}}},
}
HI: list[anthropic.types.MessageParam] = [{"role": "user", "content": "hi"}]


async def call(
    server: LiveServer, use: Callable[[anthropic.Anthropic], None], **options: str
) -> None:
    """Use the blocking client in a thread, as most programs do."""

    def work() -> None:
        settings = options or {"api_key": "none"}
        with anthropic.Anthropic(base_url=server.url, max_retries=0, **settings) as client:  # type: ignore[arg-type]  # strings
            use(client)

    await trio.to_thread.run_sync(work)


async def test_text_whole_streamed_and_counted() -> None:
    def use(client: anthropic.Anthropic) -> None:
        message = client.messages.create(model=MODEL, max_tokens=99, messages=HI, system="Be")
        assert [block.type for block in message.content] == ["text"]
        with client.messages.stream(model=MODEL, max_tokens=99, messages=HI, system="Be") as stream:
            assert "".join(stream.text_stream) == "Hello, world!"
            final = stream.get_final_message()
        assert [block.type for block in final.content] == ["text"]
        assert (final.stop_reason, final.usage) == (message.stop_reason, message.usage)
        count = client.messages.count_tokens(model=MODEL, messages=HI, system="Be")
        assert count.input_tokens == message.usage.input_tokens

    async with live_server() as server:
        await call(server, use)


async def test_tools_and_thinking() -> None:
    def use(client: anthropic.Anthropic) -> None:
        whole = client.messages.create(model=MODEL, max_tokens=999, messages=HI, tools=[CLOCK])
        with client.messages.stream(
            model=MODEL, max_tokens=999, messages=HI, tools=[CLOCK]
        ) as stream:
            final = stream.get_final_message()
        for message in (whole, final):
            thought, text, use = message.content
            assert thought.type == "thinking"
            assert thought.thinking == "hm"
            assert text.type == "text"
            assert text.text == "Let me see."
            assert use.type == "tool_use"
            assert (use.name, use.input) == ("clock", {"zone": "UTC"})
            assert message.stop_reason == "tool_use"
        history: list[anthropic.types.MessageParam] = [
            *HI,
            {"role": "assistant", "content": whole.content},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "x", "content": "noon"}],
            },
        ]
        client.messages.create(model=MODEL, max_tokens=999, messages=history, tools=[CLOCK])

    text = f"<think>\nhm\n</think>\n\nLet me see.\n{hermes('clock', zone='UTC')}"
    pieces = [text[i : i + 5] for i in range(0, len(text), 5)]
    async with live_server(engine=qwen(*pieces)) as server:
        await call(server, use)


async def test_keys_models_and_errors() -> None:
    def use(client: anthropic.Anthropic) -> None:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).display_name == MODEL
        with pytest.raises(anthropic.NotFoundError, match="claude"):
            client.messages.create(model="claude", max_tokens=9, messages=HI)
        with pytest.raises(anthropic.BadRequestError, match="stop_sequences"):
            client.messages.create(
                model=MODEL, max_tokens=9, messages=HI, stop_sequences=["x"] * 99
            )

    def locked_out(client: anthropic.Anthropic) -> None:
        with pytest.raises(anthropic.AuthenticationError):
            client.models.list()

    async with live_server(api_keys=("k",)) as server:
        await call(server, use, api_key="k")
        await call(server, use, auth_token="k")
        await call(server, locked_out, api_key="wrong")


async def test_failure_in_mid_stream_raises_in_the_client() -> None:
    def use(client: anthropic.Anthropic) -> None:
        with pytest.raises(anthropic.APIError, match="it kills the runner"):
            with client.messages.stream(model=MODEL, max_tokens=9, messages=HI) as stream:
                stream.until_done()

    script = Script(error=PoisonRequest("it kills the runner"), error_after=2)
    async with live_server(script) as server:
        await call(server, use)


async def test_leaving_the_async_client_ends_the_request() -> None:
    async with live_server(engine=FakeEngine(gate=Gate())) as server:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="x") as client:
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    await client.messages.create(model=MODEL, max_tokens=9, messages=HI)

                nursery.start_soon(ask)
                await wait_until(lambda: server.engine.live)
                nursery.cancel_scope.cancel()
            await wait_until(lambda: not server.engine.live)
        assert server.engine.requests[0].state == "ended"
