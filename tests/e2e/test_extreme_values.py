"""Values at the edges of their ranges, on a real runner: none of them may kill it.

Found by schemathesis: a `top_k` of more than 32 bits was accepted and ended the worker.
"""

from __future__ import annotations

from typing import Any

import pytest

from triolet.engine.open_engine import open_engine
from triolet.errors import RequestFailed
from triolet.sampling_params import LOGIT_BIAS_MAX, SEED_MAX, SamplingParams

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TINIEST = 5e-324
VALUES: list[dict[str, Any]] = [
    {"top_k": 2**63},
    {"top_k": 2**31},
    {"top_k": 1, "top_p": TINIEST, "min_p": 1.0},
    {"top_p": TINIEST},
    {"min_p": TINIEST},
    {"min_p": 1.0},
    {"temperature": TINIEST},
    {"temperature": 2e-5},
    {"temperature": 2.0, "top_k": -1},
    {"repetition_penalty": 0.01},
    {"repetition_penalty": 100.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
    {"frequency_penalty": -2.0, "presence_penalty": -2.0},
    {"logit_bias": dict.fromkeys(range(200), -100.0)},
    {"logit_bias": dict.fromkeys(range(200), 100.0), "temperature": 0.0},
    {"seed": SEED_MAX},
    {"seed": -SEED_MAX - 1},
    {"max_tokens": 2**62, "stop": ["a", "e", "i", "o", "u", " "]},
    {"min_tokens": 4, "stop_token_ids": [0] * 1000},
    {"allowed_token_ids": [5] * 1000, "logprobs": 20},
    {"bad_words": ["a" * 64] * 64},
    {"n": 64, "prompt_logprobs": 20},
]


async def test_no_value_in_its_range_kills_the_runner() -> None:
    assert LOGIT_BIAS_MAX >= 200
    async with open_engine("tiny-random", kv_cache_tokens=4096) as engine:
        for values in VALUES:
            sampling = SamplingParams(**{"max_tokens": 4, "seed": 1, **values})
            async with engine.generate("hello", sampling) as stream:
                usage = await stream.wait_finished()
            assert usage.completion_tokens > 0, values
        impossible = SamplingParams(max_tokens=4, min_tokens=4, allowed_token_ids=(0,))
        with pytest.raises(RequestFailed, match="no token is left"):
            async with engine.generate("hello", impossible) as stream:
                await stream.wait_finished()
        assert engine.statistics().runner_restarts == 0
