"""The openai client, unmodified: tools and reasoning in chats, and the Responses API."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import cast

import openai
import pytest
import trio
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.responses import FunctionToolParam
from pydantic import BaseModel

from support.chat_models import hermes, qwen
from support.live_server import LiveServer, live_server, wait_until
from triolet.errors import PoisonRequest
from triolet.testing.fake_engine import FakeEngine, Gate, Script

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODEL = "fake-model"
HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
PARAMETERS: dict[str, object] = {"type": "object", "properties": {"zone": {"type": "string"}}}
CHAT_TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "clock", "parameters": PARAMETERS},
}
TOOL: FunctionToolParam = {
    "type": "function",
    "name": "clock",
    "parameters": PARAMETERS,
    "strict": False,
}
TEXT = f"<think>\nhm\n</think>\n\nLet me see.\n{hermes('clock', zone='UTC')}"
PIECES = [TEXT[i : i + 5] for i in range(0, len(TEXT), 5)]


async def call(server: LiveServer, use: Callable[[openai.OpenAI], None]) -> None:
    """Use the blocking client in a thread, as most programs do."""

    def work() -> None:
        url = f"{server.url}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            use(client)

    await trio.to_thread.run_sync(work)


async def test_tools_and_reasoning_in_a_chat() -> None:
    def use(client: openai.OpenAI) -> None:
        whole = client.chat.completions.create(model=MODEL, messages=HI, tools=[CHAT_TOOL])
        with client.chat.completions.stream(
            model=MODEL,
            messages=HI,
            tools=[CHAT_TOOL],
            stream_options={"include_usage": True},
        ) as stream:
            final = stream.get_final_completion()
        assert final.usage == whole.usage
        for choice in (whole.choices[0], final.choices[0]):
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content == "Let me see."
            assert choice.message.tool_calls is not None
            (made,) = choice.message.tool_calls
            assert made.type == "function"
            assert made.function.name == "clock"
            assert json.loads(made.function.arguments) == {"zone": "UTC"}
        message = whole.choices[0].message
        assert message.model_extra is not None
        assert message.model_extra["reasoning_content"] == "hm"
        assert message.tool_calls is not None
        history: list[ChatCompletionMessageParam] = [
            *HI,
            cast("ChatCompletionMessageParam", message),  # clients send back what they got
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "noon"},
        ]
        client.chat.completions.create(
            model=MODEL,
            messages=history,
            tools=[CHAT_TOOL],
            tool_choice={"type": "function", "function": {"name": "clock"}},
        )

    async with live_server(engine=qwen(*PIECES)) as server:
        await call(server, use)


async def test_a_response_whole_and_streamed() -> None:
    def use(client: openai.OpenAI) -> None:
        whole = client.responses.create(model=MODEL, input="hi", tools=[TOOL])
        with client.responses.stream(model=MODEL, input="hi", tools=[TOOL]) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert final.usage == whole.usage
        for response in (whole, final):
            assert response.output_text == "Let me see."
            assert [item.type for item in response.output] == [
                "reasoning",
                "message",
                "function_call",
            ]
        made = whole.output[2]
        assert made.type == "function_call"
        client.responses.create(
            model=MODEL,
            previous_response_id=whole.id,
            input=[{"type": "function_call_output", "call_id": made.call_id, "output": "noon"}],
            tools=[TOOL],
        )
        count = client.responses.input_tokens.count(model=MODEL, input="hi", tools=[TOOL])
        assert whole.usage is not None
        assert count.input_tokens == whole.usage.input_tokens
        items = client.responses.input_items.list(whole.id)
        assert [item.type for item in items] == ["message"]
        assert client.responses.retrieve(whole.id).output_text == whole.output_text
        client.responses.delete(whole.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(whole.id)

    async with live_server(engine=qwen(*PIECES)) as server:
        await call(server, use)


class City(BaseModel):
    """A structured answer."""

    name: str


async def test_parsed_answers() -> None:
    def use(client: openai.OpenAI) -> None:
        response = client.responses.parse(model=MODEL, input="hi", text_format=City)
        assert response.output_parsed == City(name="Prague")
        chat = client.chat.completions.parse(model=MODEL, messages=HI, response_format=City)
        assert chat.choices[0].message.parsed == City(name="Prague")

    async with live_server(Script(pieces=('{"name": ', '"Prague"}'))) as server:
        await call(server, use)


async def test_background_responses() -> None:
    gate = Gate()

    def use(client: openai.OpenAI) -> None:
        first = client.responses.create(model=MODEL, input="hi", background=True)
        assert first.status in ("queued", "in_progress")
        assert client.responses.cancel(first.id).status == "cancelled"
        for _ in range(4):
            gate.release()
        with client.responses.create(
            model=MODEL, input="hi", background=True, stream=True
        ) as stream:
            events = list(stream)
        assert events[-1].type == "response.completed"
        again = list(
            client.responses.retrieve(events[-1].response.id, stream=True, starting_after=2)
        )
        assert [e.sequence_number for e in again] == [e.sequence_number for e in events[3:]]

    async with live_server(engine=FakeEngine(gate=gate)) as server:
        await call(server, use)
        await wait_until(lambda: not server.engine.live)


async def test_failure_in_mid_stream_is_an_event() -> None:
    def use(client: openai.OpenAI) -> None:
        events = list(client.responses.create(model=MODEL, input="hi", stream=True))
        assert events[-1].type == "response.failed"
        assert events[-1].response.error is not None
        assert events[-1].response.error.message == "it kills the runner"

    script = Script(error=PoisonRequest("it kills the runner"), error_after=2)
    async with live_server(script) as server:
        await call(server, use)


async def test_the_async_client_on_trio() -> None:
    async with live_server(engine=qwen(*PIECES)) as server:
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            stream = await client.responses.create(
                model=MODEL, input="hi", tools=[TOOL], stream=True
            )
            kinds = [event.type async for event in stream]
    assert kinds[-1] == "response.completed"
