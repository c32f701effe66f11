"""Native kernels against what the machine can do at most, measured in the same run.

    python tests/bench/bench_kernels.py [--threads N] [--isa NAME] [--json]

Each line gives the time of one call and the larger of two fractions: bytes that must be read over
the bandwidth of memory, products over the peak of the instruction. Weights and caches are rotated
so that they come from memory. With one thread, CPU time is measured: other work on the machine
then matters little.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch

from triolet_kernels.native import NativeOps, Quantization, supported_isas
from triolet_kernels.ops import AttentionBatch, AttentionSpec, KVCache, SamplingBatch

SHAPES = [(640, 2048), (1024, 4096), (2048, 8192)]  # K, N
ROWS = [1, 4, 16, 64, 256, 1024]
HEADS = [(4, 1, 256), (9, 3, 64), (32, 8, 128)]  # HQ, HKV, D
FORMATS: list[Quantization | None] = [None, "w8a8", "w4a8"]
BYTES_PER_WEIGHT = {None: 2.0, "w8a8": 1.0, "w4a8": 0.5625}
COLD_BYTES = 200 << 20
"""Rotated through, so that nothing is found in a cache."""
VOCABULARY = 262_144


@dataclass(frozen=True)
class Result:
    """One measurement; fractions are of the ceilings, 0 where they do not apply."""

    name: str
    milliseconds: float
    of_bandwidth: float = 0.0
    of_peak: float = 0.0

    def line(self) -> str:
        """For people."""
        return (
            f"{self.name:44s} {self.milliseconds:9.3f} ms  "
            f"{self.of_bandwidth:4.0%} of bandwidth  {self.of_peak:4.0%} of peak"
        )


class Bench:
    """Times calls and holds them against the ceilings."""

    def __init__(self, threads: int, isa: str | None, limits: dict[str, float]) -> None:
        self.threads = threads
        self.ops = {
            q: NativeOps(torch.bfloat16, threads=threads, isa=isa, quantization=q) for q in FORMATS
        }
        self.isa = self.ops[None].isa
        self.bandwidth = limits["read_gb_s"] * 1e9
        bf16 = {"amx": "amx_bf16_gflop_s", "avx512bf16": "bf16_gflop_s"}
        int8 = {"amx": "amx_int8_gop_s"}
        self.bf16_peak = limits.get(bf16.get(self.isa, "fp32_gflop_s"), 0.0) * 1e9
        self.int8_peak = limits.get(int8.get(self.isa, "int8_gop_s"), 0.0) * 1e9

    def seconds(self, calls: Sequence[Callable[[], object]], budget_s: float = 0.4) -> float:
        """Tenth percentile of the time of one call, the calls taking turns."""
        clock = time.thread_time if self.threads == 1 else time.perf_counter
        calls[0]()
        times: list[float] = []
        end = time.perf_counter() + budget_s
        while time.perf_counter() < end or len(times) < 5:
            start = clock()
            calls[(len(times) + 1) % len(calls)]()
            times.append(clock() - start)
        return sorted(times)[len(times) // 10]

    def result(
        self, name: str, seconds: float, num_bytes: float, products: float, peak: float
    ) -> Result:
        return Result(
            name,
            seconds * 1e3,
            num_bytes / seconds / self.bandwidth,
            products / seconds / peak if peak else 0.0,
        )

    def linears(self) -> Iterator[Result]:
        for k, n in SHAPES:
            for quantization in FORMATS:
                num_bytes = n * k * BYTES_PER_WEIGHT[quantization]
                copies = int(max(2, min(160, COLD_BYTES // num_bytes)))
                linears = [self.ops[quantization].linear(torch.randn(n, k)) for _ in range(copies)]
                peak = self.bf16_peak if quantization is None else self.int8_peak
                for rows in ROWS:
                    x = torch.randn(rows, k).to(torch.bfloat16)
                    seconds = self.seconds([partial(linear, x) for linear in linears])
                    name = f"linear {quantization or 'bf16'} {k} x {n}, {rows} rows"
                    yield self.result(name, seconds, num_bytes, 2.0 * rows * n * k, peak)

    def attention(self) -> Iterator[Result]:
        ops = self.ops[None]
        for heads, kv_heads, dim in HEADS:
            spec = AttentionSpec(heads, kv_heads, dim, dim**-0.5)
            for sequences, context, queries in (
                (1, 8192, 1),
                (32, 512, 1),
                (32, 2048, 1),
                (1, 1024, 1024),
            ):
                batch, num_blocks = make_batch(sequences, context, queries, block_size=32)
                num_bytes = 4.0 * sequences * context * kv_heads * dim
                caches = [
                    ops.allocate_kv(num_blocks, 32, spec)
                    for _ in range(int(max(1, min(8, COLD_BYTES // num_bytes))))
                ]
                q = torch.randn(sequences * queries, heads, dim).to(torch.bfloat16)
                qkv = torch.randn(len(q), (heads + 2 * kv_heads) * dim).to(torch.bfloat16)
                for cache in caches:
                    fill(ops, spec, cache, num_blocks, kv_heads)
                    ops.rope_and_store(qkv, spec, batch, cache, None, None)
                seconds = self.seconds(
                    [partial(ops.paged_attention, q, spec, batch, cache) for cache in caches]
                )
                pairs = sequences * (context if queries == 1 else context * (context + 1) / 2)
                kind = "decode" if queries == 1 else "prefill"
                name = f"{kind} {heads}/{kv_heads} x {dim}, {sequences} x {context}"
                yield self.result(
                    name, seconds, num_bytes, 4.0 * heads * dim * pairs, self.bf16_peak
                )

    def sampling(self) -> Iterator[Result]:
        ops = self.ops[None]
        cases = {
            "greedy": (0.0, 0, 1.0),
            "temperature": (1.0, 0, 1.0),
            "top_p 0.9": (0.8, 0, 0.9),
            "top_k 50": (1.0, 50, 1.0),
        }
        for rows in (1, 32):
            logits = torch.randn(rows, VOCABULARY) * 3
            for name, (temperature, top_k, top_p) in cases.items():
                batch = SamplingBatch(
                    torch.full((rows,), temperature),
                    torch.full((rows,), top_k, dtype=torch.int32),
                    torch.full((rows,), top_p),
                    torch.zeros(rows),
                    torch.rand(rows, dtype=torch.float64),
                    all_greedy=temperature == 0.0,
                )
                seconds = self.seconds([partial(ops.sample, logits, batch)])
                yield self.result(
                    f"sample {name}, {rows} rows", seconds, 4.0 * logits.numel(), 0, 0
                )


def ceilings(threads: int) -> dict[str, float]:
    """What `ceilings.py`, beside this file, measures."""
    script = Path(__file__).with_name("ceilings.py")
    command = [sys.executable, str(script), "--threads", str(threads)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return cast("dict[str, float]", json.loads(output))


def fill(
    ops: NativeOps, spec: AttentionSpec, cache: KVCache, num_blocks: int, kv_heads: int
) -> None:
    """Touch every block, so that the pages exist: write a token to each slot of the cache."""
    tokens = num_blocks * 32
    slots = torch.arange(tokens)
    batch = AttentionBatch(
        slots, slots, slots[:2].int(), slots[:1].int(), slots[:1, None].int(), 1, 1
    )
    width = (spec.num_heads + 2 * kv_heads) * spec.head_dim
    qkv = torch.zeros(1, width, dtype=torch.bfloat16).expand(tokens, width).contiguous()
    ops.rope_and_store(qkv, spec, batch, cache, None, None)


def make_batch(
    sequences: int, context: int, queries: int, block_size: int
) -> tuple[AttentionBatch, int]:
    """The last `queries` tokens of each sequence, blocks in random order."""
    per_sequence = -(-context // block_size)
    num_blocks = sequences * per_sequence
    table = torch.randperm(num_blocks).view(sequences, per_sequence).to(torch.int32)
    positions = torch.arange(context - queries, context).repeat(sequences)
    owner = torch.arange(sequences).repeat_interleave(queries)
    slots = table[owner, positions // block_size].to(torch.int64) * block_size
    slots += positions % block_size
    starts = torch.arange(sequences + 1, dtype=torch.int32) * queries
    contexts = torch.full((sequences,), context, dtype=torch.int32)
    return AttentionBatch(positions, slots, starts, contexts, table, queries, context), num_blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", choices=supported_isas())
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=["linears", "attention", "sampling"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    limits = ceilings(arguments.threads)
    bench = Bench(arguments.threads, arguments.isa, limits)
    print(json.dumps({"machine": platform.processor(), "isa": bench.isa, **limits}))
    with torch.inference_mode():
        for part in (bench.linears, bench.attention, bench.sampling):
            if arguments.only in (None, part.__name__):
                for result in part():
                    print(
                        json.dumps(asdict(result)) if arguments.json else result.line(), flush=True
                    )
    print(json.dumps({"after": ceilings(arguments.threads)}))


if __name__ == "__main__":
    main()
