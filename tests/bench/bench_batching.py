"""32 streams at once against the same 32 one by one: same texts, and how much less time.

    python tests/bench/bench_batching.py [MODEL] [--kernels reference]

Greedy, float32, batch_invariant: the texts must be equal, byte for byte.
"""

from __future__ import annotations

import argparse
import time

import trio

import triolet
from triolet.engine.engine import Engine

WORDS = "the quick brown fox jumps over a lazy dog while seven wizards brew tea".split()  # noqa: SIM905 - reads better


def requests(count: int) -> list[tuple[str, triolet.SamplingParams]]:
    """Prompts and outputs of different lengths."""
    out = []
    for i in range(count):
        words = [WORDS[(i * 5 + j * 3) % len(WORDS)] for j in range(4 + i)]
        sampling = triolet.SamplingParams(temperature=0.0, max_tokens=8 + i % 17, ignore_eos=True)
        out.append((" ".join(words), sampling))
    return out


async def one(engine: Engine, prompt: str, sampling: triolet.SamplingParams) -> str:
    async with engine.generate(prompt, sampling) as stream:
        return await stream.text()


async def main(arguments: argparse.Namespace) -> None:
    work = requests(arguments.streams)
    async with triolet.open_engine(
        arguments.model,
        dtype="float32",
        batch_invariant=True,
        kernels=arguments.kernels,
        enable_prefix_caching=False,
        max_num_seqs=64,
    ) as engine:
        print(engine.info.description)
        await one(engine, *work[0])
        start = time.perf_counter()
        solo = [await one(engine, *item) for item in work]
        solo_s = time.perf_counter() - start
        together = [""] * len(work)

        async def run(index: int) -> None:
            together[index] = await one(engine, *work[index])

        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for index in range(len(work)):
                nursery.start_soon(run, index)
        together_s = time.perf_counter() - start
    equal = sum(a == b for a, b in zip(solo, together, strict=True))
    print(f"equal texts: {equal} of {len(work)}")
    print(f"one by one {solo_s:.2f} s, at once {together_s:.2f} s, ratio {together_s / solo_s:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--streams", type=int, default=32)
    trio.run(main, parser.parse_args())
