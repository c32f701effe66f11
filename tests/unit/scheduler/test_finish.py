from __future__ import annotations

from triolet.request import FinishReason
from triolet.sampling_params import SamplingParams
from triolet.scheduler.finish import Finish, FinishRule

EOS = 2


def rule(sampling: SamplingParams, prompt: int = 4, max_model_len: int = 100) -> FinishRule:
    return FinishRule.of(sampling, (EOS,), prompt, max_model_len)


def test_eos_ends_with_stop_and_is_left_out_of_the_text() -> None:
    finish = rule(SamplingParams()).check(EOS, 1, 5)
    assert finish == Finish(FinishReason.STOP, None, drop_stop_token=True)


def test_ignore_eos_goes_on() -> None:
    assert rule(SamplingParams(ignore_eos=True)).check(EOS, 1, 5) is None


def test_a_stop_id_is_named_as_the_reason() -> None:
    sampling = SamplingParams(stop_token_ids=(7,), include_stop_str_in_output=True)
    assert rule(sampling).check(7, 3, 7) == Finish(FinishReason.STOP, 7, drop_stop_token=False)


def test_eos_named_as_a_stop_id_ends_even_with_ignore_eos() -> None:
    sampling = SamplingParams(stop_token_ids=(EOS,), ignore_eos=True)
    assert rule(sampling).check(EOS, 1, 5) == Finish(FinishReason.STOP, EOS, drop_stop_token=True)


def test_min_tokens_come_before_a_stop() -> None:
    checked = rule(SamplingParams(min_tokens=2, stop_token_ids=(7,)))
    assert [checked.check(7, n, 4 + n) is None for n in (1, 2, 3)] == [True, True, False]


def test_max_tokens_and_context_end_with_length() -> None:
    length = Finish(FinishReason.LENGTH)
    assert rule(SamplingParams(max_tokens=3)).check(9, 2, 6) is None
    assert rule(SamplingParams(max_tokens=3)).check(9, 3, 7) == length
    assert rule(SamplingParams(max_tokens=300), max_model_len=10).check(9, 6, 10) == length
    assert rule(SamplingParams(), max_model_len=10).check(9, 6, 10) == length


def test_stop_wins_over_length_at_the_same_token() -> None:
    finish = rule(SamplingParams(max_tokens=3)).check(EOS, 3, 7)
    assert finish is not None
    assert finish.reason is FinishReason.STOP
