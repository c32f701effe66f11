"""CPU time of everything that is not a kernel: server, runner, and what a token costs in each.

    python tests/bench/bench_overhead.py [--model demo] [--streams 1 16 64] [--paced MS] [--json]

The server runs as `triolet serve` runs it: the trio process, and a worker process whose kernels
are timed. A client streams from it over HTTP. CPU time and not wall time is measured, so other
work on the machine matters little. "python" is the CPU time of the worker's Python threads
outside of kernels; the kernels' own threads are theirs, waiting for work included. With
--paced nothing computes: every step takes MS milliseconds and gives every stream a token.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from triolet.cli.bench.machine import process_tree, tree_cpu_s
from triolet.config import EngineConfig, ServerConfig
from triolet.engine.client import EngineClient
from triolet.messages.runner_to_scheduler import BatchResult, KVGroup, RunnerInfo
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.model_source.facts import ModelFacts
from triolet.runner.worker import WorkerSpec
from triolet.server.serve import serve as serve_http

HERE = Path(__file__).parent
CALIBRATION_CALLS = 20_000
WORD_TOKENS = tuple(range(1000, 1064))
"""What a paced runner answers."""


class TimedOps:
    """Kernels that note the CPU time that the calling thread spends in them."""

    def __init__(self, ops: Any) -> None:  # noqa: ANN401  any Ops
        self._ops = ops
        self.caller_s = 0.0
        self.calls = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        value = getattr(self._ops, name)
        if not callable(value) or name in ("allocate_kv", "kv_bytes_per_block"):
            return value
        if name in ("linear", "head"):
            return lambda *given: self.timed(value(*given))
        if name == "tied_embedding":
            return self._tied_embedding
        timed = self.timed(value)
        setattr(self, name, timed)
        return timed

    def _tied_embedding(self, weight: Any, *, head: bool) -> Any:  # noqa: ANN401
        embed, logits = self._ops.tied_embedding(weight, head=head)
        return self.timed(embed), None if logits is None else self.timed(logits)

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, timed."""

        def run(*given: Any, **named: Any) -> Any:  # noqa: ANN401
            begun = time.thread_time()
            result = call(*given, **named)
            self.caller_s += time.thread_time() - begun
            self.calls += 1
            return result

        return run


class TimedRunner:
    """A `RunnerBackend` that appends a line of JSON per step to a file."""

    def __init__(self, config: EngineConfig, facts: ModelFacts, path: str) -> None:
        from triolet.runner import device
        from triolet.runner.model_runner import ModelRunner

        self._file = Path(path).open("w", buffering=1 << 20)  # noqa: SIM115  closed in close
        choose_ops = device.choose_ops

        def choose_timed(*given: Any) -> Any:  # noqa: ANN401
            self._ops = TimedOps(choose_ops(*given))
            return self._ops

        setattr(device, "choose_ops", choose_timed)  # noqa: B010  mypy knows it as a function
        self._runner = ModelRunner(config, facts)

    def load(self, progress: Callable[[str], None], num_blocks: int | None = None) -> RunnerInfo:
        return self._runner.load(progress, num_blocks)

    def launch(self, batch: ScheduledBatch) -> None:
        self._runner.launch(batch)

    def collect(self) -> BatchResult:
        result = self._runner.collect()
        python_s = python_threads_s() - self._ops.caller_s
        self._file.write(json.dumps([python_s, self._ops.calls]) + "\n")
        self._file.flush()
        return result

    def close(self) -> None:
        self._runner.close()
        self._file.close()


class PacedRunner:
    """A `RunnerBackend` that computes nothing, one step per period."""

    def __init__(self, config: EngineConfig, facts: ModelFacts, path: str, step_ms: float) -> None:
        self._path = Path(path)
        self._info = RunnerInfo(
            num_blocks=8192,
            block_size=config.cache.block_size,
            groups=(KVGroup(1, None),),
            block_bytes=1,
            max_model_len=2048,
            vocab_size=facts.vocab_size,
        )
        self._step_s = step_ms / 1000
        self._due_s = 0.0
        self._batch = ScheduledBatch(0, 0, [], [], [])
        self._steps = 0

    def load(self, progress: Callable[[str], None], num_blocks: int | None = None) -> RunnerInfo:
        return self._info

    def launch(self, batch: ScheduledBatch) -> None:
        self._batch = batch

    def collect(self) -> BatchResult:
        now_s = time.monotonic()
        self._due_s = max(self._due_s + self._step_s, now_s)
        time.sleep(self._due_s - now_s)
        self._steps += 1
        with self._path.open("a") as file:
            file.write(json.dumps([python_threads_s(), 0]) + "\n")
        sampled = [s.sequence_id for s in self._batch.scheduled if s.samples]
        tokens = [WORD_TOKENS[(self._steps + i) % len(WORD_TOKENS)] for i in range(len(sampled))]
        return BatchResult(self._batch.incarnation, self._batch.step, sampled, tokens)

    def close(self) -> None: ...


def python_threads_s() -> float:
    """CPU seconds of all threads that Python started; those of the kernels are not among them."""
    clocks = [time.pthread_getcpuclockid(t.ident) for t in threading.enumerate() if t.ident]
    return sum(map(time.clock_gettime, clocks))


