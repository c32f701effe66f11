"""What is asked in a benchmark: prompts and lengths, drawn from a seed.

Every repetition draws new prompts from the same seed, so that none can profit from what an
earlier one left in a cache, while two runs of the same command ask the same. Prompts are made
of common words that are one token each under the model's tokenizer, where it is known: then a
prompt as text and as token ids is the same work.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Sequence
from typing import Literal

import attrs

from triolet.errors import ConfigError
from triolet.tokenizer.tokenizer import Tokenizer

LengthMix = Literal["fixed", "sharegpt"]

SHAREGPT_INPUT_MEAN, SHAREGPT_OUTPUT_MEAN = 161, 338
"""Mean tokens of ShareGPT's prompts and answers (vLLM paper, SOSP 2023, section 6.1)."""
SHAREGPT_SIGMA = 1.0
"""Spread of the logarithms: a log-normal with it has about the paper's long tail (figure 11)."""
SHAREGPT_LEN_MIN, SHAREGPT_LEN_MAX = 4, 1024
"""What vLLM's benchmark keeps of the data set."""

WORDS = """
the and for that with you are this was from not have can all will has your which but new one
they their part his more were get work time also there return about been class who our over
any other year had when its back some set than them would only first use very well may each
two how man name like these good out people just way look long make many then made day most
life world here much right still same place down again think where last never home under
house both water light hand great high old small large end off around without through
against between state point city group since number found while school night help another
line open head side case young next left land kind far live every white black red green blue
given early course book power money change order law public system field form area free air
north south east west river road tree story music game food body mind heart love fire cold
sound voice paper table window door street garden summer winter morning evening horse dog
bird fish stone gold silver king queen army war peace church town village market ship sea
"""
"""Common words, which most tokenizers have as one token each."""
_WORD_PIECES = tuple(f" {word}" for word in WORDS.split())


@attrs.frozen(kw_only=True)
class WorkloadConfig:
    """What is asked.

    Attributes:
        num_prompts: Requests of one repetition.
        input_len: Tokens of a prompt, those that the tokenizer adds included.
        output_len: Tokens of an answer.
        length_mix: "fixed" takes the lengths as given; "sharegpt" draws them, log-normal with
            the means of that data set (161 and 338 tokens).
        shared_prefix_len: The first tokens of all prompts of a repetition are the same.
        temperature: 0 is greedy.
        top_p: Sample from the most likely tokens that have this probability together.
        bench_seed: Prompts, lengths and arrival times follow from it.
        repeat: Repetitions, each with prompts of its own; the median is reported.
        ignore_eos: Answers do not end before their length, so that all engines do equal work.
    """

    num_prompts: int = 64
    input_len: int = 128
    output_len: int = 128
    length_mix: LengthMix = "fixed"
    shared_prefix_len: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    bench_seed: int = 0
    repeat: int = 3
    ignore_eos: bool = True

    def check(self) -> None:
        """Raise ConfigError for the first value that is out of range."""
        for name in ("num_prompts", "input_len", "output_len", "repeat"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} must be at least 1, got {getattr(self, name)}", param=name
                )
        if not 0 <= self.shared_prefix_len <= self.input_len:
            raise ConfigError(
                f"shared_prefix_len must be in 0..input_len ({self.input_len}), got "
                f"{self.shared_prefix_len}",
                param="shared_prefix_len",
            )
        if self.temperature < 0:
            raise ConfigError("temperature must be 0 or more", param="temperature")
        if not 0 < self.top_p <= 1:
            raise ConfigError("top_p must be in (0, 1]", param="top_p")


@attrs.frozen
class Lexicon:
    """The pieces of text that prompts are made of.

    Attributes:
        pieces: Words with the space before them; at least one.
        token_ids: The token of each piece; None if no tokenizer is known.
        first_ids: What the tokenizer puts before a text.
    """

    pieces: tuple[str, ...]
    token_ids: tuple[int, ...] | None = None
    first_ids: tuple[int, ...] = ()


