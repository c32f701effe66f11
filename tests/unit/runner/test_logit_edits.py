"""Edits are a pure function of prompt and output: step by step and rebuilt they are the same."""

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from triolet.errors import InvalidRequest
from triolet.messages.scheduler_to_runner import SequenceState
from triolet.request import SequenceId
from triolet.runner.logit_edits import LogitEdits, SeenTokens, check_ids, needs_edits
from triolet.sampling_params import SamplingParams

token_lists = st.lists(st.integers(0, 9), max_size=40)


def state(
    prompt: list[int], output: list[int], sampling: SamplingParams, eos: tuple[int, ...] = (0,)
) -> SequenceState:
    return SequenceState(SequenceId(1), [*prompt, *output], len(prompt), sampling, 0, eos)


def edits(prompt: list[int], output: list[int], **parameters: object) -> LogitEdits:
    sampling = SamplingParams(seed=1, **parameters)  # type: ignore[arg-type]  # by name
    made = LogitEdits.of(state(prompt, output, sampling))
    assert made is not None
    return made


def test_plain_parameters_need_no_edits() -> None:
    plain = SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, stop=("x",), seed=1)
    assert not needs_edits(plain)
    assert LogitEdits.of(state([1], [], plain)) is None


@given(token_lists, token_lists)
def test_seen_tokens_count_the_output_and_list_the_prompt(
    prompt: list[int], output: list[int]
) -> None:
    seen = SeenTokens(prompt, output)
    counts = dict(zip(seen.ids.tolist(), seen.counts.tolist(), strict=True))
    assert counts == {token: Counter(output)[token] for token in {*prompt, *output}}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), token_lists)
def test_appending_equals_rebuilding(prompt: list[int], output: list[int]) -> None:
    parameters: dict[str, object] = {
        "repetition_penalty": 1.5,
        "min_tokens": 5,
        "bad_word_token_ids": ((3,), (1, 2), (1, 1, 4)),
    }
    grown = edits(prompt, [], **parameters)
    for token in output:
        grown.append(token)
    rebuilt = edits(prompt, output, **parameters)
    assert grown.banned_ids().tolist() == rebuilt.banned_ids().tolist()
    assert grown.seen is not None
    assert rebuilt.seen is not None
    assert grown.seen.ids.tolist() == rebuilt.seen.ids.tolist()
    assert grown.seen.counts.tolist() == rebuilt.seen.counts.tolist()


def test_presence_and_frequency_look_at_the_output_only() -> None:
    seen = edits([1, 2, 3], [4], presence_penalty=1.0).seen
    assert seen is not None
    assert seen.ids.tolist() == [4]


def test_a_bad_word_bans_its_last_token_after_its_first_ones() -> None:
    words = ((7,), (1, 2), (1, 1, 4))
    assert edits([1], [], bad_word_token_ids=words).banned_ids().tolist() == [7]
    assert edits([5], [1], bad_word_token_ids=words).banned_ids().tolist() == [7, 2]
    assert edits([5], [1, 1], bad_word_token_ids=words).banned_ids().tolist() == [7, 2, 4]
    assert edits([5], [1, 2], bad_word_token_ids=words).banned_ids().tolist() == [7]


def test_min_tokens_bans_eos_and_stop_ids_until_it_is_reached() -> None:
    made = edits([1], [], min_tokens=2, stop_token_ids=(5, 6))
    for expected in ([0, 5, 6], [0, 5, 6], [], []):
        assert made.banned_ids().tolist() == expected
        made.append(3)


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"logit_bias": {100: 1.0}}, "logit_bias"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
        ({"allowed_token_ids": (3, 100)}, "allowed_token_ids"),
        ({"bad_word_token_ids": ((3, 100),)}, "bad_words"),
    ],
)
def test_ids_that_reach_past_a_row_are_refused(parameters: dict[str, object], param: str) -> None:
    sampling = SamplingParams(seed=1, **parameters)  # type: ignore[arg-type]  # by name
    with pytest.raises(InvalidRequest, match=r"ids are 0\.\.99") as caught:
        check_ids(state([1], [], sampling), vocab_size=100, num_rows=104)
    assert caught.value.param == param


def test_prompt_ids_may_be_padding_but_not_beyond() -> None:
    sampling = SamplingParams(seed=1)
    check_ids(state([103], [], sampling), vocab_size=100, num_rows=104)
    with pytest.raises(InvalidRequest, match="prompt has token id 104"):
        check_ids(state([5, 104], [], sampling), vocab_size=100, num_rows=104)
