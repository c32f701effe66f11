"""Stages of the GPU check that look at single kernels."""

from __future__ import annotations

import dataclasses
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from bench.gpu_report import Report, time_ms
from support.paged import BlockTables, naive_attention
from triolet.config import CacheConfig
from triolet_kernels.cuda import TritonOps
from triolet_kernels.ops import AttentionBatch, AttentionSpec, SamplingBatch
from triolet_kernels.reference.reference_ops import ReferenceOps
from triolet_kernels.reference.sample import sample as reference_sample
from triolet_kernels.reference.top_logprobs import top_logprobs as reference_top_logprobs
from triolet_kernels.triton import launch_table
from triolet_kernels.triton.kv_cache import BlockCache
from triolet_kernels.triton.launch_table import AttentionOp, Launch, LaunchKey
from triolet_kernels.triton.paged_decode import paged_decode
from triolet_kernels.triton.paged_prefill import paged_prefill

BLOCK_SIZE = CacheConfig().block_size
"""The engine's default: what is tuned is what runs."""


@dataclasses.dataclass(frozen=True)
class Bench:
    """Where it runs, and how much of it."""

    ops: TritonOps
    dry_run: bool
    ceilings: dict[str, float] = dataclasses.field(default_factory=dict)

    def randn(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, device=self.ops.device, dtype=dtype or self.ops.dtype)


def measure_ceilings(bench: Bench, report: Report) -> None:
    """Copy bandwidth and bf16 GEMM: what everything else is a share of."""
    size = 1 << (16 if bench.dry_run else 29)
    source = bench.randn(size)
    target = torch.empty_like(source)
    copy_ms = time_ms(lambda: target.copy_(source))
    bench.ceilings["copy GB/s"] = 2 * source.numel() * source.element_size() / copy_ms / 1e6
    n = 64 if bench.dry_run else 8192
    a, b = bench.randn(n, n), bench.randn(n, n)
    gemm_ms = time_ms(lambda: a @ b)
    bench.ceilings["gemm TFLOP/s"] = 2 * n**3 / gemm_ms / 1e9
    for what, value in bench.ceilings.items():
        report.add("ceilings", what, value, what.split()[1])


def relative_error(result: Tensor, expected: Tensor) -> float:
    error = (result.double() - expected.double()).norm() / expected.double().norm()
    return float(error)


def check_correctness(bench: Bench, report: Report) -> None:
    """Every kernel against float64 on shapes of many kinds."""
    limit = 1e-2 if bench.ops.dtype is torch.bfloat16 else 2e-3
    worst: dict[str, float] = {}

    def note(op: str, value: float) -> None:
        worst[op] = max(worst.get(op, 0.0), value if value == value else 1e9)

    rng = random.Random(0)
    shapes = _attention_shapes(2 if bench.dry_run else 30, rng)
    for spec, rows in shapes:
        note("paged_attention", _attention_error(bench, spec, rows))
    for width in (64,) if bench.dry_run else (64, 2304, 4096, 8192, 16384):
        x, weight = bench.randn(5, width), bench.randn(width)
        wide = x.double()
        expected = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
        note("rms_norm", relative_error(bench.ops.rms_norm(x, weight, 1e-6), expected))
        gate_up = bench.randn(5, 2 * width)
        gate, up = gate_up.double().chunk(2, -1)
        result = bench.ops.gated_activation(gate_up, "silu")
        note("gated_activation", relative_error(result, torch.nn.functional.silu(gate) * up))
    note("rope_and_store", _rope_error(bench))
    for op, error in worst.items():
        report.add("correctness", f"{op}: worst relative error", error, "")
        report.at_most(f"error of {op}", error, limit)
    _check_sampler(bench, report)


Rows = list[tuple[int, int, int]]


