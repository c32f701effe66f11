"""Columns of sequences that come and go: nobody reads another's row."""

import random

import pytest
from hypothesis import given, settings, strategies as st

from triolet.messages.scheduler_to_runner import ScheduledSequence, SequenceState
from triolet.request import SequenceId
from triolet.runner.sequence_table import SequenceTable
from triolet.sampling_params import SamplingParams


def state(sequence_id: int, token_ids: list[int], **sampling: float) -> SequenceState:
    parameters = SamplingParams(seed=sequence_id, **sampling)  # type: ignore[arg-type]  # by name
    return SequenceState(SequenceId(sequence_id), token_ids, 1, parameters, 0, ())


def blocks(sequence_id: int, *groups: list[int]) -> ScheduledSequence:
    return ScheduledSequence(SequenceId(sequence_id), 0, 1, groups, samples=True)


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_the_table_equals_a_dictionary_of_lists(seed: int) -> None:
    """Adding, replacing, growing and removing, against the obvious model of it."""
    rng = random.Random(seed)
    table = SequenceTable(num_groups=2)
    tokens: dict[int, list[int]] = {}
    tables: dict[int, tuple[list[int], list[int]]] = {}
    for _ in range(120):
        name = rng.randrange(40)
        action = rng.random()
        if action < 0.35:
            tokens[name] = [rng.randrange(1000) for _ in range(rng.choice((1, 5, 150)))]
            tables[name] = ([], [])
            table.add(state(name, tokens[name]))
        elif action < 0.5:
            table.remove(SequenceId(name))
            tokens.pop(name, None)
            tables.pop(name, None)
        elif name in tokens and action < 0.8:
            token = rng.randrange(1000)
            table.append_token(table[SequenceId(name)], token)
            tokens[name] = [*tokens[name], token]
        elif name in tokens:
            new = ([rng.randrange(99)] * rng.randrange(40), [rng.randrange(99)] * rng.randrange(3))
            table.append_blocks(blocks(name, *new))
            for held, more in zip(tables[name], new, strict=True):
                held += more
        table.check_integrity()
    assert len(table) == len(tokens)
    for name, expected in tokens.items():
        sequence = table[SequenceId(name)]
        assert table.token_ids(sequence) == expected
        for group in range(2):
            kept = table.blocks[group][sequence.row, : sequence.num_blocks[group]]
            assert kept.tolist() == tables[name][group]


def test_greedy_rows_have_neutral_warpers() -> None:
    table = SequenceTable(1)
    greedy = table.add(state(1, [5], temperature=0.0, top_p=0.5, min_p=0.3))
    warm = table.add(state(2, [5], temperature=0.5, top_p=0.5, min_p=0.3))
    assert (table.temperature[greedy.row], table.top_p[greedy.row]) == (0.0, 1.0)
    assert (table.temperature[warm.row], table.top_p[warm.row]) == (0.5, 0.5)
    assert table.min_p[greedy.row] == 0.0


def test_a_row_that_is_used_again_forgets_its_last_owner() -> None:
    table = SequenceTable(1)
    first = table.add(state(1, [5, 6, 7], temperature=0.5))
    table.append_blocks(blocks(1, [3, 4]))
    table.remove(SequenceId(1))
    second = table.add(state(2, [9], temperature=1.5))
    assert second.row == first.row
    assert table.token_ids(second) == [9]
    assert second.num_blocks == [0]
    assert table.temperature[second.row] == 1.5


def test_an_unknown_sequence_is_a_bug_but_may_end() -> None:
    table = SequenceTable(1)
    table.remove(SequenceId(7))
    with pytest.raises(KeyError):
        table[SequenceId(7)]
