"""The runner with a queue, two steps in flight and captured steps computes what the CPU's does.

The device is the CPU behind `FakeQueue`, the kernels are the reference's: what is proven is the
control flow. Captured or not, alone or in a crowd, the tokens are those of a loop over one
sequence that recomputes everything.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from support.fake_cuda import FakeQueue
from support.pipeline_driver import PipelineDriver
from support.tiny_causal_lm import TinyCausalLM
from triolet.config import EngineConfig, ModelConfig
from triolet.errors import ConfigError
from triolet.messages.runner_to_scheduler import RunnerInfo
from triolet.model_source.facts import ModelFacts
from triolet.models.causal_lm import CausalLM
from triolet.runner.backend import Progress
from triolet.runner.cuda_graph import batch_size_ladder
from triolet.runner.model_runner import ModelRunner
from triolet.sampling_params import SamplingParams
from triolet_kernels.ops import Ops

VOCAB = 40
FACTS = ModelFacts(
    name="tiny",
    directory=Path("nowhere"),
    architecture="TinyCausalLM",
    config={},
    vocab_size=VOCAB,
    context_len=256,
    eos_token_ids=(0,),
    generation={},
)
SETTINGS: dict[str, object] = {
    "block_size": 8,
    "kv_cache_tokens": 2048,
    "device": "cpu",
    "dtype": "float32",
    "max_num_seqs": 12,
    "threads": 1,
    "kernels": "reference",
}
WINDOWS: dict[str, Sequence[int | None]] = {"full": (None, None), "windows": (20, None, 20)}
GREEDY = SamplingParams(temperature=0.0, seed=1)
Wrap = Callable[[TinyCausalLM], None]


def make(
    queue: FakeQueue | None,
    windows: Sequence[int | None] = (None, None),
    settings: Mapping[str, object] | None = None,
    wrap: Wrap = lambda _: None,
) -> ModelRunner:
    def load(_: ModelFacts, ops: Ops, __: ModelConfig, ___: Progress) -> CausalLM:
        model = TinyCausalLM(ops, windows)
        wrap(model)
        return model

    config = EngineConfig.of("tiny", **{**SETTINGS, **(settings or {})})
    return ModelRunner(config, FACTS, load=load, queue=lambda _: queue)


def load(runner: ModelRunner, num_blocks: int | None = None) -> RunnerInfo:
    return runner.load(lambda _: None, num_blocks)


def big_queue() -> FakeQueue:
    return FakeQueue(total_bytes=1 << 30)


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1, VOCAB) for _ in range(length)]


def requests(seed: int, count: int) -> list[tuple[list[int], SamplingParams, int]]:
    """Prompts, parameters of every kind, and how many tokens each wants."""
    rng = random.Random(seed)
    kinds = [
        {"temperature": 0.0},
        {"temperature": 0.9, "top_p": 0.8},
        {"temperature": 1.2, "top_k": 7, "logprobs": 2},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 0.8, "frequency_penalty": 0.5, "min_tokens": 4},
        {"temperature": 0.0, "logprobs": 0, "prompt_logprobs": 1},
        {"temperature": 1.0, "min_p": 0.1, "logit_bias": {3: 2.0}},
    ]
    return [
        (
            prompt(100 * seed + i, rng.randrange(1, 60)),
            SamplingParams(seed=i, **rng.choice(kinds)),  # type: ignore[arg-type]  # by name
            rng.randrange(1, 12),
        )
        for i in range(count)
    ]


def run_all(
    queue: FakeQueue | None,
    windows: Sequence[int | None],
    work: Sequence[tuple[list[int], SamplingParams, int]],
    settings: Mapping[str, object] | None = None,
    chunk: int = 1000,
    chance: float = 1.0,
) -> PipelineDriver:
    runner = make(queue, windows, settings)
    driver = PipelineDriver(runner, load(runner), seed=3)
    for i, (ids, sampling, wanted) in enumerate(work):
        driver.add(i, ids, sampling, wanted)
    driver.run(chunk, chance)
    runner.check_integrity()
    return driver


@pytest.mark.slow
@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_tokens_and_logprobs_are_those_of_the_cpu_runner(
    windows: Sequence[int | None], eager: bool, seed: int
) -> None:
    work = requests(seed, 10)
    expected = run_all(None, windows, work)
    queue = big_queue()
    result = run_all(queue, windows, work, {"enforce_eager": eager}, chunk=17, chance=0.8)
    assert not result.errors
    for i in range(len(work)):
        assert result.output(i) == expected.output(i), work[i]
    scores = {}
    for driver in (expected, result):
        scores[driver] = {
            (int(sequence_id), entry.token_id, round(entry.logprob, 4))
            for r in driver.results
            for sequence_id, entry in zip(r.sequence_ids, r.logprobs, strict=True)
            if entry is not None
        }
    assert scores[expected] == scores[result]
    assert (queue.replays > 0) is not eager


def test_two_steps_are_in_flight_and_plain_rows_never_wait() -> None:
    """Launches come before the tokens they continue are known on the host."""
    queue = big_queue()
    runner = make(queue)
    info = load(runner)
    assert info.steps_in_flight == 2
    driver = PipelineDriver(runner, info)
    driver.add(0, prompt(1, 9), GREEDY, 8)
    assert driver.launch()
    waits = queue.waits
    for _ in range(6):
        assert driver.launch()
        assert queue.waits == waits, "a launch waited for the device"
        driver.collect()
        waits += 1
        assert queue.waits == waits
    driver.run()
    assert len(driver.output(0)) == 8


@pytest.mark.parametrize(
    ("kind", "waits"),
    [
        ({"min_tokens": 5}, 1),
        ({"bad_word_token_ids": ((3, 4),)}, 1),
        ({"presence_penalty": 1.0, "repetition_penalty": 1.2}, 0),
        ({"logit_bias": {3: 1.0}, "logprobs": 2}, 0),
    ],
)
def test_only_rows_that_read_their_output_wait_for_the_step_before(
    kind: dict[str, object], waits: int
) -> None:
    """Penalties count the pending token on the device."""
    queue = big_queue()
    runner = make(queue)
    driver = PipelineDriver(runner, load(runner))
    sampling = SamplingParams(temperature=0.0, seed=1, **kind)  # type: ignore[arg-type]  # by name
    driver.add(0, prompt(1, 9), sampling, 6)
    driver.launch()
    before = queue.waits
    driver.launch()
    assert queue.waits == before + waits
    driver.collect()
    assert queue.waits == before + 1, "its result is waited for once, by one or the other"


def test_a_sequence_that_ends_in_flight_leaves_nothing_to_the_next_one() -> None:
    """Its row of the table and its blocks go to others while its token is on the way."""
    work = requests(5, 8)
    expected = run_all(None, (None, None), work)
    runner = make(big_queue())
    driver = PipelineDriver(runner, load(runner), seed=1)
    for i, (ids, sampling, wanted) in enumerate(work[:4]):
        driver.add(i, ids, sampling, wanted)
    for i in range(50, 54):
        driver.add(i, prompt(i, 20), GREEDY, 30)
    driver.launch()
    driver.launch()
    for i in range(50, 54):
        driver.end(i)
    for i, (ids, sampling, wanted) in enumerate(work[4:], start=4):
        driver.add(i, ids, sampling, wanted)
    driver.collect()
    driver.run()
    runner.check_integrity()
    for i in range(len(work)):
        assert driver.output(i) == expected.output(i)


@pytest.mark.parametrize("eager", [False, True])
def test_logits_that_are_no_numbers_fail_their_row_alone(eager: bool) -> None:
    """Also when the next step was launched with the token that does not exist."""
    bad = 39

    def poison(model: TinyCausalLM) -> None:
        honest = model.logits

        def logits(hidden: Tensor) -> Tensor:
            result = honest(hidden)
            result[model.poisoned[-len(result) :]] = math.nan  # type: ignore[attr-defined]
            return result

        forward = model.forward

        def remember(token_ids: Tensor, layers: object) -> Tensor:
            model.poisoned = token_ids == bad  # type: ignore[attr-defined]
            return forward(token_ids, layers)  # type: ignore[arg-type]

        model.logits = logits  # type: ignore[method-assign]
        model.forward = remember  # type: ignore[method-assign]

    runner = make(big_queue(), settings={"enforce_eager": eager}, wrap=poison)
    driver = PipelineDriver(runner, load(runner))
    healthy = run_all(None, (None, None), [([5], GREEDY, 6)]).output(0)
    if bad in healthy:
        pytest.fail("choose another seed: the healthy output has the poisoned token")
    driver.add(0, [5], GREEDY, 6)
    driver.add(1, [bad], GREEDY, 6)
    driver.add(2, [bad], SamplingParams(temperature=1.0, seed=3, logprobs=1), 6)
    driver.run()
    assert driver.output(0) == healthy
    assert set(driver.errors) == {1, 2}
    assert "not numbers" in driver.errors[1]


def test_resume_and_restart_go_on_with_the_same_tokens() -> None:
    work = requests(7, 5)
    expected = run_all(None, (None, None), work)
    runner = make(big_queue())
    info = load(runner)
    again = make(big_queue())
    assert load(again, info.num_blocks).num_blocks == info.num_blocks
    driver = PipelineDriver(again, info)
    for i, (ids, sampling, wanted) in enumerate(work):
        driver.add(i, ids, sampling, wanted, expected.output(i)[: wanted // 2])
    driver.run()
    for i in range(len(work)):
        assert driver.output(i) == expected.output(i)


def test_out_of_memory_in_a_step_is_the_death_of_the_runner() -> None:
    """An exception from `launch` is one; the message says what to lower, and close() works."""
    full = [False]

    def wrap(model: TinyCausalLM) -> None:
        honest = model.forward

        def forward(token_ids: Tensor, layers: object) -> Tensor:
            if full[0]:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return honest(token_ids, layers)  # type: ignore[arg-type]

        model.forward = forward  # type: ignore[method-assign]

    queue = big_queue()
    runner = make(queue, wrap=wrap)
    driver = PipelineDriver(runner, load(runner))
    driver.add(0, prompt(1, 9), GREEDY, 8)
    full[0] = True
    with pytest.raises(RuntimeError, match=r"9 tokens and 1 sequences.*gpu_memory_utilization"):
        driver.launch()
    runner.close()
    runner.close()
    assert queue.closed


def blocks(queue: FakeQueue, **settings: object) -> int:
    cache = {"kv_cache_tokens": None, "max_num_seqs": 64, **settings}
    return load(make(queue, settings=cache)).num_blocks


def test_the_cache_takes_what_utilization_leaves() -> None:
    """Two layers of 8 tokens, one head of 8 float32, keys and values: 1024 bytes a block."""
    sizes = {"total_bytes": 1 << 20, "held_bytes": 1 << 18, "step_bytes": 1 << 16}
    room = (1 << 20) * 0.9 - (1 << 18) - (1 << 16)
    assert blocks(FakeQueue(**sizes)) == int(room) // 1024 - 1  # one is nobody's
    room = (1 << 20) * 0.5 - (1 << 18) - (1 << 16)
    assert blocks(FakeQueue(**sizes), gpu_memory_utilization=0.5) == int(room) // 1024 - 1
    assert blocks(FakeQueue(**sizes), kv_cache_tokens=256) == 32


def test_a_cache_that_does_not_fit_is_refused_before_anything_runs() -> None:
    queue = FakeQueue(1 << 20, held_bytes=1 << 18, step_bytes=1 << 19)
    with pytest.raises(ConfigError, match="kv_cache_tokens asks for"):
        blocks(queue, kv_cache_tokens=8192)
    with pytest.raises(ConfigError, match="room for 0 blocks"):
        blocks(FakeQueue(1 << 20, held_bytes=1 << 20, step_bytes=0))


def test_a_restart_does_not_measure_memory_again() -> None:
    queue = big_queue()
    load(make(queue), num_blocks=64)
    assert queue.measured == 0


@pytest.mark.parametrize(
    ("max_num_seqs", "ladder"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (12, [1, 2, 4, 8, 12]),
        (64, [1, 2, 4, *range(8, 65, 8)]),
    ],
)
def test_ladder_ends_in_the_largest_batch(max_num_seqs: int, ladder: list[int]) -> None:
    assert batch_size_ladder(max_num_seqs) == ladder


def test_ladder_of_a_huge_engine_is_short() -> None:
    ladder = batch_size_ladder(4096)
    assert ladder[-1] == 512
    assert len(ladder) < 60


def test_one_graph_per_size_of_the_ladder() -> None:
    queue = big_queue()
    load(make(queue))
    assert queue.captured == len(batch_size_ladder(12))
    eager = big_queue()
    load(make(eager, settings={"enforce_eager": True}))
    assert eager.captured == 0


def test_a_batch_larger_than_the_ladder_is_computed_eagerly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("triolet.runner.cuda_graph._GRAPH_ROWS_MAX", 4)
    work = [(prompt(i, 5), GREEDY, 4) for i in range(9)]
    expected = run_all(None, (None, None), work)
    result = run_all(big_queue(), (None, None), work)
    assert [result.output(i) for i in range(9)] == [expected.output(i) for i in range(9)]
