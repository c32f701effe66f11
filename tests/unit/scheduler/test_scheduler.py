"""What the scheduler promises, one promise at a time, on a runner that checks every KV read."""

from __future__ import annotations

from typing import Any, cast

import attrs
import pytest

from support.kv_runner import EOS, runner_info
from support.scheduler_simulation import SchedulerSimulation
from triolet.config import SchedulerConfig
from triolet.errors import InternalError, PromptTooLong
from triolet.messages.scheduler_to_dispatcher import RequestErrored
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.request import FinishReason, RequestId, SequenceId
from triolet.sampling_params import SamplingParams

LONG = SamplingParams(seed=1, ignore_eos=True)


def simulate(
    num_blocks: int = 64,
    *,
    block_size: int = 4,
    windows: tuple[int | None, ...] = (None,),
    max_model_len: int = 64,
    steps_in_flight: int = 1,
    prefix_caching: bool = True,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    **settings: object,
) -> SchedulerSimulation:
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
    )
    return SchedulerSimulation(
        runner_info(num_blocks, block_size, windows, max_model_len, steps_in_flight),
        attrs.evolve(config, **cast("dict[str, Any]", settings)),
        prefix_caching=prefix_caching,
    )


def sampling(max_tokens: int | None, **settings: object) -> SamplingParams:
    return attrs.evolve(LONG, max_tokens=max_tokens, **cast("dict[str, Any]", settings))


def rows(simulation: SchedulerSimulation) -> list[tuple[int, int]]:
    """(sequence, tokens) of the next step, which is run."""
    batch = simulation.launch()
    assert batch is not None
    simulation.collect()
    return [(row.sequence_id, row.num_new_tokens) for row in batch.scheduled]


# Batching


def test_nothing_to_do_is_no_step() -> None:
    simulation = simulate()
    assert simulation.launch() is None
    assert not simulation.scheduler.has_work


def test_a_request_joins_running_decodes_in_the_next_step() -> None:
    simulation = simulate()
    simulation.submit(range(5), sampling(20))
    assert rows(simulation) == [(1, 5)]
    simulation.submit(range(7), sampling(20))
    assert rows(simulation) == [(1, 1), (2, 3)], "a full block of its prompt is cached"
    assert rows(simulation) == [(1, 1), (2, 1)]


def test_a_long_prompt_is_computed_in_chunks_beside_decodes() -> None:
    simulation = simulate(max_num_batched_tokens=10, max_num_seqs=4)
    simulation.submit([1, 2], sampling(20))
    simulation.submit([3, 4], sampling(20))
    rows(simulation)
    simulation.submit(range(30), sampling(20))
    assert [rows(simulation) for _ in range(5)] == [
        [(1, 1), (2, 1), (3, 8)],
        [(1, 1), (2, 1), (3, 8)],
        [(1, 1), (2, 1), (3, 8)],
        [(1, 1), (2, 1), (3, 6)],
        [(1, 1), (2, 1), (3, 1)],
    ]


def test_a_prefill_that_comes_first_leaves_room_for_the_decodes_behind_it() -> None:
    simulation = simulate(max_num_batched_tokens=8, max_num_seqs=4, scheduling_policy="priority")
    for number in range(3):
        simulation.submit([number], sampling(20))
    rows(simulation)
    simulation.submit(range(12), sampling(5), priority=-1)
    assert rows(simulation) == [(1, 1), (2, 1), (3, 1), (4, 5)]
    assert rows(simulation) == [(4, 5), (1, 1), (2, 1), (3, 1)]
    assert rows(simulation) == [(4, 2), (1, 1), (2, 1), (3, 1)]


def test_the_long_prefill_threshold_caps_a_chunk() -> None:
    simulation = simulate(long_prefill_token_threshold=6)
    simulation.submit(range(10), sampling(2))
    simulation.submit(range(20, 23), sampling(2))
    assert rows(simulation) == [(1, 6), (2, 3)]
    assert rows(simulation) == [(1, 4), (2, 1)]


def test_max_num_seqs_bounds_the_rows() -> None:
    simulation = simulate(max_num_seqs=3)
    for number in range(5):
        simulation.submit([number], sampling(4))
    assert len(rows(simulation)) == 3
    statistics = simulation.scheduler.statistics()
    assert (statistics.requests_running, statistics.requests_waiting) == (3, 2)
    simulation.drain(100)


