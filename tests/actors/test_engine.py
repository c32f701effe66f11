"""The real engine on a fake model and a virtual clock: what a caller sees, and what is left."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from triolet.engine.client import Health
from triolet.engine.engine import Engine
from triolet.errors import (
    DeadlineExceeded,
    EngineDead,
    InvalidRequest,
    NotServing,
    PromptTooLong,
    QueueFull,
    RequestCancelled,
)
from triolet.output import OutputDelta, TokenLogprobs, Usage
from triolet.request import FinishReason, Timeouts
from triolet.sampling_params import OutputKind, SamplingParams, StructuredOutputs
from triolet.testing.engines import STEP_S, open_fake_engine
from triolet.testing.fake_runner import expected_tokens

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def greedy(max_tokens: int, **fields: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **fields)  # type: ignore[arg-type] # any field


def prompt(number: int, length: int = 20) -> list[int]:
    return [32 + (number * 7 + i * 3) % 90 for i in range(length)]


def text_of(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode()


async def settle() -> None:
    """Let the engine take its marks up, without a step passing."""
    await wait_all_tasks_blocked()


def assert_empty(engine: Engine) -> None:
    statistics = engine.statistics()
    assert (statistics.requests_running, statistics.requests_waiting) == (0, 0)
    assert statistics.requests_live == 0
    assert statistics.blocks_used == 0


async def test_a_stream_gives_the_models_tokens_and_ends(autojump_clock: MockClock) -> None:
    async with open_fake_engine() as house:
        async with house.engine.generate(prompt(1), GREEDY) as stream:
            deltas = [delta async for delta in stream]
        expected = expected_tokens(prompt(1), 8)
        assert [t for delta in deltas for t in delta.token_ids] == expected
        assert "".join(delta.text for delta in deltas) == text_of(expected)
        assert deltas[-1].finish_reason is FinishReason.LENGTH
        assert stream.usage == Usage(20, 8, 0)
        await settle()
        assert_empty(house.engine)


async def test_text_prompts_and_messages_are_tokenized(autojump_clock: MockClock) -> None:
    async with open_fake_engine() as house:
        tokenizer = house.engine.tokenizer
        async with house.engine.generate("hello", GREEDY) as stream:
            assert await stream.text() == text_of(expected_tokens(tokenizer.encode("hello"), 8))
        messages = [{"role": "user", "content": "hi"}]
        async with house.engine.generate(messages, GREEDY) as stream:
            rendered = tokenizer.encode(tokenizer.render(messages), add_special_tokens=False)
            assert list(stream.prompt_token_ids) == rendered
            await stream.text()


async def test_many_streams_share_steps_and_equal_their_solo_answers(
    autojump_clock: MockClock,
) -> None:
    texts: dict[int, str] = {}

    async def one(engine: Engine, number: int) -> None:
        async with engine.generate(prompt(number, 5 + number), greedy(4 + number)) as stream:
            texts[number] = await stream.text()

    async with open_fake_engine() as house:
        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(one, house.engine, number)
        assert house.engine.statistics().steps <= 25
        await settle()
        assert_empty(house.engine)
    for number in range(16):
        assert texts[number] == text_of(expected_tokens(prompt(number, 5 + number), 4 + number))


async def test_leaving_a_scope_frees_its_blocks_before_the_next_step(
    autojump_clock: MockClock,
) -> None:
    async with open_fake_engine(step_time=1.0) as house:
        async with house.engine.generate(prompt(1), greedy(400)) as stream:
            async for _ in stream:
                break
            assert house.engine.statistics().blocks_used > 0
            left_at = trio.current_time()
        await settle()
        assert_empty(house.engine)
        assert trio.current_time() == left_at


@pytest.mark.parametrize("delay", [0.0, 0.5 * STEP_S, 2.5 * STEP_S, 9.5 * STEP_S])
async def test_cancelling_leaves_nothing_whatever_the_request_was_doing(
    delay: float, autojump_clock: MockClock
) -> None:
    """Queued, prefilling in chunks, decoding; many at a time."""

    async def leave_early(engine: Engine, number: int) -> None:
        with trio.move_on_after(delay):
            async with engine.generate(prompt(number, 100), greedy(50, n=2)) as stream:
                async for _ in stream:
                    pass

    async with open_fake_engine(
        max_num_seqs=4, max_num_batched_tokens=32, kv_cache_tokens=640
    ) as house:
        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(leave_early, house.engine, number)
        await settle()
        assert_empty(house.engine)
        async with house.engine.generate(prompt(0, 300), GREEDY) as stream:
            assert await stream.text() == text_of(expected_tokens(prompt(0, 300), 8))


async def test_a_deadline_before_the_first_token_raises(autojump_clock: MockClock) -> None:
    async with open_fake_engine(step_time=1.0) as house:
        with pytest.raises(DeadlineExceeded, match=r"0\.5 s") as caught:
            async with house.engine.generate(prompt(1), GREEDY, deadline=0.5) as stream:
                await stream.text()
        assert caught.value.http_status == 504
        await settle()
        assert_empty(house.engine)


async def test_a_deadline_after_the_first_token_ends_the_output(
    autojump_clock: MockClock,
) -> None:
    async with open_fake_engine(step_time=1.0) as house:
        async with house.engine.generate(prompt(1), greedy(50), deadline=4.5) as stream:
            deltas = [delta async for delta in stream]
        assert deltas[-1].finish_reason is FinishReason.TIMEOUT
        got = [t for delta in deltas for t in delta.token_ids]
        assert got == expected_tokens(prompt(1), 50)[:4]
        assert stream.usage.completion_tokens == 4
        await settle()
        assert_empty(house.engine)


async def test_a_queue_deadline_counts_only_waiting(autojump_clock: MockClock) -> None:
    async with open_fake_engine(step_time=1.0, max_num_seqs=1) as house:
        async with house.engine.generate(
            prompt(1), greedy(30), timeouts=Timeouts(queue=2.0)
        ) as first:
            await first.__anext__()
            with pytest.raises(DeadlineExceeded, match="queue"):
                async with house.engine.generate(
                    prompt(2), GREEDY, timeouts=Timeouts(queue=2.0)
                ) as second:
                    await second.text()
            await first.text()


async def test_limits_refuse_at_once_with_a_time_to_come_back(
    autojump_clock: MockClock,
) -> None:
    async with open_fake_engine(max_live_requests=1) as house:
        async with house.engine.generate(prompt(1), GREEDY) as stream:
            with pytest.raises(QueueFull) as caught:
                async with house.engine.generate(prompt(2), GREEDY):
                    pytest.fail("admitted")
            assert caught.value.retry_after_s is not None
            await stream.text()
        async with house.engine.generate(prompt(2), GREEDY) as stream:
            await stream.text()


@pytest.mark.parametrize(
    ("bad", "error", "param"),
    [
        ([], InvalidRequest, "prompt"),
        ([10**6], InvalidRequest, "prompt"),
        ([-1], InvalidRequest, "prompt"),
        ([40] * 600, PromptTooLong, "prompt"),
        ("x" * 10**6, PromptTooLong, "prompt"),
    ],
)
async def test_bad_prompts_are_refused_and_leave_nothing(
    bad: object, error: type[Exception], param: str, autojump_clock: MockClock
) -> None:
    async with open_fake_engine() as house:
        with pytest.raises(error) as caught:
            async with house.engine.generate(bad, GREEDY):  # type: ignore[arg-type] # that is the point
                pytest.fail("admitted")
        assert caught.value.param == param  # type: ignore[attr-defined] # of our errors
        assert_empty(house.engine)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(stop_token_ids=(10**6,)),
        SamplingParams(allowed_token_ids=(10**6,)),
        SamplingParams(logit_bias={10**6: 1.0}),
        SamplingParams(logprobs=10**4),
        SamplingParams(logits_processors=("nobody",)),
    ],
)
async def test_parameters_that_do_not_fit_the_model_are_refused(
    sampling: SamplingParams, autojump_clock: MockClock
) -> None:
    async with open_fake_engine() as house:
        with pytest.raises(InvalidRequest):
            async with house.engine.generate(prompt(1), sampling):
                pytest.fail("admitted")


async def test_max_tokens_is_cut_to_what_the_context_leaves(autojump_clock: MockClock) -> None:
    async with open_fake_engine(max_model_len=30) as house:
        async with house.engine.generate(prompt(1), greedy(1000)) as stream:
            deltas = [delta async for delta in stream]
        assert deltas[-1].finish_reason is FinishReason.LENGTH
        assert stream.usage.completion_tokens == 10


async def test_a_stop_string_ends_the_output_and_is_cut_off(autojump_clock: MockClock) -> None:
    whole = text_of(expected_tokens(prompt(1), 20))
    stop = whole[7:10]
    async with open_fake_engine() as house:
        async with house.engine.generate(prompt(1), greedy(20, stop=stop)) as stream:
            deltas = [delta async for delta in stream]
        assert "".join(delta.text for delta in deltas) == whole[: whole.index(stop)]
        assert deltas[-1].finish_reason is FinishReason.STOP
        assert deltas[-1].stop_reason == stop
        assert stream.usage.completion_tokens == whole.index(stop) + 3
        await settle()
        assert_empty(house.engine)


async def test_n_outputs_with_one_seed_differ_and_reproduce(autojump_clock: MockClock) -> None:
    sampling = SamplingParams(n=3, seed=5, max_tokens=10, output_kind=OutputKind.FINAL_ONLY)

    async def run(engine: Engine) -> list[str]:
        async with engine.generate(prompt(1), sampling) as stream:
            return [delta.text async for delta in stream]

    async with open_fake_engine() as house:
        first, second = await run(house.engine), await run(house.engine)
        assert first == second
        assert len(set(first)) == 3


async def test_a_slow_consumer_gets_merged_pieces_and_misses_nothing(
    autojump_clock: MockClock,
) -> None:
    async with open_fake_engine() as house:
        async with house.engine.generate(prompt(1), greedy(40)) as stream:
            await trio.sleep(100.0)
            deltas = [delta async for delta in stream]
        assert len(deltas) == 1
        assert list(deltas[0].token_ids) == expected_tokens(prompt(1), 40)


async def test_a_runner_death_is_only_a_pause(autojump_clock: MockClock) -> None:
    texts: dict[int, str] = {}

    async def one(engine: Engine, number: int) -> None:
        async with engine.generate(prompt(number, 30), greedy(30)) as stream:
            texts[number] = await stream.text()

    async with open_fake_engine(step_time=1.0) as house:
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(one, house.engine, number)
            for _ in range(3):
                await trio.sleep(6.5)
                house.transport.kill()
        assert house.engine.statistics().runner_restarts == 3
        await settle()
        assert_empty(house.engine)
    for number in range(5):
        assert texts[number] == text_of(expected_tokens(prompt(number, 30), 30))


async def test_too_many_deaths_wake_every_waiter_once(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    async def one(engine: Engine, number: int) -> None:
        try:
            async with engine.generate(prompt(number), greedy(400)) as stream:
                await stream.text()
        except EngineDead as error:
            seen.append(error.message)

    with pytest.raises(EngineDead, match="died 2 times"):
        async with open_fake_engine(step_time=1.0, max_restarts=1) as house:
            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(one, house.engine, number)
                for _ in range(2):
                    await trio.sleep(5.0)
                    house.transport.kill()
            assert len(seen) == 4
            assert house.engine.health is Health.DEAD
            with pytest.raises(EngineDead):
                async with house.engine.generate(prompt(1), GREEDY):
                    pytest.fail("admitted")


async def test_a_hung_step_turns_health_red_and_is_replaced(autojump_clock: MockClock) -> None:
    hang = [True]

    def step_time(batch: object) -> float:
        return math.inf if hang[0] else 0.01

    async with open_fake_engine(step_time=step_time, step_timeout_s=10.0) as house:
        async with house.engine.generate(prompt(1), GREEDY) as stream:
            await trio.sleep(9.0)
            assert house.engine.health is Health.SERVING
            hang[0] = False
            assert await stream.text() == text_of(expected_tokens(prompt(1), 8))
        assert house.engine.statistics().runner_restarts == 1


async def test_draining_admits_nothing_and_lets_the_rest_finish(
    autojump_clock: MockClock,
) -> None:
    async with open_fake_engine(step_time=1.0) as house:
        async with trio.open_nursery() as nursery:
            async with house.engine.generate(prompt(1), GREEDY) as stream:
                failed: list[int] = []

                async def drain() -> None:
                    failed.append(await house.engine.drain(100.0))

                nursery.start_soon(drain)
                await settle()
                assert house.engine.health is Health.DRAINING
                with pytest.raises(NotServing):
                    async with house.engine.generate(prompt(2), GREEDY):
                        pytest.fail("admitted")
                assert await stream.text() == text_of(expected_tokens(prompt(1), 8))
        assert failed == [0]


async def test_a_drain_that_takes_too_long_fails_the_rest(autojump_clock: MockClock) -> None:
    async with open_fake_engine(step_time=1.0) as house:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(house.engine.drain, 3.0)
            await settle()
            assert house.engine.health is Health.DRAINING
        async with open_fake_engine(step_time=1.0) as other, trio.open_nursery() as nursery:
            async with other.engine.generate(prompt(1), greedy(50)) as stream:
                nursery.start_soon(other.engine.drain, 3.5)
                with pytest.raises(NotServing):
                    await stream.text()
                assert stream.usage.completion_tokens >= 3


async def test_a_request_can_be_cancelled_by_its_id(autojump_clock: MockClock) -> None:
    async with open_fake_engine(step_time=1.0) as house, trio.open_nursery() as nursery:

        async def cancel_later(request_id: str) -> None:
            await trio.sleep(3.5)
            assert await house.engine.cancel(request_id)  # type: ignore[arg-type] # is a RequestId
            assert not await house.engine.cancel(request_id)  # type: ignore[arg-type] # is a RequestId

        async with house.engine.generate(prompt(1), greedy(50)) as stream:
            nursery.start_soon(cancel_later, stream.request_id)
            deltas = [delta async for delta in stream]
        assert deltas[-1].finish_reason is FinishReason.CANCELLED
        await settle()
        assert_empty(house.engine)


class ListSink:
    """A consumer of its own."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.deltas: list[OutputDelta] = []
        self.usage: Usage | None = None
        self.error: Exception | None = None
        self._fail_at = fail_at

    def start(self, cached_tokens: int) -> None: ...

    def put(self, delta: OutputDelta) -> None:
        if len(self.deltas) == self._fail_at:
            raise RuntimeError("the consumer is broken")
        self.deltas.append(delta)

    def score_prompt(self, logprobs: tuple[TokenLogprobs | None, ...]) -> None: ...

    def finish(self, usage: Usage) -> None:
        self.usage = usage

    def fail(self, error: Exception) -> None:
        self.error = error