def serve(model: str, steps_path: str, paced_ms: float | None) -> None:
    """The server, with a timed worker or a paced one."""
    from triolet.engine import open_engine as opening

    config = EngineConfig.of(model, runner="process", enable_prefix_caching=False)

    def timed_spec(config: EngineConfig, facts: ModelFacts) -> WorkerSpec:
        if paced_ms is None:
            return WorkerSpec(
                config, facts, "bench_overhead:TimedRunner", options={"path": steps_path}
            )
        options = {"path": steps_path, "step_ms": paced_ms}
        return WorkerSpec(config, facts, "bench_overhead:PacedRunner", options=options)

    # Nobody but a benchmark wants another backend under the whole server.
    setattr(opening, "WorkerSpec", timed_spec)  # noqa: B010  mypy knows it as a class

    @asynccontextmanager
    async def factory(config: EngineConfig) -> AsyncGenerator[EngineClient]:
        async with opening.open_engine(config=config) as engine:
            yield engine

    def on_ready(url: str, engine: EngineClient) -> None:
        print(url, flush=True)

    settings = ServerConfig(port=0)
    trio.run(lambda: serve_http(config, settings, engine_factory=factory, on_ready=on_ready))


@attrs.frozen
class Cost:
    """CPU seconds of one load."""

    streams: int
    steps: int
    tokens: int
    server_s: float
    python_s: float
    kernels_s: float

    def row(self) -> dict[str, float]:
        everything_s = self.server_s + self.python_s + self.kernels_s
        overhead_s = self.server_s + self.python_s
        return {
            "streams": self.streams,
            "steps": self.steps,
            "server us/token": self.server_s / self.tokens * 1e6,
            "server us/step": self.server_s / self.steps * 1e6,
            "python us/token": self.python_s / self.tokens * 1e6,
            "python us/step": self.python_s / self.steps * 1e6,
            "kernels us/token": self.kernels_s / self.tokens * 1e6,
            "server %": self.server_s / everything_s * 100,
            "python %": self.python_s / everything_s * 100,
            "not kernels %": overhead_s / everything_s * 100,
        }


def timer_cost_s() -> float:
    """CPU seconds that timing one kernel adds outside of what it times."""
    ops = TimedOps(None)
    nothing = ops.timed(lambda: None)
    begun = time.thread_time()
    for _ in range(CALIBRATION_CALLS):
        nothing()
    return (time.thread_time() - begun - ops.caller_s) / CALIBRATION_CALLS


def measure(model: str, streams: int, output_len: int, rounds: int, paced_ms: float | None) -> Cost:
    """Serve, ask, and read what was used."""
    from triolet.cli.bench.measure import measure_server
    from triolet.cli.bench.server_load import ServerLoad
    from triolet.cli.bench.workload import WorkloadConfig

    with tempfile.TemporaryDirectory() as directory:
        steps_path = Path(directory) / "steps"
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        command = [sys.executable, __file__, "--serve", str(steps_path), "--model", model]
        command += [] if paced_ms is None else ["--paced", str(paced_ms)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            try:
                assert process.stdout is not None
                url = process.stdout.readline().decode().strip()
                (worker,) = process_tree(process.pid)[1:]
                load = ServerLoad(
                    url=url, tokenizer=model, token_ids=True, concurrency=streams, warmup=streams
                )
                warm_up = WorkloadConfig(num_prompts=1, input_len=32, output_len=8, repeat=1)
                trio.run(measure_server, load, warm_up)
                before = read(process.pid, worker, steps_path)
                workload = WorkloadConfig(
                    num_prompts=streams * rounds,
                    input_len=32,
                    output_len=output_len,
                    repeat=1,
                    bench_seed=1,
                )
                rows, _ = trio.run(measure_server, attrs.evolve(load, warmup=0), workload)
                after = read(process.pid, worker, steps_path)
            finally:
                process.terminate()
    timers_s = (after.calls - before.calls) * timer_cost_s()
    python_s = after.python_s - before.python_s - timers_s
    return Cost(
        streams=streams,
        steps=after.steps - before.steps,
        tokens=int(rows[0]["completion_tokens"]),
        server_s=after.server_s - before.server_s,
        python_s=python_s,
        kernels_s=after.worker_s - before.worker_s - python_s - timers_s,
    )


@attrs.frozen
class Reading:
    server_s: float
    worker_s: float
    python_s: float
    calls: int
    steps: int


def read(server: int, worker: int, steps_path: Path) -> Reading:
    """CPU times so far; the last step said its own."""
    lines = steps_path.read_text().splitlines()
    python_s, calls = json.loads(lines[-1])
    worker_s = tree_cpu_s(worker)
    return Reading(tree_cpu_s(server) - worker_s, worker_s, python_s, calls, len(lines))


def main() -> None:
    """Print a row per number of streams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--paced", type=float, metavar="MS", help="compute nothing")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.model, arguments.serve, arguments.paced)
        return
    for streams in arguments.streams:
        row = measure(
            arguments.model, streams, arguments.output_len, arguments.rounds, arguments.paced
        ).row()
        if arguments.json:
            print(json.dumps(row))
        else:
            print("  ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
