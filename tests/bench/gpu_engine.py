"""Stages of the GPU check that look at the whole engine."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import attrs
import h11
import orjson
import torch
import trio

from bench import gpu_model
from bench.gpu_kernels import Bench
from bench.gpu_report import Report
from triolet.config import EngineConfig, ServerConfig
from triolet.engine.offload import ThreadOffload
from triolet.engine.open_engine import EngineParts, open_engine_from_parts
from triolet.messages.scheduler_to_runner import ScheduledBatch, ScheduledSequence, SequenceState
from triolet.request import SequenceId
from triolet.runner.model_runner import ModelRunner
from triolet.runner.transport import ThreadTransport
from triolet.runner.worker import WorkerSpec
from triolet.sampling_params import SamplingParams
from triolet.server.app import create_app
from triolet.server.http_server import HttpServer
from triolet.server.listeners import open_listeners
from triolet.tokenizer.byte_tokenizer import ByteTokenizer

CONTEXT = 1024
_WARM_STEPS = 2
"""Decode steps before the clock starts."""


def settings(bench: Bench, max_num_seqs: int, *, eager: bool = False) -> EngineConfig:
    numbers: dict[str, Any] = {
        "device": str(bench.ops.device), "enforce_eager": eager, "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": 64 if bench.dry_run else 8192, "max_model_len": 8448,
    }  # fmt: skip
    if bench.dry_run:
        numbers |= {
            "kv_cache_tokens": 2048,
            "max_model_len": 128,
            "dtype": "float32",
            "kernels": "reference",
        }
    return EngineConfig.of("random", **numbers)


def measure_decode(bench: Bench, report: Report) -> None:
    """A decode step: operation by operation, captured, and the time its bytes take to read."""
    shape = "tiny" if bench.dry_run else "8b"
    sizes = (1, 4) if bench.dry_run else (1, 8, 64, 256)
    for eager in (True, False):
        config = settings(bench, max(sizes), eager=eager)
        runner = gpu_model.make_backend(config, gpu_model.facts_of(shape), fake=bench.dry_run)
        info = runner.load(lambda _: None)
        context, steps = (20, 4) if bench.dry_run else (CONTEXT, 30)
        for size in sizes:
            if size * (context + steps + info.block_size) > info.num_blocks * info.block_size:
                report.errors.append(("decode", f"{size} sequences do not fit the KV cache"))
                continue
            ms = _decode_ms(runner, config, size, context, steps)
            moved = gpu_model.weight_bytes(shape, 2) + gpu_model.kv_bytes(shape, size * context, 2)
            floor = moved / bench.ceilings["copy GB/s"] / 1e6
            kind = "eager" if eager else "graph"
            report.add("decode", f"{shape}, {size} sequences, {kind}", ms, "ms")
            if not eager:
                report.add("decode", f"{shape}, {size} sequences, floor", floor, "ms")
            if size == 1 and not eager:
                report.at_most(
                    "captured decode step / floor, 1 sequence", ms / floor, 1.25, speed=True
                )
        runner.close()


def _decode_ms(
    runner: ModelRunner, config: EngineConfig, size: int, context: int, steps: int
) -> float:
    """Milliseconds per decode step, two in flight, after a prefill of every sequence."""
    _prefill(runner, config, size, context, steps)
    for step in range(steps):
        rows = [
            ScheduledSequence(SequenceId(i), context + step, 1, ([],), True) for i in range(size)
        ]
        runner.launch(ScheduledBatch(1, 1 + step, [], rows, []))
        if step == _WARM_STEPS:
            start = time.perf_counter()
        if step:
            runner.collect()
    runner.collect()
    elapsed = time.perf_counter() - start
    runner.launch(ScheduledBatch(1, steps + 1, [], [], [SequenceId(i) for i in range(size)]))
    runner.collect()
    return elapsed * 1e3 / (steps - _WARM_STEPS)


def _prefill(
    runner: ModelRunner, config: EngineConfig, size: int, context: int, steps: int
) -> None:
    """Compute the contexts, as many sequences at a time as a step has room for."""
    per_sequence = -(-(context + steps + 1) // config.cache.block_size)
    at_once = max(1, config.scheduler.max_num_batched_tokens // context)
    sampling = SamplingParams(temperature=0.0, seed=0)
    for first in range(0, size, at_once):
        new: list[SequenceState] = []
        rows: list[ScheduledSequence] = []
        for i in range(first, min(first + at_once, size)):
            name = SequenceId(i)
            tokens = [1 + (i + j) % 200 for j in range(context)]
            new.append(SequenceState(name, tokens, context, sampling, 0, ()))
            blocks = list(range(i * per_sequence, (i + 1) * per_sequence))
            rows.append(ScheduledSequence(name, 0, context, (blocks,), True))
        runner.launch(ScheduledBatch(1, 0, new, rows, []))
        assert not runner.collect().errors


@attrs.frozen
class Served:
    """One streamed answer: seconds to its first event, and between events."""

    first_s: float
    gaps_s: list[float]
    events: int


async def _stream(port: int, body: dict[str, Any], stop_after: int | None = None) -> Served:
    """Post a streaming completion over a socket; leave after some events if told so."""
    connection = h11.Connection(h11.CLIENT)
    payload = orjson.dumps(body)
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        request = h11.Request(
            method="POST", target="/v1/completions",
            headers=[("host", "x"), ("content-type", "application/json"), ("content-length", str(len(payload)))],
        )  # fmt: skip
        start = time.perf_counter()
        await stream.send_all(
            (connection.send(request) or b"")
            + (connection.send(h11.Data(data=payload)) or b"")
            + (connection.send(h11.EndOfMessage()) or b"")
        )
        stamps: list[float] = []
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Response):
                assert event.status_code == 200, event
            elif isinstance(event, h11.Data):
                stamps += [time.perf_counter()] * bytes(event.data).count(b"data: ")
                if stop_after is not None and len(stamps) >= stop_after:
                    break
            elif isinstance(event, h11.EndOfMessage):
                break
    gaps = [b - a for a, b in itertools.pairwise(stamps)]
    return Served(stamps[0] - start, gaps, len(stamps))


def serve(bench: Bench, report: Report) -> None:
    """The server on loopback under load, and what a client that leaves gives back."""
    trio.run(_serve, bench, report)


async def _serve(bench: Bench, report: Report) -> None:
    shape, count, length, wanted = ("tiny", 4, 20, 8) if bench.dry_run else ("1b", 64, 512, 128)
    tokenizer = ByteTokenizer()
    facts = gpu_model.facts_of(shape, tokenizer.vocab_size)
    config = settings(bench, 64 if not bench.dry_run else 4)
    spec = WorkerSpec(
        config, facts, backend="bench.gpu_model:make_backend", options={"fake": bench.dry_run}
    )
    parts = EngineParts(
        facts=facts, tokenizer=tokenizer, transport=ThreadTransport(spec),
        offload=ThreadOffload(4), rng=random.Random(0), id_prefix="gpu", secret=b"gpu",
    )  # fmt: skip
    server = ServerConfig(port=0)
    async with open_engine_from_parts(config, parts) as engine:
        app = create_app(engine, server)
        http = HttpServer(app.serve_asgi, server)
        listening = await open_listeners(server)
        async with trio.open_nursery() as nursery:
            await nursery.start(app.api.run)
            await nursery.start(http.run, listening.listeners)
            port = int(listening.url.rpartition(":")[2])
            served: list[Served] = []

            def body(i: int, tokens: int) -> dict[str, Any]:
                rng = random.Random(i)
                ids = [rng.randrange(32, 127) for _ in range(length)]
                return {
                    "model": facts.name, "prompt": ids, "max_tokens": tokens, "stream": True,
                    "ignore_eos": True, "temperature": 0,
                }  # fmt: skip

            async def one(i: int) -> None:
                served.append(await _stream(port, body(i, wanted)))

            start = time.perf_counter()
            async with trio.open_nursery() as clients:
                for i in range(count):
                    clients.start_soon(one, i)
            elapsed = time.perf_counter() - start
            report.add(
                "serve",
                f"{shape}: throughput of {count} streams",
                count * wanted / elapsed,
                "tok/s",
            )
            report.add(
                "serve",
                "median time to first token",
                1e3 * statistics.median(s.first_s for s in served),
                "ms",
            )
            gaps = [gap for s in served for gap in s.gaps_s]
            report.add("serve", "median time between events", 1e3 * statistics.median(gaps), "ms")
            bench.ceilings["serve tok/s"] = count * wanted / elapsed

            await _stream(port, body(99, 60 if bench.dry_run else 4000), stop_after=3)
            left = time.perf_counter()
            with trio.fail_after(10):
                while engine.statistics().blocks_used:
                    await trio.sleep(0.001)
            report.add(
                "serve", "disconnect to blocks free", 1e3 * (time.perf_counter() - left), "ms"
            )
            nursery.cancel_scope.cancel()


def compare_transformers(bench: Bench, report: Report) -> None:
    """transformers' generate and continuous batching on the same shape and requests."""
    import transformers

    shape, count, length, wanted = ("tiny", 2, 8, 4) if bench.dry_run else ("1b", 64, 512, 128)
    config = transformers.LlamaConfig(
        **{k: v for k, v in gpu_model.config_of(shape).items() if k != "architectures"}
    )
    attention = "sdpa"
    with torch.device(bench.ops.device):
        factory: Any = transformers.AutoModelForCausalLM
        model = factory.from_config(
            config,
            dtype=torch.float32 if bench.dry_run else torch.bfloat16,
            attn_implementation=attention,
        )
    model.eval()
    ids = torch.randint(32, 127, (count, length), device=bench.ops.device)
    options: dict[str, Any] = {
        "max_new_tokens": wanted,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
    }

    def generate() -> None:
        model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=wanted, **options)

    def continuous() -> None:
        make: Any = transformers.GenerationConfig
        generation = make(**options)
        model.generate_batch(inputs=ids.tolist(), generation_config=generation, progress_bar=False)

    rates = {}
    kinds: dict[str, Callable[[], None]] = {"generate": generate}
    if not bench.dry_run:  # on a CPU it takes 20 s to begin
        kinds["continuous batching"] = continuous
    for kind, run in kinds.items():
        if not bench.dry_run:
            run()
        start = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        rates[kind] = count * wanted / (time.perf_counter() - start)
        report.add("transformers", f"{shape}: {kind}, {count} sequences", rates[kind], "tok/s")
    if "continuous batching" in rates and "serve tok/s" in bench.ceilings:
        ratio = bench.ceilings["serve tok/s"] / rates["continuous batching"]
        report.at_least("throughput / transformers' continuous batching", ratio, 5, speed=True)