@attrs.frozen
class BenchRequest:
    """One request.

    Attributes:
        text: The prompt.
        token_ids: The same as token ids, if the tokenizer is known.
        max_tokens: Tokens to generate.
    """

    text: str
    token_ids: tuple[int, ...] | None
    max_tokens: int


def lexicon_without_tokenizer() -> Lexicon:
    """Words alone; prompts then have about as many tokens as words."""
    return Lexicon(_WORD_PIECES)


def lexicon_of(tokenizer: Tokenizer) -> Lexicon:
    """The words that are one token each; letters for a tokenizer that has no words.

    Only words are the same tokens in a text as alone: letters may merge with each other.

    Raises:
        ConfigError: Not even a letter is one token.
    """
    for candidates in (_WORD_PIECES, string.ascii_lowercase):
        pieces: dict[int, str] = {}  # by token, as an unknown word may be one token too
        for piece in candidates:
            ids = tokenizer.encode(piece, add_special_tokens=False)
            if len(ids) == 1 and tokenizer.token_text(ids[0]).strip() == piece.strip():
                pieces[ids[0]] = piece
        if pieces:
            return Lexicon(tuple(pieces.values()), tuple(pieces), tuple(tokenizer.encode("")))
    raise ConfigError("no word and no letter is one token of this tokenizer", param="model")


def draw_requests(config: WorkloadConfig, lexicon: Lexicon, repetition: int) -> list[BenchRequest]:
    """The requests of one repetition.

    Args:
        config: Checked.
        lexicon: Of the model.
        repetition: Its number; -1 is the warm-up. No two draw the same prompts.
    """
    rng = random.Random(f"{config.bench_seed}/{repetition}")
    num_first = len(lexicon.first_ids)
    shared = _draw_pieces(rng, lexicon, config.shared_prefix_len - num_first)
    requests: list[BenchRequest] = []
    for _ in range(config.num_prompts):
        input_len, output_len = _draw_lengths(config, rng)
        own = _draw_pieces(rng, lexicon, max(1, input_len - num_first - len(shared)))
        requests.append(_request([*shared, *own], lexicon, output_len))
    return requests


def _draw_pieces(rng: random.Random, lexicon: Lexicon, count: int) -> list[int]:
    """Indices of pieces."""
    return [rng.randrange(len(lexicon.pieces)) for _ in range(max(0, count))]


def _request(indices: Sequence[int], lexicon: Lexicon, output_len: int) -> BenchRequest:
    text = "".join(lexicon.pieces[i] for i in indices)
    token_ids = None
    if lexicon.token_ids is not None:
        token_ids = (*lexicon.first_ids, *(lexicon.token_ids[i] for i in indices))
    return BenchRequest(text, token_ids, output_len)


def _draw_lengths(config: WorkloadConfig, rng: random.Random) -> tuple[int, int]:
    """Tokens in and out of one request."""
    if config.length_mix == "fixed":
        return config.input_len, config.output_len
    input_len = _draw_length(rng, SHAREGPT_INPUT_MEAN)
    return config.shared_prefix_len + input_len, _draw_length(rng, SHAREGPT_OUTPUT_MEAN)


def _draw_length(rng: random.Random, mean: float) -> int:
    """Log-normal around a mean, cut to the bounds."""
    mu = math.log(mean) - SHAREGPT_SIGMA**2 / 2
    drawn = round(rng.lognormvariate(mu, SHAREGPT_SIGMA))
    return min(max(drawn, SHAREGPT_LEN_MIN), SHAREGPT_LEN_MAX)


def arrival_times(config: WorkloadConfig, rate: float, repetition: int) -> list[float]:
    """When each request of an open loop arrives: a Poisson process.

    Args:
        config: Of the workload.
        rate: Requests per second, positive.
        repetition: Its number.

    Returns:
        Seconds from the start, ascending; the first is 0.
    """
    rng = random.Random(f"{config.bench_seed}/{repetition}/arrivals")
    times = [0.0]
    for _ in range(config.num_prompts - 1):
        times.append(times[-1] + rng.expovariate(rate))
    return times
