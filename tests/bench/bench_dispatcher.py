"""CPU microseconds per token from the scheduler's fact to the sink.

Run: python tests/bench/bench_dispatcher.py
"""

from __future__ import annotations

import time

from triolet.dispatcher.output_table import OutputTable
from triolet.messages.scheduler_to_dispatcher import TokensSampled
from triolet.model_source.tiny_random import byte_level_tokenizer
from triolet.output import OutputDelta, TokenLogprobs, Usage
from triolet.request import GenerationRequest, RequestId
from triolet.sampling_params import SamplingParams
from triolet.tokenizer.byte_tokenizer import ByteTokenizer
from triolet.tokenizer.hf_tokenizer import HFTokenizer
from triolet.tokenizer.tokenizer import Tokenizer

TEXT = "the quick brown fox jumps over the lazy dog 😀 " * 5
NUM_REQUESTS = 64
REPEATS = 5
CASES = {
    "plain": SamplingParams(),
    "1 stop string": SamplingParams(stop="\n\n"),
    "4 stop strings": SamplingParams(stop=["\n\n", "###", "the end", "<|im_end|>"]),
    "logprobs": SamplingParams(logprobs=0),
}


class NullSink:
    """Takes everything."""

    def start(self, cached_tokens: int) -> None: ...

    def put(self, delta: OutputDelta) -> None: ...

    def score_prompt(self, logprobs: tuple[TokenLogprobs | None, ...]) -> None: ...

    def finish(self, usage: Usage) -> None: ...

    def fail(self, error: Exception) -> None:
        raise error


def once(tokenizer: Tokenizer, sampling: SamplingParams) -> tuple[float, float]:
    """(seconds to open a request, seconds per token), both averages of one run."""
    token_ids = tokenizer.encode(TEXT)
    ids = [RequestId(str(i)) for i in range(NUM_REQUESTS)]
    table, prompt = OutputTable(tokenizer), tuple(token_ids)
    steps = [
        [TokensSampled(i, 0, (token_id,), (TokenLogprobs(token_id, -1.0, 1),)) for i in ids]
        for token_id in token_ids
    ]
    begun = time.thread_time()
    for request_id in ids:
        table.open(GenerationRequest(request_id, prompt, sampling, 0.0), NullSink())
        table.apply(TokensSampled(request_id, 0, (), ()))
    opened = time.thread_time()
    for facts in steps:
        for fact in facts:
            table.apply(fact)
        table.release()
    ended = time.thread_time()
    return (opened - begun) / len(ids), (ended - opened) / (len(token_ids) * len(ids))


def main() -> None:
    """Print a table: the best of a few runs."""
    tokenizers: dict[str, Tokenizer] = {
        "bytes": ByteTokenizer(),
        "tokenizers": HFTokenizer(byte_level_tokenizer()),
    }
    for name, tokenizer in tokenizers.items():
        for case, sampling in CASES.items():
            runs = [once(tokenizer, sampling) for _ in range(REPEATS)]
            open_s, token_s = (min(column) for column in zip(*runs, strict=True))
            print(f"{name:10} {case:14} {token_s * 1e6:5.2f} us/token {open_s * 1e6:6.1f} us/open")


if __name__ == "__main__":
    main()