def test_priority_goes_first_and_waiting_counts() -> None:
    simulation = simulate(max_num_seqs=1, scheduling_policy="priority", ageing_seconds=1.0)
    order: list[RequestId] = []
    slow = simulation.submit([1], sampling(2), priority=5)
    rows(simulation)  # it runs: a request that runs is not put back for a better one
    late = simulation.submit([2], sampling(2), priority=2)
    soon = simulation.submit([3], sampling(2), priority=1)
    simulation.now += 3.0
    last = simulation.submit([4], sampling(2), priority=0)
    while simulation.scheduler.has_work:
        simulation.step()
        order += [r for r in simulation.finished if r not in order]
    assert order == [slow, soon, late, last], "priority 2 that waited 3 s beats a fresh 0"


def test_a_hot_stream_of_high_priority_cannot_starve_a_request() -> None:
    simulation = simulate(max_num_seqs=1, scheduling_policy="priority", ageing_seconds=0.1)
    cold = simulation.submit([1], sampling(1), priority=10)
    for number in range(200):
        simulation.submit([2, number % 20], sampling(1), priority=0)
        simulation.step()
        if cold in simulation.finished:
            break
    assert cold in simulation.finished
    assert simulation.now < 10 * 0.1 + 0.2, "priority difference x ageing_seconds, and a step"


# Ends


def test_ending_a_request_frees_its_blocks_at_once_in_any_state() -> None:
    simulation = simulate(max_num_seqs=1, steps_in_flight=2)
    running = simulation.submit(range(9), sampling(20))
    waiting = simulation.submit(range(9), sampling(20))
    simulation.launch()
    simulation.launch()
    simulation.end(running)
    assert simulation.scheduler.statistics().blocks_used == 0
    simulation.end(waiting)
    simulation.end(waiting)
    simulation.scheduler.end(RequestId("never was"))
    assert not simulation.scheduler.has_work
    simulation.check()


def test_results_for_an_ended_request_are_dropped_and_counted() -> None:
    simulation = simulate(steps_in_flight=2)
    gone = simulation.submit(range(9), sampling(20))
    simulation.launch()
    simulation.launch()
    simulation.end(gone)
    while simulation.collect():
        pass
    assert simulation.scheduler.statistics().dropped_results == 2
    assert simulation.scheduler.statistics().blocks_cached == 0, "a dead row registers nothing"


def test_the_runner_is_told_to_forget_what_ended() -> None:
    simulation = simulate()
    simulation.submit([1, 2], sampling(2))
    simulation.drain(10)
    assert simulation.runner.num_held == 1
    simulation.submit([3], sampling(1))
    batch = simulation.launch()
    assert batch is not None
    assert batch.ended == [1]


def test_no_row_is_planned_past_the_last_token() -> None:
    simulation = simulate(steps_in_flight=2)
    simulation.submit([1, 2], sampling(1))
    assert simulation.launch() is not None
    assert simulation.launch() is None
    simulation.drain(10)
    assert simulation.scheduler.statistics().dropped_results == 0


def test_with_two_steps_in_flight_an_eos_costs_one_dropped_token() -> None:
    simulation = simulate(steps_in_flight=2)
    request = simulation.submit(range(3), SamplingParams(seed=3, stop_token_ids=list(range(1, 23))))
    simulation.drain(100)
    assert simulation.finished[request].endings == {0: FinishReason.STOP}
    assert simulation.scheduler.statistics().dropped_results == 1


def test_a_stop_string_voids_later_tokens_and_their_blocks() -> None:
    simulation = simulate(steps_in_flight=2)
    prompt = [1, 2, 3]
    request = simulation.submit(prompt, sampling(30))
    for _ in range(14):
        simulation.step()
    tokens = list(simulation.clients[request].outputs[0])
    simulation.stop(request, 0, 5)
    assert not simulation.scheduler.has_work
    assert simulation.scheduler.statistics().blocks_used == 0
    again = simulation.submit([*prompt, *tokens], sampling(1))
    simulation.launch()
    cached = {r.request_id: r for r in simulation.scheduler.requests()}[again]
    assert cached.computed_tokens == 8, "prompt and 5 tokens are two full blocks"


def test_a_stop_string_for_an_output_that_is_over_changes_nothing() -> None:
    simulation = simulate()
    request = simulation.submit([1], sampling(1))
    simulation.drain(10)
    simulation.scheduler.stop_matched(request, 0, 1)
    simulation.scheduler.stop_matched(RequestId("never was"), 0, 1)
    assert simulation.scheduler.take_facts() == []


def test_an_error_of_one_row_fails_its_request_only() -> None:
    simulation = simulate(steps_in_flight=2)
    bad = simulation.submit([1], sampling(9, n=2))
    good = simulation.submit([2], sampling(9))
    simulation.step()
    simulation.runner.failing.add(SequenceId(1))
    simulation.drain(100)
    assert simulation.finished[bad].errored
    assert simulation.finished[good].endings == {0: FinishReason.LENGTH}