def _attention_shapes(count: int, rng: random.Random) -> list[tuple[AttentionSpec, Rows]]:
    small = count < 10
    out: list[tuple[AttentionSpec, Rows]] = []
    for index in range(count):
        hq, hkv = rng.choice([(8, 2), (4, 1), (7, 1), (8, 8)])
        d = 16 if small else rng.choice([64, 128, 256])
        spec = AttentionSpec(
            hq, hkv, d, d**-0.5,
            window=rng.choice([None, None, 20, 500]), softcap=rng.choice([None, None, 30.0]),
        )  # fmt: skip
        longest = 40 if small else 3000
        rows = [
            (i, rng.randrange(longest), 1 if index % 2 else rng.choice([1, 7, longest // 5]))
            for i in range(2 if small else 6)
        ]
        out.append((spec, rows))
    return out


def make_attention(
    bench: Bench, spec: AttentionSpec, rows: Rows
) -> tuple[Tensor, AttentionBatch, BlockCache]:
    """Queries, batch and a random cache on the device."""
    num_blocks = sum((start + count) // BLOCK_SIZE + 1 for _, start, count in rows) + 1
    host = BlockTables(num_blocks, BLOCK_SIZE).batch(rows)
    batch = dataclasses.replace(
        host,
        **{
            field.name: getattr(host, field.name).to(bench.ops.device)
            for field in dataclasses.fields(host)
            if isinstance(getattr(host, field.name), Tensor)
        },
    )
    shape = (num_blocks, spec.num_kv_heads, BLOCK_SIZE, spec.head_dim)
    cache = BlockCache(bench.randn(*shape), bench.randn(*shape), BLOCK_SIZE)
    return bench.randn(len(host.positions), spec.num_heads, spec.head_dim), batch, cache


def _attention_error(bench: Bench, spec: AttentionSpec, rows: Rows) -> float:
    q, batch, cache = make_attention(bench, spec, rows)
    result = bench.ops.paged_attention(q, spec, batch, cache).cpu()
    worst, first = 0.0, 0
    for sequence, (_, start, count) in enumerate(rows):
        blocks = batch.block_table[sequence, : (start + count - 1) // BLOCK_SIZE + 1].long()

        def tokens(x: Tensor, blocks: Tensor = blocks, length: int = start + count) -> Tensor:
            rows_of = x[blocks].permute(0, 2, 1, 3).reshape(-1, spec.num_kv_heads, spec.head_dim)
            return rows_of[:length].cpu()

        # queries of tokens that are in the cache already do not matter
        padded = torch.zeros(start + count, spec.num_heads, spec.head_dim, dtype=torch.float64)
        padded[start:] = q[first : first + count].double().cpu()
        expected = naive_attention(
            padded, tokens(cache.keys), tokens(cache.values),
            scale=spec.scale, window=spec.window, softcap=spec.softcap,
        )[start:]  # fmt: skip
        worst = max(worst, relative_error(result[first : first + count], expected))
        first += count
    return worst


def _rope_error(bench: Bench) -> float:
    spec = AttentionSpec(4, 2, 16 if bench.dry_run else 128, 1.0, rotary_dim=16)
    qkv = bench.randn(6, 8 * spec.head_dim)
    _, batch, cache = make_attention(bench, spec, [(0, 3, 5), (1, 9, 1)])
    angles = torch.rand(16, 8, device=bench.ops.device)
    norm = bench.randn(spec.head_dim)
    arguments = (angles.cos(), angles.sin(), norm, norm)
    result = bench.ops.rope_and_store(qkv.clone(), spec, batch, cache, *arguments)
    oracle = ReferenceOps(bench.ops.device, torch.float32)
    slots = oracle.allocate_kv(cache.num_blocks, BLOCK_SIZE, spec)
    expected = oracle.rope_and_store(qkv.float(), spec, batch, slots, *arguments)
    keys = cache.keys.permute(1, 0, 2, 3).reshape(2, -1, spec.head_dim)[:, batch.slots]
    stored = slots.keys[:, batch.slots]  # type: ignore[attr-defined]  # the reference's own
    return max(relative_error(result, expected), relative_error(keys, stored))


def sampling_batch(bench: Bench, rows: int, top_k: int, top_p: float) -> SamplingBatch:
    def full(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((rows,), value, dtype=dtype, device=bench.ops.device)

    uniform = torch.rand(rows, dtype=torch.float64, device=bench.ops.device)
    return SamplingBatch(
        full(1.0), full(top_k, torch.int32), full(top_p), full(0.0), uniform, all_greedy=False
    )


def _check_sampler(bench: Bench, report: Report) -> None:
    rows, width = (2, 300) if bench.dry_run else (16, 128256)
    logits = bench.randn(rows, width, dtype=torch.float32) * 3
    same = total = 0
    for top_k, top_p in ((0, 1.0), (50, 1.0), (0, 0.9), (40, 0.8)):
        batch = sampling_batch(bench, rows, top_k, top_p)
        result = bench.ops.sample(logits.clone(), batch)
        same += int((result == reference_sample(logits, batch)).sum())
        total += rows
    report.add("correctness", "sample: tokens equal to the reference's", same / total, "")
    report.at_least("share of equal tokens", same / total, 0.98)  # the rest is rounding
    tokens = logits.argmax(1)
    result4 = bench.ops.top_logprobs(logits, tokens, 20)
    expected4 = reference_top_logprobs(logits, tokens, 20)
    assert torch.equal(result4[2], expected4[2]), "top_logprobs: other ids"
    error = float((result4[3] - expected4[3]).abs().max())
    report.add("correctness", "top_logprobs: largest error", error, "")
    report.at_most("error of top_logprobs", error, 1e-4)


def compile_all(bench: Bench, report: Report) -> None:
    """Every shipped variant for every chip, on all cores; spills are errors."""
    from support import aot

    variants = aot.shipped_variants()
    if bench.dry_run:
        variants = [v for v in variants if v.kernel == "_gated_activation"][:1]
    with tempfile.TemporaryDirectory() as directory:
        results = aot.compile_all(variants, min(16, os.cpu_count() or 1), Path(directory))
    report.add("compile", "variants compiled", len(results), "")
    report.at_most("variants that spill", sum(r.spills > 0 for r in results.values()), 0)


_CANDIDATES: dict[AttentionOp, tuple[tuple[int, int, int, int], ...]] = {
    "paged_decode": tuple(
        (16, tile, warps, stages)
        for tile in (32, 64, 128) for warps in (2, 4, 8) for stages in (2, 3, 4)
    ),
    "paged_prefill": tuple(
        (rows, tile, warps, stages)
        for rows in (64, 128) for tile in (32, 64, 128) for warps in (4, 8) for stages in (2, 3)
    ),
}  # fmt: skip


def sweep(bench: Bench, report: Report) -> None:
    """Time launch parameters; the fastest become entries of tuned/<op>.json."""
    heads = [(128, 4)] if bench.dry_run else [(64, 4), (64, 8), (128, 4), (128, 8), (256, 4)]
    for op, candidates in _CANDIDATES.items():
        entries = report.tuned.setdefault(op, [])
        for d, group in heads:
            d = 16 if bench.dry_run else d
            spec = AttentionSpec(8 * group, 8, d, d**-0.5)
            key = LaunchKey(op, d, group, BLOCK_SIZE, bench.ops.capability)
            if bench.dry_run:
                spec, candidates = AttentionSpec(group, 1, d, 0.25), candidates[:1]
            if op == "paged_decode":
                rows = [
                    (i, 39 if bench.dry_run else 2047, 1) for i in range(2 if bench.dry_run else 32)
                ]
            else:
                rows = [(0, 0, 20 if bench.dry_run else 4096)]
            best = _fastest(bench, spec, op, rows, candidates)
            if best is not None:
                milliseconds, launch = best
                report.add("sweep", f"{op} d{d} g{group} {launch}", milliseconds, "ms")
                entries.append(_entry(key, launch, milliseconds))


def _fastest(
    bench: Bench,
    spec: AttentionSpec,
    op: AttentionOp,
    rows: Rows,
    candidates: Sequence[tuple[int, int, int, int]],
) -> tuple[float, Launch] | None:
    q, batch, cache = make_attention(bench, spec, rows)
    out = torch.empty_like(q)
    found: list[tuple[float, Launch]] = []
    for numbers in candidates:
        launch = Launch(*numbers)

        def run(launch: Launch = launch) -> None:
            if op == "paged_decode":
                paged_decode(q, spec, batch, cache, None, out, launch, upcast=bench.dry_run)
            else:
                paged_prefill(
                    q, spec, batch, cache, None, out, launch, decodes_too=False,
                    upcast=bench.dry_run,
                )  # fmt: skip

        try:
            found.append((time_ms(run, repeats=7), launch))
        except RuntimeError as error:  # more shared memory than there is: no candidate
            if "out of resource" not in str(error):
                raise
    return min(found, key=lambda item: item[0], default=None)


def _entry(key: LaunchKey, launch: Launch, milliseconds: float) -> dict[str, object]:
    return {
        "head_dim": key.head_dim,
        "group": key.group,
        "block_size": key.block_size,
        "capability": launch_table.format_capability(key.capability),
        **dataclasses.asdict(launch),
        "measured_ms": round(milliseconds, 5),
    }


def measure_kernels(bench: Bench, report: Report) -> None:
    """Bandwidth and arithmetic of each kernel, as a share of the ceilings."""
    dry = bench.dry_run
    d, hkv, group = (16, 1, 4) if dry else (128, 8, 4)
    spec = AttentionSpec(hkv * group, hkv, d, d**-0.5)
    sequences, context = (2, 40) if dry else (32, 2048)
    q, batch, cache = make_attention(bench, spec, [(i, context - 1, 1) for i in range(sequences)])
    ms = time_ms(lambda: bench.ops.paged_attention(q, spec, batch, cache))
    read = 2 * sequences * context * hkv * d * q.element_size()
    share = read / ms / 1e6 / bench.ceilings["copy GB/s"]
    report.add("kernels", "decode attention, share of copy bandwidth", share, "")
    report.at_least("decode attention / copy bandwidth", share, 0.75, speed=True)

    rows, width = (4, 64) if dry else (16384, 4096)
    x, stream, weight = bench.randn(rows, width), bench.randn(rows, width), bench.randn(width)
    ms = time_ms(lambda: bench.ops.add_rms_norm(x, stream, weight, 1e-6))
    share = 4 * x.numel() * x.element_size() / ms / 1e6 / bench.ceilings["copy GB/s"]
    report.add("kernels", "add + norm, share of copy bandwidth", share, "")
    report.at_least("add + norm / copy bandwidth", share, 0.8, speed=True)

    tokens = 20 if dry else 8192
    q, batch, cache = make_attention(bench, spec, [(0, 0, tokens)])
    ms = time_ms(lambda: bench.ops.paged_attention(q, spec, batch, cache), repeats=7)
    flops = 4 * spec.num_heads * d * tokens * (tokens + 1) / 2
    report.add("kernels", f"prefill attention of {tokens} tokens", flops / ms / 1e9, "TFLOP/s")
    report.at_least("prefill attention TFLOP/s", flops / ms / 1e9, 400, speed=True)

    rows, width = (2, 300) if dry else (64, 131072)
    logits = bench.randn(rows, width, dtype=torch.float32) * 3
    for top_k, top_p in ((0, 1.0), (0, 0.9), (50, 0.9)):
        batch_s = sampling_batch(bench, rows, top_k, top_p)
        us = 1e3 * time_ms(lambda b=batch_s: bench.ops.sample(logits, b), flush=False)  # type: ignore[misc]
        report.add("kernels", f"sample {rows} x {width}, top_k {top_k}, top_p {top_p}", us, "us")
        report.at_most(f"sample, top_k {top_k}, top_p {top_p}: us", us, 60, speed=True)