async def test_a_sink_gets_the_outputs_instead_of_the_stream(autojump_clock: MockClock) -> None:
    sink = ListSink()
    async with open_fake_engine() as house:
        async with house.engine.generate(prompt(1), GREEDY, sink=sink) as stream:
            assert await stream.wait_finished() == Usage(20, 8, 0)
    assert [t for d in sink.deltas for t in d.token_ids] == expected_tokens(prompt(1), 8)
    assert sink.usage == Usage(20, 8, 0)


async def test_a_sink_that_raises_fails_its_request_only(autojump_clock: MockClock) -> None:
    broken, sound = ListSink(fail_at=2), ListSink()
    async with open_fake_engine() as house:
        engine = house.engine
        async with (
            engine.generate(prompt(1), greedy(30), sink=broken) as first,
            engine.generate(prompt(2), greedy(30), sink=sound) as second,
        ):
            with pytest.raises(Exception, match="consumer"):
                await first.wait_finished()
            await second.wait_finished()
        await settle()
        assert_empty(engine)
    assert len(sound.deltas) == 30


async def test_a_resumed_request_goes_on_where_it_was(autojump_clock: MockClock) -> None:
    whole = expected_tokens(prompt(1), 20)
    async with (
        open_fake_engine() as house,
        house.engine.generate(prompt(1), greedy(20), prefix=whole[:7]) as stream,
    ):
        got = [t async for delta in stream for t in delta.token_ids]
    assert got == whole[7:]