def test_an_answer_that_does_not_fit_the_step_is_refused_and_changes_nothing() -> None:
    simulation = simulate()
    simulation.submit([1], sampling(3))
    simulation.submit([2], sampling(3))
    simulation.launch()
    result = simulation.runner.collect()
    bad = [
        attrs.evolve(result, step=7),
        attrs.evolve(result, sequence_ids=result.sequence_ids[::-1]),
        attrs.evolve(result, sequence_ids=[SequenceId(1)], token_ids=[1]),
        attrs.evolve(result, token_ids=[1, 23]),
        attrs.evolve(result, token_ids=[-1, 2]),
        attrs.evolve(result, logprobs=[None]),
    ]
    for answer in bad:
        with pytest.raises(InternalError, match="step"):
            simulation.scheduler.update(answer, 0.0)
        simulation.check()
    assert len(simulation.scheduler.update(result, 0.0)) == 2


# Trees


def test_n_outputs_compute_the_prompt_once() -> None:
    simulation = simulate(prefix_caching=False)
    simulation.submit(range(22), sampling(4, n=5))
    assert rows(simulation) == [(1, 22)]
    assert rows(simulation) == [(1, 1)] + [(child, 2) for child in (2, 3, 4, 5)]
    statistics = simulation.scheduler.statistics()
    assert statistics.requests_running == 1
    assert statistics.sequences_running == 5
    simulation.check()
    simulation.drain(50)


def test_more_outputs_than_seats_take_turns() -> None:
    simulation = simulate(max_num_seqs=2)
    request = simulation.submit(range(6), sampling(3, n=7))
    simulation.drain(100)
    assert len(simulation.finished[request].endings) == 7


def test_n_outputs_on_a_pool_for_one_run_one_after_the_other() -> None:
    simulation = simulate(num_blocks=4, max_model_len=16)
    request = simulation.submit(range(9), sampling(7, n=8))
    simulation.drain(500)
    assert len(simulation.finished[request].endings) == 8


def test_keep_ends_the_others_when_enough_have_finished() -> None:
    simulation = simulate()
    request = simulation.submit([1, 2], SamplingParams(seed=5, n=8, keep=3, max_tokens=40))
    simulation.drain(100)
    reasons = list(simulation.finished[request].endings.values())
    assert reasons.count(FinishReason.CANCELLED) == 5
    assert simulation.scheduler.statistics().blocks_used == 0


def test_a_stop_string_counts_for_keep() -> None:
    simulation = simulate()
    request = simulation.submit([1, 2], sampling(30, n=3, keep=1))
    for _ in range(4):
        simulation.step()
    simulation.stop(request, 1, 2)
    endings = simulation.finished[request].endings
    assert endings == {0: FinishReason.CANCELLED, 1: None, 2: FinishReason.CANCELLED}


@pytest.mark.parametrize("windows", [(None,), (None, 6), (3,)])
@pytest.mark.parametrize("num_blocks", [16, 64])
def test_beam_search_equals_the_naive_search(
    windows: tuple[int | None, ...], num_blocks: int
) -> None:
    """Against a search over whole lists of tokens; the small pool preempts beams."""
    simulation = simulate(num_blocks, block_size=2, windows=windows, steps_in_flight=2)
    requests = [
        simulation.submit(
            range(3 + width), sampling(7, n=2, beam_width=width, ignore_eos=False, logprobs=2)
        )
        for width in (2, 3, 5)
    ]
    simulation.drain(2000)
    for request in requests:
        assert list(simulation.finished[request].endings) == [0, 1]
    simulation.check()


def test_a_beam_search_alone_on_the_smallest_pool_ends() -> None:
    """Beams that have their candidates must give their blocks to those that have not."""
    simulation = simulate(num_blocks=6, block_size=2, max_model_len=12)
    simulation.submit(range(5), sampling(7, n=1, beam_width=5))
    simulation.drain(1000)
    assert simulation.scheduler.statistics().preemptions > 0


# Prefix cache, resume, prompt logprobs


def test_cached_tokens_are_reported_and_cached_blocks_shared() -> None:
    simulation = simulate()
    simulation.submit(range(10), sampling(2))
    simulation.drain(10)
    simulation.submit(range(10), sampling(2))
    assert rows(simulation) == [(2, 2)]
    statistics = simulation.scheduler.statistics()
    assert (statistics.prefix_hits, statistics.prefix_queries) == (8, 20)


