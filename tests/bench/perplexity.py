"""Perplexity on a fixed text, in the model's own precision and quantized.

    python tests/bench/perplexity.py [demo demo-gemma] [--write]

The text is the beginning of H. G. Wells's The Time Machine (1895, public domain), cut into
windows of 512 tokens. The same tokens are scored by every variant, so the differences say much
more than the small size of the text would let the figures themselves. --write puts the table
into docs/explanation/performance.md, between its markers.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import attrs

from triolet.config import EngineConfig
from triolet.engine.portal import LLM
from triolet.sampling_params import SamplingParams

ROOT = Path(__file__).parents[2]
TEXT = ROOT / "tests/data/time_machine.txt"
PAGE = ROOT / "docs/explanation/performance.md"
BEGIN, END = "<!-- perplexity: begin -->", "<!-- perplexity: end -->"
WINDOW = 512
VARIANTS: dict[str, dict[str, object]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "w8a8": {"dtype": "bfloat16", "quantization": "w8a8"},
    "w4a8": {"dtype": "bfloat16", "quantization": "w4a8"},
}


@attrs.frozen
class Score:
    """Log-probabilities (natural) of the tokens of a text, in order."""

    logprobs: tuple[float, ...]

    @property
    def perplexity(self) -> float:
        return math.exp(-sum(self.logprobs) / len(self.logprobs))


def windows(token_ids: Sequence[int], first_ids: Sequence[int]) -> list[list[int]]:
    """The text in pieces, each behind what the tokenizer puts before a text."""
    size = WINDOW - len(first_ids)
    return [
        [*first_ids, *token_ids[start : start + size]] for start in range(0, len(token_ids), size)
    ]


def score(model: str, settings: dict[str, object]) -> Score:
    """Score the text."""
    config = EngineConfig.of(
        model, kv_cache_tokens=4 * WINDOW, max_model_len=WINDOW + 8, **settings
    )
    with LLM(config=config) as llm:
        tokenizer = llm.tokenizer
        token_ids = tokenizer.encode(TEXT.read_text(), add_special_tokens=False)
        prompts = windows(token_ids, tokenizer.encode(""))
        sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        outputs = llm.generate(prompts, sampling, progress=False)
        num_first = len(tokenizer.encode(""))
        logprobs: list[float] = []
        for output in outputs:
            assert output.prompt_logprobs is not None
            # The first token has nothing before it, unless the tokenizer puts something there.
            entries = output.prompt_logprobs[max(1, num_first) :]
            logprobs += [entry.logprob for entry in entries if entry is not None]
        return Score(tuple(logprobs))


def rows(models: Sequence[str]) -> list[str]:
    """The table, a line per model and variant."""
    lines = [
        "| model | weights | tokens | perplexity | against bfloat16 | log-probability off by, mean |",
        "|---|---|---|---|---|---|",
    ]
    for model in models:
        scores = {name: score(model, settings) for name, settings in VARIANTS.items()}
        base = scores["bfloat16"]
        for name, one in scores.items():
            off = [abs(a - b) for a, b in zip(one.logprobs, base.logprobs, strict=True)]
            change = (one.perplexity / base.perplexity - 1) * 100
            lines.append(
                f"| {model} | {name} | {len(off)} | {one.perplexity:.3f} | {change:+.2f} % | "
                f"{sum(off) / len(off):.4f} |"
            )
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["demo", "demo-gemma"])
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    arguments = parser.parse_args()
    lines = rows(arguments.models)
    if arguments.write:
        before, rest = PAGE.read_text().split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]))


if __name__ == "__main__":
    main()