async def test_leaving_the_engine_ends_what_is_open_in_other_tasks(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        errors: list[Exception] = []

        async def one(engine: Engine) -> None:
            try:
                async with engine.generate(prompt(1), greedy(400)) as stream:
                    await stream.text()
            except NotServing as error:
                errors.append(error)

        async with open_fake_engine(step_time=1.0) as house:
            nursery.start_soon(one, house.engine)
            await trio.sleep(5.0)
        await settle()
        assert len(errors) == 1
        with pytest.raises(NotServing, match="closed"):
            async with house.engine.generate(prompt(1), GREEDY):
                pytest.fail("admitted")
    assert house.runner.closed


async def test_two_engines_in_one_run_do_not_meet(autojump_clock: MockClock) -> None:
    async with open_fake_engine(seed=1) as one, open_fake_engine(seed=2) as other:
        async with (
            one.engine.generate(prompt(1), GREEDY) as a,
            other.engine.generate(prompt(1), GREEDY) as b,
        ):
            assert await a.text() == await b.text()


async def test_metrics_tell_what_happened(autojump_clock: MockClock) -> None:
    async with open_fake_engine() as house:
        async with house.engine.generate(prompt(1), GREEDY) as stream:
            await stream.text()
        with trio.move_on_after(2.5 * STEP_S):
            async with house.engine.generate(prompt(2), greedy(50)) as stream:
                await stream.text()
        await settle()
        text = house.engine.metrics().decode()
    assert (
        'triolet:request_ended_total{cause="finished",model_name="fake",state="finished"} 1.0'
        in text
    )
    assert (
        'triolet:request_ended_total{cause="deadline",model_name="fake",state="cancelled"} 1.0'
        in text
    )
    assert 'triolet:generation_tokens_total{model_name="fake"} 10.0' in text
    assert 'triolet:num_requests_running{model_name="fake"} 0.0' in text


def samples_of(exposition: bytes) -> dict[str, float]:
    """Sample -> value, summed over labels."""
    out: dict[str, float] = {}
    for line in exposition.decode().splitlines():
        if line.startswith("triolet:"):
            name = line.partition("{")[0].removeprefix("triolet:")
            out[name] = out.get(name, 0.0) + float(line.rpartition(" ")[2])
    return out


async def test_metrics_count_what_vllm_counts(autojump_clock: MockClock) -> None:
    """vLLM's own test of its metrics: requests of P prompt and M output tokens in sequence."""
    requests, prompt_tokens, output_tokens = 3, 20, 7
    async with open_fake_engine(enable_prefix_caching=False) as house:
        for number in range(requests):
            text = prompt(number, prompt_tokens)
            async with house.engine.generate(text, greedy(output_tokens)) as stream:
                await stream.text()
        got = samples_of(house.engine.metrics())
    assert got["prompt_tokens_total"] == requests * prompt_tokens
    assert got["generation_tokens_total"] == requests * output_tokens
    assert got["request_success_total"] == requests
    assert got["inter_token_latency_seconds_count"] == requests * (output_tokens - 1)
    assert got["iteration_tokens_total_count"] == requests * output_tokens
    assert got["iteration_tokens_total_sum"] == requests * (prompt_tokens + output_tokens)
    for name in ("time_to_first_token", "e2e_request_latency", "request_decode_time"):
        assert got[f"{name}_seconds_count"] == requests
    assert got["request_decode_time_seconds_sum"] == pytest.approx(
        got["inter_token_latency_seconds_sum"]
    )
    assert got["request_prefill_time_seconds_sum"] == pytest.approx(requests * STEP_S)


async def test_random_lives_leave_nothing(autojump_clock: MockClock) -> None:
    rng = random.Random(7)

    async def one(engine: Engine, number: int) -> None:
        await trio.sleep(rng.random())
        sampling = SamplingParams(
            n=rng.choice([1, 1, 3]),
            temperature=rng.choice([0.0, 1.0]),
            max_tokens=rng.randint(1, 60),
            stop=rng.choice([(), ("a",), ("zz", "b9")]),
        )
        with trio.move_on_after(rng.choice([rng.random() * 2, 100.0])):
            async with engine.generate(prompt(number, rng.randint(1, 200)), sampling) as stream:
                async for _ in stream:
                    if rng.random() < 0.02:
                        break

    async with open_fake_engine(
        kv_cache_tokens=800, max_num_seqs=8, max_num_batched_tokens=64
    ) as house:
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(one, house.engine, number)
        await settle()
        assert_empty(house.engine)


async def test_a_grammar_that_does_not_compile_is_refused_and_leaves_nothing(
    autojump_clock: MockClock,
) -> None:
    async with open_fake_engine() as house:
        bad = greedy(5, structured_outputs=StructuredOutputs(regex="((("))
        with pytest.raises(InvalidRequest, match="regex"):
            async with house.engine.generate(prompt(1), bad):
                pytest.fail("admitted")
        assert_empty(house.engine)
        assert house.engine.statistics().tree["tracker"]["admission"]["live_requests"] == 0  # type: ignore[index] # a tree of plain data


@pytest.mark.parametrize("kind", OutputKind)
async def test_a_first_token_deadline_is_met_by_a_token_that_is_not_delivered_yet(
    kind: OutputKind, autojump_clock: MockClock
) -> None:
    """FINAL_ONLY delivers at the end; the token was there in time."""
    async with open_fake_engine(step_time=1.0) as house:
        async with house.engine.generate(
            prompt(1), greedy(10, output_kind=kind), timeouts=Timeouts(first_token=3.0)
        ) as stream:
            deltas = [delta async for delta in stream]
        assert (
            list(deltas[-1].token_ids)[-3:]
            == expected_tokens(prompt(1), 10)[-len(deltas[-1].token_ids) :][-3:]
        )
        assert stream.usage.completion_tokens == 10
        text = house.engine.metrics().decode()
    assert 'triolet:generation_tokens_total{model_name="fake"} 10.0' in text


async def test_the_tree_shows_each_request_and_what_it_is_doing(
    autojump_clock: MockClock,
) -> None:
    async with open_fake_engine(step_time=1.0, max_num_seqs=2) as house, trio.open_nursery() as n:

        async def one(number: int) -> None:
            async with house.engine.generate(
                prompt(number), greedy(50), label=f"client-{number}", deadline=500.0
            ) as stream:
                await stream.text()

        for number in range(3):
            n.start_soon(one, number)
        await trio.sleep(3.5)
        requests: list[dict[str, object]] = house.engine.statistics().tree["requests"]  # type: ignore[assignment] # a tree of plain data
        assert sorted((r["label"], r["phase"]) for r in requests) == sorted(
            [(r["label"], "waiting" if r["state"] == "queued" else "decode") for r in requests]
        )
        assert sorted(str(r["state"]) for r in requests) == ["queued", "running", "running"]
        assert all(r["deadline_left_s"] == 496.5 for r in requests)
        assert sum(r["blocks"] for r in requests) == house.engine.statistics().blocks_used  # type: ignore[misc] # integers
        n.cancel_scope.cancel()


async def test_deadlines_have_a_configured_default_and_maximum(
    autojump_clock: MockClock,
) -> None:
    async with open_fake_engine(step_time=1.0, timeout_max_s=5.5) as house:
        with pytest.raises(InvalidRequest, match="at most"):
            async with house.engine.generate(prompt(1), GREEDY, deadline=6.0):
                pytest.fail("admitted")
        for bad in (0.0, -1.0, math.nan, math.inf):
            with pytest.raises(InvalidRequest, match="positive"):
                async with house.engine.generate(prompt(1), GREEDY, deadline=bad):
                    pytest.fail("admitted")
        assert_empty(house.engine)
        async with house.engine.generate(prompt(1), greedy(50)) as stream:
            reasons = [delta.finish_reason async for delta in stream]
        assert reasons[-1] is FinishReason.TIMEOUT
        assert stream.usage.completion_tokens == 5


async def test_a_priority_that_would_be_ignored_is_refused(autojump_clock: MockClock) -> None:
    async with open_fake_engine() as house:
        with pytest.raises(InvalidRequest, match="scheduling_policy"):
            async with house.engine.generate(prompt(1), GREEDY, priority=1):
                pytest.fail("admitted")
    async with (
        open_fake_engine(scheduling_policy="priority") as house,
        house.engine.generate(prompt(1), GREEDY, priority=1) as stream,
    ):
        await stream.text()


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": b"abc"}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": [{"x": 1}]}, "messages"),
        ({"prompt": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ({"prompt": [{"role": "user", "content": "hi"}, 5]}, "messages"),
        ({"sampling": {}}, "sampling"),
        ({"timeouts": 5}, "timeouts"),
        ({"deadline": "x"}, "deadline"),
        ({"priority": 1.5}, "priority"),
        ({"priority": "x"}, "priority"),
        ({"priority": None}, "priority"),
        ({"priority": 10**400}, "priority"),
        ({"prefix": 5}, "prefix"),
        ({"prefix": "ab"}, "prefix"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"cache_salt": "\ud800"}, "cache_salt"),
        ({"tenant": 5}, "tenant"),
        ({"label": b"x"}, "label"),
    ],
)
async def test_arguments_of_another_type_are_refused_by_name_and_harm_nobody(
    arguments: dict[str, object], param: str, autojump_clock: MockClock
) -> None:
    async with open_fake_engine(scheduling_policy="priority") as house:
        given = {"prompt": prompt(1), "sampling": GREEDY, **arguments}
        with pytest.raises(InvalidRequest) as caught:
            async with house.engine.generate(**given):  # type: ignore[arg-type] # that is the point
                pytest.fail("admitted")
        assert caught.value.param == param
        assert_empty(house.engine)
        async with house.engine.generate(prompt(1), GREEDY) as stream:
            assert await stream.text() == text_of(expected_tokens(prompt(1), 8))


async def test_a_stream_read_after_its_block_says_so(autojump_clock: MockClock) -> None:
    async with open_fake_engine() as house:
        async with house.engine.generate(prompt(1), greedy(50)) as stream:
            pass
        for read in (stream.text, stream.wait_finished, stream.__anext__):
            with pytest.raises(RequestCancelled, match="left"):
                await read()