def test_a_block_is_found_only_after_the_step_that_filled_it_has_ended() -> None:
    simulation = simulate(steps_in_flight=2, max_num_batched_tokens=8)
    simulation.submit(range(24), sampling(1))
    simulation.launch()
    simulation.launch()
    simulation.collect()
    assert simulation.scheduler.statistics().blocks_used == 4
    simulation.end(RequestId("r1"))
    assert simulation.scheduler.statistics().blocks_cached == 2, "the other two are in flight"


def test_a_salt_shares_with_nobody_else() -> None:
    simulation = simulate()
    for salt in (None, "a", "b", "a"):
        simulation.submit(range(10), sampling(1), cache_salt=salt)
        simulation.drain(10)
    assert simulation.scheduler.statistics().prefix_hits == 8


def test_reset_prefix_cache_forgets_but_running_requests_go_on() -> None:
    simulation = simulate()
    simulation.submit(range(10), sampling(5))
    simulation.step()
    simulation.scheduler.reset_prefix_cache()
    simulation.check()
    simulation.submit(range(10), sampling(5))
    simulation.drain(20)
    assert simulation.scheduler.statistics().prefix_hits == 0


def test_prompt_logprobs_are_computed_even_if_the_prompt_is_cached() -> None:
    simulation = simulate(max_num_batched_tokens=8)
    simulation.submit(range(20), sampling(2))
    simulation.drain(20)
    request = simulation.submit(range(20), sampling(2, prompt_logprobs=0, n=3))
    simulation.drain(20)
    assert simulation.finished[request].scored
    assert simulation.scheduler.statistics().prefix_hits == 0


def test_a_prompt_of_one_token_is_scored_too() -> None:
    simulation = simulate()
    request = simulation.submit([4], sampling(1, prompt_logprobs=0))
    simulation.drain(10)
    assert simulation.finished[request].scored


def test_a_resume_goes_on_after_the_tokens_already_emitted() -> None:
    simulation = simulate()
    first = simulation.submit(range(5), sampling(12))
    simulation.drain(50)
    tokens = simulation.finished[first].outputs[0]
    again = simulation.submit(range(5), sampling(12), prefix=tokens[:7])
    simulation.drain(50)
    assert simulation.finished[again].outputs[0] == tokens


def test_a_resume_that_is_over_already_ends_at_once() -> None:
    simulation = simulate()
    request = simulation.submit(range(5), sampling(3), prefix=[1, 2, 3])
    assert simulation.finished[request].endings == {0: FinishReason.LENGTH}
    stopped = simulation.submit(range(5), sampling(9, ignore_eos=False, n=2), prefix=[1, EOS])
    assert simulation.clients[stopped].endings == {0: FinishReason.STOP}
    simulation.drain(50)


def test_what_cannot_fit_is_not_taken_on() -> None:
    simulation = simulate(num_blocks=3)
    assert simulation.scheduler.max_model_len == 12
    with pytest.raises(PromptTooLong):
        simulation.submit(range(12), sampling(1))
    assert not simulation.scheduler.has_work
    simulation.clients.clear()
    simulation.submit(range(11), sampling(1))
    simulation.drain(10)


# Preemption


