"""The real engine on a fake model behind the real server: one client's end is one request's."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio

from support.live_server import PATIENCE_S, STREAM, WHOLE, RawClient, post, wait_until
from triolet.config import EngineConfig, ServerConfig
from triolet.engine.engine import Engine
from triolet.engine.open_engine import open_engine_from_parts
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.runner.transport import ThreadTransport
from triolet.runner.worker import WorkerSpec
from triolet.server.app import create_app
from triolet.server.http_server import HttpServer
from triolet.server.listeners import open_listeners
from triolet.testing.engines import fake_parts, open_fake_engine
from triolet.testing.fake_runner import expected_tokens, fake_facts

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

Served = tuple[Engine, int]


@asynccontextmanager
async def served(step_s: float = 0.001, **settings: object) -> AsyncGenerator[Served]:
    config = ServerConfig(port=0, write_stall_timeout_s=0.2)
    async with open_fake_engine(step_time=step_s, **settings) as house:  # type: ignore[arg-type]  # any setting
        http = HttpServer(create_app(house.engine, config).serve_asgi, config)
        listening = await open_listeners(config)
        async with trio.open_nursery() as nursery:
            await nursery.start(http.run, listening.listeners)
            yield house.engine, int(listening.url.rpartition(":")[2])
            nursery.cancel_scope.cancel()


async def connect(port: int) -> RawClient:
    return RawClient(await trio.open_tcp_stream("127.0.0.1", port))


def no_work(engine: Engine) -> bool:
    now = engine.statistics()
    return now.requests_live == 0 and now.blocks_used == 0


async def test_stream_joins_to_the_whole_answer_with_every_option() -> None:
    request = {
        "prompt": ["first prompt", "second"],
        "n": 2,
        "seed": 5,
        "temperature": 0.7,
        "max_tokens": 24,
        "logprobs": 3,
        "echo": True,
        "stop": ["zz"],
        "ignore_eos": True,
    }
    async with served() as (engine, port), await connect(port) as client:
        await client.send(post(request))
        whole = (await client.answer()).json()
        streamed = {**request, "stream": True, "stream_options": {"include_usage": True}}
        await client.send(post(streamed, more="Connection: close\r\n"))
        raw = await client.read_to_end()
        events = [part.split(b"\n\n")[0] for part in raw.split(b"data: ")[1:]]
        assert events[-1] == b"[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        assert chunks[-1]["usage"] == whole["usage"]
        for choice in whole["choices"]:
            own = [
                c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == choice["index"]
            ]
            assert "".join(c["text"] for c in own) == choice["text"]
            assert own[-1]["finish_reason"] == choice["finish_reason"]
            for name, values in choice["logprobs"].items():
                assert [v for c in own for v in c["logprobs"][name]] == values
        assert no_work(engine)


async def test_300_clients_that_leave_at_random_leave_no_block_in_use() -> None:
    rng = random.Random(11)
    async with served(max_num_seqs=8, kv_cache_tokens=4096) as (engine, port):

        async def visit() -> None:
            body = {
                "prompt": "p" * rng.randint(1, 300),
                "max_tokens": rng.randint(1, 200),
                "n": rng.choice((1, 1, 3)),
                "stream": rng.random() < 0.6,
                "ignore_eos": True,
            }
            async with await connect(port) as client:
                await client.send(post(body))
                await trio.sleep(rng.random() * 0.1)

        peak = 0

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, engine.statistics().blocks_used)
                await trio.sleep(0.001)

        async with trio.open_nursery() as watching:
            watching.start_soon(watch)
            for _ in range(6):
                async with trio.open_nursery() as nursery:
                    for _ in range(50):
                        nursery.start_soon(visit)
            watching.cancel_scope.cancel()
        assert peak > 0
        await wait_until(lambda: no_work(engine))
        async with await connect(port) as client:
            await client.send(post(WHOLE))
            assert (await client.answer()).status == 200


async def test_a_client_that_never_reads_is_ended_and_others_go_on() -> None:
    async with served(step_s=0.0, max_model_len=200_000) as (engine, port):
        async with await connect(port) as silent, await connect(port) as other:
            await silent.send(post({**STREAM, "max_tokens": 150_000, "ignore_eos": True}))
            await wait_until(lambda: engine.statistics().requests_live == 1)
            await other.send(post({**WHOLE, "max_tokens": 8, "ignore_eos": True}))
            assert (await other.answer()).status == 200
            with trio.fail_after(3 * PATIENCE_S):
                while not no_work(engine):
                    await trio.sleep(0.01)


async def test_too_much_work_is_429_and_too_long_a_prompt_is_400() -> None:
    async with served(step_s=0.05, max_live_requests=2) as (_, port):
        clients = [await connect(port) for _ in range(3)]
        for client in clients[:2]:
            await client.send(post({**STREAM, "max_tokens": 100, "ignore_eos": True}))
            await client.read_until(b'"text"')
        await clients[2].send(post(WHOLE))
        full = await clients[2].answer()
        assert (full.status, full.json()["error"]["code"]) == (429, "queue_full")
        assert int(full.headers["retry-after"]) >= 1
        for client in clients[:2]:
            await trio.aclose_forcefully(client.stream)
        await clients[2].send(post({"prompt": "x" * 100_000}))
        long = await clients[2].answer()
        assert (long.status, long.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "maximum context length" in long.json()["error"]["message"]
        await trio.aclose_forcefully(clients[2].stream)


async def test_more_prompts_than_can_ever_be_taken_are_400() -> None:
    async with served(max_live_requests=2) as (engine, port), await connect(port) as client:
        await client.send(post({"prompt": ["a", "b", "c"], "max_tokens": 2}))
        answer = await client.answer()
        assert answer.status == 400
        assert answer.json()["error"]["param"] == "prompt"
        assert no_work(engine)


async def test_deadlines_are_504_before_and_length_after_the_first_token() -> None:
    body = {**WHOLE, "max_tokens": 1000, "ignore_eos": True}
    async with served(step_s=0.05) as (_, port), await connect(port) as client:
        await client.send(post({**body, "deadline_ms": 1}))
        early = await client.answer()
        assert (early.status, early.json()["error"]["code"]) == (504, "deadline_exceeded")
        await client.send(post({**body, "deadline_ms": 300}))
        choice = (await client.answer()).json()["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "timeout")
        assert choice["text"]


async def test_a_chunk_is_on_the_wire_before_the_step_after_the_next_is_released() -> None:
    """Nothing holds a token back: with step i + 2 shut, chunk i has arrived."""
    permits = threading.Semaphore(0)
    tokens = 12

    def wait_for_permit(batch: ScheduledBatch) -> None:
        assert permits.acquire(timeout=PATIENCE_S)

    config = EngineConfig.of("fake")
    facts = fake_facts()
    spec = WorkerSpec(
        config,
        facts,
        "triolet.testing.fake_runner:FakeRunner",
        {"before_step": wait_for_permit},
    )
    server = ServerConfig(port=0)
    async with open_engine_from_parts(config, fake_parts(facts, ThreadTransport(spec))) as engine:
        http = HttpServer(create_app(engine, server).serve_asgi, server)
        listening = await open_listeners(server)
        async with trio.open_nursery() as nursery:
            await nursery.start(http.run, listening.listeners)
            port = int(listening.url.rpartition(":")[2])
            async with await connect(port) as client:
                body = {"prompt": "hello", "max_tokens": tokens, "stream": True, "temperature": 0}
                await client.send(post(body))
                expected = bytes(expected_tokens(list(b"hello"), tokens)).decode()
                for i in range(1, tokens + 1):
                    permits.release()  # step i may end; step i + 1 waits
                    with trio.fail_after(PATIENCE_S):
                        data = await client.read_until(b"\n\n")
                    event = json.loads(data.split(b"data: ")[-1])
                    assert event["choices"][0]["text"] == expected[i - 1]
                assert event["choices"][0]["finish_reason"] == "length"
            nursery.cancel_scope.cancel()
