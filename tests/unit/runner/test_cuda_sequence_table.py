"""What the table of sequences knows of tokens that are still on a device."""

from triolet.messages.scheduler_to_runner import SequenceState
from triolet.request import SequenceId
from triolet.runner.sequence_table import SequenceTable
from triolet.sampling_params import SamplingParams


def state(sequence_id: int, num_tokens: int) -> SequenceState:
    return SequenceState(
        SequenceId(sequence_id), [7] * num_tokens, num_tokens, SamplingParams(seed=1), 0, ()
    )


def test_pending_tokens_are_ahead_and_not_known() -> None:
    table = SequenceTable(1)
    sequence = table.add(state(1, 3))
    table.expect_token(sequence, row=5)
    table.expect_token(sequence, row=2)
    assert (sequence.num_tokens, sequence.num_tokens_ahead) == (3, 5)
    assert sequence.pending_row == 2, "only the last one can be fetched"
    assert table.token_ids(sequence) == [7, 7, 7]


def test_there_is_a_column_for_every_pending_token() -> None:
    """A step is packed with the token's position before the token is there."""
    table = SequenceTable(1)
    width = table.tokens.shape[1]
    sequence = table.add(state(1, width - 1))
    table.expect_token(sequence, row=0)
    assert table.tokens.shape[1] > sequence.num_tokens_ahead
    table.append_token(sequence, 9)
    assert table.token_ids(sequence)[-1] == 9


def test_a_sequence_sent_again_under_its_id_is_another_one() -> None:
    table = SequenceTable(1)
    first = table.add(state(1, 3))
    assert table.holds(first)
    second = table.add(state(1, 4))
    assert not table.holds(first)
    assert table.holds(second)
    table.remove(SequenceId(1))
    assert not table.holds(second)