def test_long_outputs_on_a_small_pool_all_finish_with_little_recompute() -> None:
    """48 requests of 8 + 56 tokens on a pool for 6 of them; answers equal those alone."""
    simulation = simulate(num_blocks=6 * 16, max_num_seqs=48)
    for number in range(48):
        simulation.submit([number % 20, 1, 2, 3, number // 20, 5, 6, 7], sampling(56, seed=number))
    simulation.drain(2000)
    statistics = simulation.scheduler.statistics()
    assert statistics.preemptions > 0
    assert statistics.recomputed_tokens < 0.25 * statistics.computed_tokens


def test_the_first_by_key_is_never_preempted() -> None:
    simulation = simulate(num_blocks=12, max_model_len=32)
    for number in range(6):
        simulation.submit([number], sampling(30))
    while simulation.scheduler.has_work:
        first = min(simulation.scheduler.requests(), key=lambda r: r.arrival_time)
        simulation.step()
        for request in simulation.scheduler.requests():
            if request.request_id == first.request_id:
                assert request.preemptions == first.preemptions
    assert simulation.scheduler.statistics().preemptions > 0


def test_preemptions_per_request_are_bounded() -> None:
    simulation = simulate(
        num_blocks=24, max_model_len=64, max_num_seqs=12, max_preemptions=2, prefix_caching=False
    )
    for number in range(16):
        simulation.submit([number % 23], sampling(60))
    highest = 0
    while simulation.scheduler.has_work:
        simulation.step()
        highest = max([highest, *(r.preemptions for r in simulation.scheduler.requests())])
    assert simulation.scheduler.statistics().preemptions > 0
    assert highest <= 3


def test_a_preempted_request_keeps_its_place_in_the_queue() -> None:
    simulation = simulate(num_blocks=6, max_model_len=24, prefix_caching=False)
    first = simulation.submit(range(8), sampling(14))
    second = simulation.submit(range(10, 13), sampling(14))
    while not simulation.scheduler.statistics().preemptions:
        simulation.step()
    assert simulation.scheduler.requests()[1].phase == "preempted"
    third = simulation.submit([3], sampling(1))
    simulation.drain(100)
    assert list(simulation.finished) == [first, second, third]
    assert simulation.scheduler.statistics().recomputed_tokens > 0


# The runner dies


def test_every_request_goes_on_after_the_runner_died() -> None:
    simulation = simulate(steps_in_flight=2, max_num_seqs=4)
    for number in range(6):
        simulation.submit([number] * 5, sampling(20, n=2, logprobs=1))
    for deaths in range(3):
        for _ in range(9):
            simulation.step()
        simulation.launch()
        simulation.lose_runner()
        simulation.check()
        assert simulation.scheduler.statistics().runner_losses == deaths + 1
        assert simulation.scheduler.statistics().blocks_cached == 0
    simulation.drain(300)
    assert simulation.num_poisoned == 0


def test_results_of_a_lost_runner_are_dropped() -> None:
    simulation = simulate()
    simulation.submit([1], sampling(5))
    simulation.launch()
    old = simulation.runner.in_flight[0][1]
    simulation.lose_runner()
    assert simulation.scheduler.update(old, 0.0) == []
    simulation.launch()
    assert simulation.scheduler.update(old, 0.0) == []
    assert simulation.scheduler.statistics().dropped_results == 2
    simulation.collect()
    simulation.drain(20)


@pytest.mark.parametrize("num_poison", [1, 2])
def test_only_what_kills_alone_is_failed(num_poison: int) -> None:
    """Prompts that kill at position 18, in their third chunk, beside honest requests."""
    simulation = simulate(max_num_seqs=4, steps_in_flight=2, max_num_batched_tokens=8)
    poison = [simulation.submit(range(n, 20 + n), sampling(5)) for n in range(num_poison)]
    good = [simulation.submit([number], sampling(12, n=2)) for number in range(3)]
    deaths = 0
    while simulation.scheduler.has_work:
        batch = simulation.launch()
        if batch is not None and _computes_position(batch, num_poison, 18):
            simulation.lose_runner()
            deaths += 1
            assert deaths < 10, "the poison is not found"
            continue
        simulation.collect()
    assert [simulation.finished[request].errored for request in poison] == [True] * num_poison
    assert simulation.num_poisoned == num_poison
    for request in good:
        assert simulation.finished[request].endings == {
            0: FinishReason.LENGTH,
            1: FinishReason.LENGTH,
        }


def _computes_position(batch: ScheduledBatch, sequences: int, position: int) -> bool:
    """Whether the step computes this position of one of the first sequences."""
    return any(
        row.sequence_id <= sequences
        and row.num_computed_tokens <= position < row.num_computed_tokens + row.num_new_tokens
        for row in batch.scheduled
    )


def test_poison_is_an_error_that_names_itself() -> None:
    simulation = simulate()
    simulation.submit([1], sampling(5))
    for _ in range(2):
        simulation.launch()
        simulation.lose_runner()
    simulation.launch()
    simulation.runner.die()
    simulation.scheduler.runner_lost(0.0)
    (fact,) = simulation.scheduler.take_facts()
    assert isinstance(fact, RequestErrored)
    assert fact.code == "poison_request"
    assert not simulation.scheduler.has_work


def test_another_size_of_cache_after_a_restart_is_a_bug() -> None:
    simulation = simulate()
    simulation.scheduler.runner_lost(0.0)
    other = attrs.evolve(simulation.info, num_blocks=1)
    with pytest.raises(AssertionError, match="num_blocks"):
        simulation.scheduler.runner_restored(other, 2)


# Cost


def test_a_step_does_not_look_at_waiting_requests_beyond_the_head() -> None:
    """Counted, not timed: computing order, hits and growth touches the head only."""
    simulation = simulate(max_num_seqs=2, num_blocks=12, max_model_len=24)
    for number in range(200):
        simulation.submit([number % 20, number // 20], sampling(20))
    simulation.step()
    touched = [r for r in simulation.scheduler.requests() if r.phase != "waiting"]
    assert len(touched) == 2
    queries = simulation.scheduler.statistics().prefix_queries
    simulation.step()
    assert simulation.scheduler.statistics().prefix_queries == queries
