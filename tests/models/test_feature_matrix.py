"""Features together: the real engine against a generator too simple to be wrong.

The oracle knows no cache, no batch and no scheduler: it computes all logits of one sequence
anew for every token, and draws from them with a few lines of numpy. Rows of the matrix cover
every pair of options.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
import trio

import triolet
from support.packed_model import CPU, make_ops, run_packed
from triolet.config import ModelConfig
from triolet.engine.engine import Engine
from triolet.grammar.matcher import GrammarCompiler
from triolet.model_source.facts import ModelFacts
from triolet.model_source.resolve import resolve
from triolet.models.causal_lm import CausalLM
from triolet.models.loader import load_model
from triolet.runner.keyed_random import stream_key, uniform
from triolet.sampling_params import StructuredOutputs

pytestmark = pytest.mark.slow

OPTIONS: dict[str, tuple[object, ...]] = {
    "model": ("tiny-random", "tiny-random:gemma3"),
    "kernels": ("native", "reference"),
    "step_tokens": (16, 1024),
    "cache": ("off", "cold", "half", "whole"),
    "pool": ("ample", "scarce"),
    "n": (1, 3),
    "temperature": (0.0, 1.0),
    "logprobs": (None, 3),
    "prompt_logprobs": (None, 2),
    "grammar": (None, "[a-z ]{5,40}"),
}
TOLERANCE = 2e-3
OUTPUT = 36
PROMPTS = [
    [(31 * i + 7 * j) % 200 + 20 for j in range(length)]
    for i, length in enumerate((20, 70, 33, 30, 17))
]


def pairwise(options: dict[str, tuple[object, ...]], seed: int = 0) -> list[dict[str, object]]:
    """Rows in which every pair of values of two options occurs (greedy, random ties)."""
    rng = random.Random(seed)
    names = list(options)
    missing = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x in options[a]
        for y in options[b]
    }

    def gain(row: dict[str, object]) -> int:
        return sum(
            ((a, row[a]), (b, row[b])) in missing for a, b in itertools.combinations(names, 2)
        )

    rows = []
    while missing:
        # Start from a pair that is missing, so that every row makes progress.
        first = rng.choice(sorted(missing, key=repr))
        candidates = [
            {name: rng.choice(options[name]) for name in names} | dict(first) for _ in range(60)
        ]
        row = max(candidates, key=gain)
        missing -= {((a, row[a]), (b, row[b])) for a, b in itertools.combinations(names, 2)}
        rows.append(row)
    return rows


class Oracle:
    """One sequence at a time, from scratch for every token."""

    def __init__(self, facts: ModelFacts) -> None:
        self._facts = facts
        self._ops = make_ops("reference", torch.float32)
        self._model: CausalLM = load_model(
            facts, self._ops, ModelConfig(dtype="float32"), lambda text: None
        )
        self._grammars = GrammarCompiler.from_directory(
            facts.directory, facts.vocab_size, facts.eos_token_ids
        )

    def logprobs(self, token_ids: Sequence[int]) -> np.ndarray:
        """log_softmax of the raw logits at every position, float64 [length, V]."""
        ids = torch.tensor(token_ids, device=CPU)
        steps = [[(0, len(token_ids))]]
        logits = run_packed(self._model, self._ops, [ids], steps)[0][:, : self._facts.vocab_size]
        return torch.log_softmax(logits.double(), dim=-1).numpy()

    def generate(
        self, prompt: list[int], sampling: triolet.SamplingParams, index: int
    ) -> tuple[list[int], list[float]]:
        """Tokens of one output, and their raw log-probabilities."""
        output: list[int] = []
        scores: list[float] = []
        assert sampling.seed is not None
        key = stream_key(sampling.seed, index)
        while len(output) < OUTPUT:
            raw = self.logprobs(prompt + output)[-1]
            allowed = self._allowed(sampling.structured_outputs, output)
            masked = np.where(allowed, raw, -np.inf)
            if sampling.temperature == 0:
                token_id = int(masked.argmax())
            else:
                weights = np.exp((masked - masked.max()) / sampling.temperature)
                point = uniform(key, len(prompt) + len(output)) * weights.sum()
                token_id = int(np.searchsorted(weights.cumsum(), point, side="right"))
            output.append(token_id)
            scores.append(float(raw[token_id]))
            if token_id in self._facts.eos_token_ids:
                break
        return output, scores

    def _allowed(self, structured: StructuredOutputs | None, output: list[int]) -> np.ndarray:
        if structured is None:
            return np.ones(self._facts.vocab_size, dtype=bool)
        assert self._grammars is not None
        mask = np.frombuffer(self._grammars.matcher(structured, output).mask(), dtype=np.uint8)
        bits = np.unpackbits(mask, bitorder="little")[: self._facts.vocab_size]
        return bits.astype(bool)


@functools.cache
def oracle(model: str) -> Oracle:
    torch.set_num_threads(1)
    with torch.inference_mode():
        return Oracle(resolve(ModelConfig(model)))


async def warm(engine: Engine, prompts: list[list[int]], share: float) -> None:
    """Leave a share of each prompt in the prefix cache."""
    for prompt in prompts:
        start = prompt[: max(1, int(len(prompt) * share))]
        async with engine.generate(start, triolet.SamplingParams(max_tokens=1)) as stream:
            await stream.text()


ROWS = pairwise(OPTIONS)


@pytest.fixture(scope="module")
def preemptions() -> Iterator[list[int]]:
    """Preemptions of each row with a scarce pool: the option must have meant something."""
    counts: list[int] = []
    yield counts
    if len(counts) == sum(row["pool"] == "scarce" for row in ROWS):
        assert sum(counts) > 0


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(str(v) for v in row.values()))
async def test_every_pair_of_features_agrees_with_the_oracle(
    row: dict[str, object], preemptions: list[int]
) -> None:
    grammar = row["grammar"]
    samplings = [
        triolet.SamplingParams(
            n=row["n"],  # type: ignore[arg-type] # values of OPTIONS
            temperature=row["temperature"],  # type: ignore[arg-type] # values of OPTIONS
            seed=100 + i,
            max_tokens=OUTPUT,
            logprobs=row["logprobs"],  # type: ignore[arg-type] # values of OPTIONS
            prompt_logprobs=row["prompt_logprobs"] if i % 2 else None,  # type: ignore[arg-type] # values of OPTIONS
            # Constrained and free rows side by side.
            structured_outputs=(
                StructuredOutputs(regex=str(grammar)) if grammar and i % 2 == 0 else None
            ),
        )
        for i in range(len(PROMPTS))
    ]
    config = triolet.EngineConfig.of(
        str(row["model"]),
        dtype="float32",
        kernels=row["kernels"],
        batch_invariant=True,
        threads=1,
        max_model_len=128,
        max_num_seqs=8,
        max_num_batched_tokens=row["step_tokens"],
        enable_prefix_caching=row["cache"] != "off",
        block_size=16,
        # Scarce: room for one context and a little, so that five requests preempt each other.
        kv_cache_tokens=160 if row["pool"] == "scarce" else 4096,
    )
    outputs: dict[tuple[int, int], list[int]] = {}
    scores: dict[tuple[int, int], list[float]] = {}
    prompt_scores: dict[int, list[float]] = {}

    async def one(engine: Engine, i: int) -> None:
        async with engine.generate(PROMPTS[i], samplings[i]) as stream:
            async for delta in stream:
                where = i, delta.index
                outputs.setdefault(where, []).extend(delta.token_ids)
                if delta.logprobs is not None:
                    scores.setdefault(where, []).extend(e.logprob for e in delta.logprobs)
            if stream.prompt_logprobs is not None:
                assert stream.prompt_logprobs[0] is None
                prompt_scores[i] = [e.logprob for e in stream.prompt_logprobs if e is not None]

    with trio.fail_after(100):
        async with triolet.open_engine(config=config) as engine:
            if row["cache"] in ("half", "whole"):
                await warm(engine, PROMPTS, 0.5 if row["cache"] == "half" else 1.0)
            async with trio.open_nursery() as nursery:
                for i in range(len(PROMPTS)):
                    nursery.start_soon(one, engine, i)
            seen = engine.statistics().tree["scheduler"]["scheduler"]  # type: ignore[index] # plain data
            if row["pool"] == "scarce":
                preemptions.append(seen["preemptions"])
            if row["cache"] in ("half", "whole") and row["pool"] == "ample":
                assert seen["prefix_hits"] > 0

    with torch.inference_mode():
        for i, prompt in enumerate(PROMPTS):
            for index in range(samplings[i].n):
                expected, expected_scores = oracle(str(row["model"])).generate(
                    prompt, samplings[i], index
                )
                assert outputs[i, index] == expected, (i, index)
                if row["logprobs"] is not None:
                    assert scores[i, index] == pytest.approx(expected_scores, abs=TOLERANCE)
            if samplings[i].prompt_logprobs is not None:
                raw = oracle(str(row["model"])).logprobs(prompt)
                wanted = [raw[p - 1][prompt[p]] for p in range(1, len(prompt))]
                assert prompt_scores[i] == pytest.approx(wanted, abs=TOLERANCE)


def test_the_rows_cover_every_pair() -> None:
    covered = {
        ((a, row[a]), (b, row[b])) for row in ROWS for a, b in itertools.combinations(OPTIONS, 2)
    }
    for a, b in itertools.combinations(OPTIONS, 2):
        for x, y in itertools.product(OPTIONS[a], OPTIONS[b]):
            assert ((a, x), (b, y)) in covered
