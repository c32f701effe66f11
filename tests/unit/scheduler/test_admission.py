from __future__ import annotations

import pytest

from support.kv_runner import runner_info
from triolet.config import CacheConfig, SchedulerConfig
from triolet.errors import ConfigError, InvalidRequest, PromptTooLong
from triolet.sampling_params import SamplingParams
from triolet.scheduler.admission import check_fits
from triolet.scheduler.scheduler import Scheduler


def make_scheduler(num_blocks: int, max_model_len: int) -> Scheduler:
    return Scheduler(
        SchedulerConfig(),
        CacheConfig(),
        runner_info(num_blocks, 4, max_model_len=max_model_len),
        eos_token_ids=(),
        model_key="m",
        secret=b"s",
    )


def test_a_prompt_must_leave_room_for_one_token() -> None:
    check_fits(9, SamplingParams(max_tokens=500, n=100), 0, 10)
    for length in (10, 11):
        with pytest.raises(PromptTooLong, match=rf"{length} tokens.*at most 10 tokens") as caught:
            check_fits(length, SamplingParams(), 0, 10)
        assert caught.value.param == "prompt"


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no tokens") as caught:
        check_fits(0, SamplingParams(), 0, 10)
    assert caught.value.param == "prompt"


def test_a_prefix_counts() -> None:
    check_fits(6, SamplingParams(), 4, 10)
    with pytest.raises(PromptTooLong, match="6 tokens and the output so far 5") as caught:
        check_fits(6, SamplingParams(), 5, 10)
    assert caught.value.param == "prefix"


@pytest.mark.parametrize(
    ("sampling", "prefix", "param"),
    [
        (SamplingParams(beam_width=2, presence_penalty=1.0), 0, "presence_penalty"),
        (SamplingParams(beam_width=2, logit_bias={1: 1.0}), 0, "logit_bias"),
        (SamplingParams(beam_width=2, allowed_token_ids=[1]), 0, "allowed_token_ids"),
        (SamplingParams(beam_width=2), 1, "prefix"),
    ],
)
def test_what_beam_search_would_ignore_is_refused(
    sampling: SamplingParams, prefix: int, param: str
) -> None:
    with pytest.raises(InvalidRequest, match="beam_width") as caught:
        check_fits(3, sampling, prefix, 10)
    assert caught.value.param == param


def test_a_small_cache_lowers_the_longest_context() -> None:
    assert make_scheduler(num_blocks=5, max_model_len=100).max_model_len == 20
    assert make_scheduler(num_blocks=50, max_model_len=100).max_model_len == 100


def test_a_cache_without_room_for_any_request_is_refused() -> None:
    with pytest.raises(ConfigError, match="too few"):
        Scheduler(
            SchedulerConfig(),
            CacheConfig(),
            runner_info(1, 4, (None, None)),
            eos_token_ids=(),
            model_key="m",
            secret=b"s",
        )
