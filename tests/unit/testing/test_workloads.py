"""Plans depend on the seed alone; the oracle agrees with a generator that knows no engine."""

from __future__ import annotations

import attrs
from hypothesis import given, strategies as st

from triolet.request import FinishReason
from triolet.testing.fake_runner import expected_tokens, next_hash
from triolet.testing.scenario import Scenario, scenario_of
from triolet.testing.workloads import EOS_TOKEN_ID, ClientPlan, draw_plans, expected_output

MODEL_LEN = 96


def scenario(**workload: object) -> Scenario:
    model = {"context_len": MODEL_LEN, "eos_one_in": 30}
    return scenario_of({"name": "x", "model": model, "workload": [{"clients": 6, **workload}]})


def test_plans_are_a_function_of_the_seed() -> None:
    mixed = scenario(stops=0.5, resumes=0.5, deadlines=0.5, leaves=0.5, sinks=0.5)
    assert draw_plans(mixed, 3) == draw_plans(mixed, 3)
    assert draw_plans(mixed, 3) != draw_plans(mixed, 4)


def test_shares_of_one_and_zero_are_all_and_none() -> None:
    every = draw_plans(
        scenario(
            leaves=1.0, breaks=1.0, sinks=1.0, ignores=1.0, deadlines=1.0, salts=1, text_prompts=1.0
        ),
        0,
    )
    for plan in every:
        assert plan.leaves_after_s is not None
        assert plan.breaks_after is not None
        assert plan.ignores_s is not None
        assert plan.has_sink
        assert plan.is_text
        assert plan.cache_salt == "salt-0"
        assert any(limit is not None for limit in attrs.astuple(plan.timeouts))
    for plan in draw_plans(scenario(), 0):
        assert (plan.leaves_after_s, plan.breaks_after, plan.ignores_s) == (None, None, None)
        assert not plan.has_sink
        assert plan.sampling.stop == ()


def naive(plan: ClientPlan, index: int) -> tuple[str, FinishReason]:
    """Whole text and end, one token at a time."""
    assert plan.sampling.max_tokens is not None
    assert plan.sampling.seed is not None
    text = ""
    limit = min(plan.sampling.max_tokens, MODEL_LEN - len(plan.prompt))
    tokens = expected_tokens(
        plan.prompt,
        limit,
        key=0 if plan.sampling.temperature == 0 else next_hash(plan.sampling.seed, index),
        eos_token_id=EOS_TOKEN_ID,
        eos_one_in=30,
    )
    for token in tokens:
        if token == EOS_TOKEN_ID:
            return text, FinishReason.STOP
        text += chr(token)
        for stop in plan.sampling.stop:
            if text.endswith(stop):
                return text.removesuffix(stop), FinishReason.STOP
    return text, FinishReason.LENGTH


@given(seed=st.integers(0, 10_000))
def test_the_oracle_is_the_naive_generator(seed: int) -> None:
    for plan in draw_plans(scenario(stops=0.6, num_outputs=[1, 3], max_tokens=[1, 80]), seed):
        for index in range(plan.sampling.n):
            expected = expected_output(plan, index, MODEL_LEN, 30)
            assert (expected.text, expected.finish_reason) == naive(plan, index)


@given(seed=st.integers(0, 10_000))
def test_a_resumed_output_is_the_rest_of_the_whole(seed: int) -> None:
    for plan in draw_plans(scenario(stops=0.5, resumes=1.0), seed):
        whole = expected_output(attrs.evolve(plan, prefix=()), 0, MODEL_LEN, 30)
        rest = expected_output(plan, 0, MODEL_LEN, 30)
        assert plan.prefix + rest.token_ids == whole.token_ids
        assert rest.finish_reason == whole.finish_reason
