"""/v1/responses over a fake engine: kept, deleted, cancelled, made in the background."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from support.chat_models import hermes, qwen
from support.outputs import named_events
from triolet.config import ServerConfig
from triolet.engine.client import PromptOptions
from triolet.errors import PoisonRequest, QueueFull
from triolet.request import FinishReason
from triolet.server.api import response_store
from triolet.server.api.app import Api
from triolet.testing.fake_engine import FakeEngine, Gate, Script
from triolet.testing.http import AsgiClient

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}}


@asynccontextmanager
async def client_of(engine: FakeEngine, **settings: object) -> AsyncGenerator[AsgiClient]:
    async with engine, trio.open_nursery() as nursery:
        app = Api(engine, ServerConfig(**settings))  # type: ignore[arg-type]  # any setting
        await nursery.start(app.run)
        yield AsgiClient(app)
        nursery.cancel_scope.cancel()


async def made(client: AsgiClient, **fields: object) -> dict[str, Any]:
    reply = await client.post(PATH, {"input": "hi", **fields})
    assert reply.status == 200, reply.body
    body: dict[str, Any] = reply.json()
    return body


async def prompt_text(engine: FakeEngine) -> str:
    request = engine.requests[-1]
    options = request.options["options"]
    assert options is None or isinstance(options, PromptOptions)
    token_ids = await engine.tokenize(request.prompt, options)
    return engine.tokenizer.decode(token_ids, skip_special_tokens=False)


async def test_a_response_is_kept_until_it_is_deleted() -> None:
    async with client_of(FakeEngine()) as client:
        response = await made(client, metadata={"a": "b"}, temperature=0.5)
        assert (response["status"], response["metadata"]) == ("completed", {"a": "b"})
        assert response["temperature"] == 0.5
        path = f"{PATH}/{response['id']}"
        assert (await client.get(path)).json() == response
        deleted = (await client.request("DELETE", path)).json()
        assert deleted == {"id": response["id"], "object": "response", "deleted": True}
        for method in ("GET", "DELETE"):
            reply = await client.request(method, path)
            assert (reply.status, reply.json()["error"]["code"]) == (404, "response_not_found")
        unkept = await made(client, store=False)
        assert (await client.get(f"{PATH}/{unkept['id']}")).status == 404


async def test_a_streamed_response_is_kept_too() -> None:
    async with client_of(qwen("<think>hm</think>", "Hi", hermes("clock"))) as client:
        body = {"input": "hi", "stream": True, "tools": [TOOL]}
        async with client.stream(PATH, body) as stream:
            text = (await stream.read()).decode()
        assert "[DONE]" not in text
        response = named_events(text)[-1]["response"]
        kinds = [item["type"] for item in response["output"]]
        assert kinds == ["reasoning", "message", "function_call"]
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 17
        assert (await client.get(f"{PATH}/{response['id']}")).json() == response


async def test_a_conversation_goes_on() -> None:
    engine = qwen("Let me see.", hermes("clock"))
    async with client_of(engine) as client:
        first = await made(client, instructions="Old", tools=[TOOL])
        call_id = first["output"][-1]["call_id"]
        output = {"type": "function_call_output", "call_id": call_id, "output": "noon"}
        await made(client, input=[output], previous_response_id=first["id"], instructions="New")
        text = await prompt_text(engine)
        assert "Old" not in text
        where = [text.index(part) for part in ("New", "hi", "Let me see.", '"clock"', "noon")]
        assert where == sorted(where)
        reply = await client.post(PATH, {"input": "x", "previous_response_id": "resp_none"})
        assert reply.status == 404
        assert reply.json()["error"]["param"] == "previous_response_id"


async def test_input_items_come_in_pages() -> None:
    async with client_of(FakeEngine()) as client:
        items = [{"role": "user", "content": str(i)} for i in range(5)]
        response = await made(client, input=items)
        path = f"{PATH}/{response['id']}/input_items"
        page = (await client.get(f"{path}?order=asc&limit=2")).json()
        assert [item["content"] for item in page["data"]] == ["0", "1"]
        assert page["has_more"]
        page = (await client.get(f"{path}?order=asc&limit=3&after={page['last_id']}")).json()
        assert [item["content"] for item in page["data"]] == ["2", "3", "4"]
        assert not page["has_more"]
        assert (await client.get(path)).json()["data"][0]["content"] == "4"
        for query, param in (("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order")):
            reply = await client.get(f"{path}?{query}")
            assert (reply.status, reply.json()["error"]["param"]) == (400, param)


async def test_nobody_sees_the_responses_of_another_key() -> None:
    async with client_of(FakeEngine(), api_keys=("a", "b")) as client:
        a, b = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}
        response = (await client.post(PATH, {"input": "hi"}, a)).json()
        path = f"{PATH}/{response['id']}"
        assert (await client.get(path, b)).status == 404
        body = {"input": "x", "previous_response_id": response["id"]}
        assert (await client.post(PATH, body, b)).status == 404
        assert (await client.request("DELETE", path, headers=b)).status == 404
        assert (await client.get(path, a)).status == 200


async def test_a_cut_response_is_incomplete() -> None:
    async with client_of(FakeEngine(Script(finish_reason=FinishReason.LENGTH))) as client:
        response = await made(client)
        assert response["status"] == "incomplete"
        assert response["output"][0]["status"] == "incomplete"


async def test_failures() -> None:
    async with client_of(FakeEngine(Script(admission_error=QueueFull("full")))) as client:
        reply = await client.post(PATH, {"input": "hi", "stream": True})
        assert (reply.status, reply.json()["error"]["code"]) == (429, "queue_full")
    script = Script(error=PoisonRequest("it kills the runner"), error_after=1)
    async with client_of(FakeEngine(script)) as client:
        async with client.stream(PATH, {"input": "hi", "stream": True}) as stream:
            events = named_events((await stream.read()).decode())
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["message"] == "it kills the runner"
        background = await made(client, background=True)
        await wait_all_tasks_blocked()
        failed = (await client.get(f"{PATH}/{background['id']}")).json()
        assert failed["status"] == "failed"
        reply = await client.post(PATH, {"input": "x", "previous_response_id": background["id"]})
        assert reply.status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"temperature": 7}, "temperature"),
        ({"input": "x" * 5000}, "input"),
        ({"model": "other"}, "model"),
    ],
)
async def test_faults_name_the_field(fields: dict[str, object], param: str) -> None:
    async with client_of(FakeEngine()) as client:
        reply = await client.post(PATH, {"input": "hi", **fields})
        assert reply.json()["error"]["param"] == param


async def test_a_background_response_outlives_its_request() -> None:
    gate = Gate()
    async with client_of(FakeEngine(gate=gate)) as client:
        response = await made(client, background=True)
        assert response["status"] in ("queued", "in_progress")
        path = f"{PATH}/{response['id']}"
        await wait_all_tasks_blocked()
        assert (await client.get(path)).json()["status"] == "in_progress"
        kept = (await client.get("/debug/tree")).json()["responses"]
        assert (kept["kept"], kept["in_background"]) == (1, 1)
        assert kept["bytes"] > 0
        gate.release(4)
        await wait_all_tasks_blocked()
        done = (await client.get(path)).json()
        assert done["status"] == "completed"
        assert done["output"][0]["content"][0]["text"] == "Hello, world!"
        late = await client.request("POST", f"{path}/cancel")
        assert (late.status, late.json()["error"]["param"]) == (400, "response_id")


async def test_a_background_response_is_cancelled() -> None:
    engine = FakeEngine(gate=Gate())
    async with client_of(engine) as client:
        response = await made(client, background=True)
        await wait_all_tasks_blocked()
        path = f"{PATH}/{response['id']}"
        for _ in range(2):
            reply = await client.request("POST", f"{path}/cancel")
            assert (reply.status, reply.json()["status"]) == (200, "cancelled")
            await wait_all_tasks_blocked()
        assert engine.requests[0].state == "ended"
        assert (await client.get(path)).json()["status"] == "cancelled"
        other = await made(client, background=True)
        await wait_all_tasks_blocked()
        await client.request("DELETE", f"{PATH}/{other['id']}")
        await wait_all_tasks_blocked()
        assert engine.live == []


async def test_events_of_a_background_response_can_be_read_again() -> None:
    gate = Gate()
    async with client_of(FakeEngine(gate=gate)) as client:
        async with client.stream(
            PATH, {"input": "hi", "background": True, "stream": True}
        ) as stream:
            response_id = "resp_" + stream.headers["x-triolet-request-id"]
            gate.release(1)
            await wait_all_tasks_blocked()
            stream.disconnect()
        gate.release(3)
        await wait_all_tasks_blocked()
        listed = client._app.services.responses  # type: ignore[attr-defined]
        (response_id,) = listed._responses
        whole = (await client.get(f"{PATH}/{response_id}?stream=true")).body.decode()
        events = named_events(whole)
        assert events[-1]["type"] == "response.completed"
        rest = await client.get(f"{PATH}/{response_id}?stream=true&starting_after=3")
        assert named_events(rest.body.decode()) == events[4:]
        gate.release(4)
        plain = await made(client)
        reply = await client.get(f"{PATH}/{plain['id']}?stream=true")
        assert (reply.status, reply.json()["error"]["param"]) == (400, "stream")


async def test_background_needs_somebody_who_owns_it() -> None:
    async with FakeEngine() as engine:
        client = AsgiClient(Api(engine, ServerConfig()))
        reply = await client.post(PATH, {"input": "hi", "background": True})
        assert (reply.status, reply.json()["error"]["code"]) == (503, "not_serving")


async def test_the_store_is_bounded_in_number_bytes_and_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_store, "RESPONSES_MAX", 3)
    async with client_of(FakeEngine()) as client:
        ids = [(await made(client))["id"] for _ in range(5)]
        kept = [(await client.get(f"{PATH}/{i}")).status == 200 for i in ids]
        assert kept == [False, False, True, True, True]
        size = len((await client.get(f"{PATH}/{ids[-1]}")).body)
        monkeypatch.setattr(response_store, "BYTES_MAX", 2.5 * size)
        last = (await made(client))["id"]
        kept = [(await client.get(f"{PATH}/{i}")).status == 200 for i in (*ids, last)]
        assert kept[-1]
        assert sum(kept) == 2
        await trio.sleep(response_store.TTL_S + 1)
        assert (await client.get(f"{PATH}/{last}")).status == 404


async def test_a_request_as_codex_sends_it() -> None:
    """Shape recorded from Codex CLI 0.171, texts shortened."""
    engine = qwen("Done.")
    body = {
        "model": "fake-model",
        "instructions": "You are Codex.",
        "input": [
            {
                "type": "message",
                "role": role,
                "content": [{"type": "input_text", "text": text}],
            }
            for role, text in (
                ("developer", "sandbox"),
                ("developer", "skills"),
                ("user", "environment"),
                ("user", "task"),
            )
        ],
        "tools": [
            {**TOOL, "strict": False, "description": "The time"},
            {"type": "namespace", "name": "mcp", "description": "", "tools": []},
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"x": "y"},
        "text": {"verbosity": "low"},
    }
    async with client_of(engine) as client:
        async with client.stream(PATH, body) as stream:
            assert stream.status == 200
            ignored = stream.headers["x-triolet-ignored"].split(", ")
            events = named_events((await stream.read()).decode())
        text = await prompt_text(engine)
    assert events[-1]["type"] == "response.completed"
    assert ignored == ["tools.namespace", "tools.web_search", "text.verbosity", "reasoning.summary"]
    assert "system\nYou are Codex.\n\nsandbox\n\nskills<|im_end|>" in text
