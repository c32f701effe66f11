"""The runner computes what a naive loop over one sequence computes, however it is batched."""

import random
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from support.batch_driver import EOS, BatchDriver
from support.tiny_causal_lm import TinyCausalLM, recompute_logits
from triolet.config import EngineConfig, ModelConfig
from triolet.errors import ConfigError
from triolet.messages.runner_to_scheduler import RunnerInfo
from triolet.model_source.facts import ModelFacts
from triolet.models.causal_lm import CausalLM
from triolet.output import LOGPROB_FLOOR
from triolet.request import SequenceId
from triolet.runner.backend import Progress
from triolet.runner.model_runner import ModelRunner
from triolet.sampling_params import SamplingParams, StructuredOutputs
from triolet_kernels import Kernels, native_unavailable, select_ops
from triolet_kernels.ops import Ops

VOCAB = 40  # the head has 48 rows: the last 8 are padding
GREEDY = SamplingParams(temperature=0.0, seed=1)
WINDOWS: dict[str, Sequence[int | None]] = {
    "full": (None, None),
    "windows": (20, None, 20, 20),
    "all-windows": (12, 12),
}


FACTS = ModelFacts(
    name="tiny",
    directory=Path("nowhere"),
    architecture="TinyCausalLM",
    config={},
    vocab_size=VOCAB,
    context_len=256,
    eos_token_ids=(EOS,),
    generation={},
)
SETTINGS: dict[str, object] = {
    "block_size": 8,
    "kv_cache_tokens": 2048,
    "device": "cpu",
    "dtype": "float32",
    "max_num_seqs": 16,
    "threads": 1,
}
KERNELS = ["reference"]
if native_unavailable(torch.device("cpu"), torch.float32) is None:
    KERNELS.append("native")
Wrap = Callable[[TinyCausalLM], None]


@pytest.fixture(params=KERNELS, autouse=True)
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds on every implementation that this machine has."""
    monkeypatch.setitem(SETTINGS, "kernels", request.param)


def runner(
    windows: Sequence[int | None] = (None, None),
    settings: Mapping[str, object] | None = None,
    wrap: Wrap = lambda _: None,
) -> ModelRunner:
    """A runner of the tiny model, not loaded."""

    def load(_: ModelFacts, ops: Ops, __: ModelConfig, ___: Progress) -> CausalLM:
        model = TinyCausalLM(ops, windows)
        wrap(model)
        return model

    config = EngineConfig.of("tiny", **{**SETTINGS, **(settings or {})})
    return ModelRunner(config, FACTS, load=load)


def driver(
    windows: Sequence[int | None] = (None, None),
    wrap: Wrap = lambda _: None,
    settings: Mapping[str, object] | None = None,
) -> BatchDriver:
    """A loaded runner and a scheduler for it."""
    backend = runner(windows, settings, wrap)
    return BatchDriver(backend, backend.load(lambda _: None))


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1, VOCAB) for _ in range(length)]


def naive_logits(windows: Sequence[int | None], token_ids: Sequence[int]) -> Tensor:
    kernels = cast("Kernels", SETTINGS["kernels"])
    ops = select_ops(torch.device("cpu"), torch.float32, kernels=kernels, threads=1)
    with torch.inference_mode():
        return recompute_logits(TinyCausalLM(ops, windows), ops, token_ids)[:, :VOCAB]


def naive_greedy(
    windows: Sequence[int | None], prompt_ids: Sequence[int], num_tokens: int
) -> list[int]:
    """Greedy tokens by recomputing everything at each step."""
    token_ids = list(prompt_ids)
    for _ in range(num_tokens):
        token_ids.append(int(naive_logits(windows, token_ids)[-1].argmax()))
    return token_ids[len(prompt_ids) :]


@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_packed_and_chunked_batches_equal_recompute(
    windows: Sequence[int | None], chunk: int
) -> None:
    d = driver(windows)
    prompts = {i: prompt(i, length) for i, length in enumerate((3, 17, 30, 8))}
    for i, ids in prompts.items():
        d.add(i, ids, GREEDY)
    d.run(8, chunk)
    for i, ids in prompts.items():
        assert d.output(i)[:8] == naive_greedy(windows, ids, 8)


@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
def test_sequences_that_come_go_and_resume_equal_recompute(windows: Sequence[int | None]) -> None:
    """A random walk: prefill beside decode, preemption, ends, rows and blocks used again."""
    rng = random.Random(5)
    d = driver(windows)
    prompts: dict[int, list[int]] = {}
    live: list[int] = []
    for turn in range(40):
        if len(live) < 5 and rng.random() < 0.5:
            prompts[turn] = prompt(turn, rng.randrange(1, 40))
            d.add(turn, prompts[turn], GREEDY)
            live.append(turn)
        if live and rng.random() < 0.15:
            d.preempt(rng.choice(live))
        chosen = [i for i in live if rng.random() < 0.8]
        d.step({i: rng.choice((1, 5, 16, 100)) for i in chosen})
        for i in [i for i in live if len(d.output(i)) >= 6]:
            d.end(i)
            live.remove(i)
        d.backend.check_integrity()  # type: ignore[attr-defined]  # of ModelRunner
    finished = [i for i in prompts if len(d.output(i)) >= 6]
    assert len(finished) > 5
    for i in finished[::3]:
        assert d.output(i)[:6] == naive_greedy(windows, prompts[i], 6)


def test_table_entries_before_the_window_are_never_read() -> None:
    windows = (12, 12)
    ids = prompt(3, 45)
    d = driver(windows)
    d.add(0, ids, GREEDY)
    d.step({0: 1000})
    d.add(1, ids, GREEDY)
    d.share_prefix(1, source=0, num_tokens=40, lost=3)
    d.run(6)
    assert d.output(1)[:6] == naive_greedy(windows, ids, 6)


def test_sampled_tokens_do_not_depend_on_the_crowd_or_on_preemption() -> None:
    hot = SamplingParams(
        temperature=1.3, top_p=0.9, seed=7, presence_penalty=0.5, repetition_penalty=1.2
    )
    alone = driver()
    alone.add(0, prompt(1, 20), hot)
    alone.run(12)

    crowd = driver()
    for i in range(1, 8):
        crowd.add(i, prompt(i + 10, 9 + i), SamplingParams(temperature=1.0, seed=i))
    crowd.add(0, prompt(1, 20), hot)
    for turn in range(30):
        if turn in (6, 11):
            crowd.preempt(0)
        crowd.step(dict.fromkeys(range(8), 6))
        if len(crowd.output(0)) >= 12:
            break
    assert crowd.output(0)[:12] == alone.output(0)[:12]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_invariant_runs_have_the_same_bits(dtype: str) -> None:
    """Log-probabilities alone, in crowds of every size, chunked and after preemption."""
    settings = {"batch_invariant": True, "dtype": dtype}
    sampling = SamplingParams(temperature=1.0, seed=7, logprobs=48, prompt_logprobs=48)

    def logprobs(crowd: int, chunk: int, preempt: bool) -> list[object]:
        d = driver((20, None), settings=settings)
        d.add(0, prompt(1, 30), sampling)
        for i in range(1, crowd):
            d.add(i, prompt(i, 3 + 5 * i), SamplingParams(temperature=1.0, seed=i))
        bits: dict[int, object] = {}
        sampled = 0
        while sampled < 5:
            result = d.step(dict.fromkeys(range(crowd), chunk))
            for scored in result.prompt_logprobs:
                bits |= {scored.start + i: entry for i, entry in enumerate(scored.logprobs)}
            if 0 in result.sequence_ids:
                bits[30 + sampled] = result.logprobs[result.sequence_ids.index(SequenceId(0))]
                sampled += 1
                if preempt and sampled == 3:
                    d.preempt(0)
        return [bits[position] for position in range(1, 35)]

    alone = logprobs(crowd=1, chunk=1000, preempt=False)
    for crowd, chunk, preempt in ((2, 1000, False), (6, 7, False), (11, 16, True), (4, 1, True)):
        assert logprobs(crowd, chunk, preempt) == alone, (crowd, chunk, preempt)


def test_the_n_outputs_of_a_seed_differ_and_repeat() -> None:
    d = driver()
    for index in range(4):
        d.add(index, prompt(1, 10), SamplingParams(temperature=2.0, seed=3), sample_index=index)
    d.run(10)
    outputs = [tuple(d.output(i)[:10]) for i in range(4)]
    assert len(set(outputs)) == 4
    again = driver()
    again.add(9, prompt(1, 10), SamplingParams(temperature=2.0, seed=3), sample_index=2)
    again.run(10)
    assert tuple(again.output(9)[:10]) == outputs[2]


def test_only_rows_that_sample_make_logits() -> None:
    rows: list[int] = []

    def spy(model: TinyCausalLM) -> None:
        logits = model.logits

        def counted(hidden: Tensor) -> Tensor:
            rows.append(len(hidden))
            return logits(hidden)

        model.logits = counted  # type: ignore[method-assign]  # a spy in a fake

    d = driver(wrap=spy)
    rows.clear()
    d.add(0, prompt(0, 30), GREEDY)
    d.add(1, prompt(1, 4), GREEDY)
    d.step({0: 16, 1: 16})
    d.step({0: 16, 1: 16})
    assert rows == [1, 2]


@pytest.mark.parametrize("chunk", [4, 1000])
def test_prompt_logprobs_are_those_of_the_raw_logits(chunk: int) -> None:
    ids = prompt(2, 19)
    d = driver()
    d.add(0, ids, SamplingParams(temperature=0.0, seed=1, prompt_logprobs=3))
    d.run(1, chunk)
    scores = {
        piece.start + i: entry
        for result in d.results
        for piece in result.prompt_logprobs
        for i, entry in enumerate(piece.logprobs)
    }
    expected = naive_logits((None, None), ids).log_softmax(-1)
    assert sorted(scores) == list(range(1, 19))
    for position, entry in scores.items():
        row = expected[position - 1]
        assert entry.token_id == ids[position]
        assert entry.logprob == pytest.approx(float(row[ids[position]]), abs=1e-4)
        assert entry.rank == 1 + int((row > row[ids[position]]).sum())
        best = row.topk(3)
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_logprobs_are_raw_whatever_the_warpers_do() -> None:
    d = driver()
    banned = list(range(1, 20))
    d.add(
        0,
        prompt(2, 9),
        SamplingParams(
            temperature=0.7, top_k=3, seed=1, logprobs=48, logit_bias=dict.fromkeys(banned, -100.0)
        ),
    )
    d.add(1, prompt(2, 9), SamplingParams(temperature=0.0, seed=1, logprobs=0))
    d.add(2, prompt(2, 9), GREEDY)
    result = d.step({0: 99, 1: 99, 2: 99})
    expected = naive_logits((None, None), prompt(2, 9))[-1].log_softmax(-1)
    wide, narrow, none = result.logprobs
    assert wide is not None
    assert narrow is not None
    assert none is None
    assert [token for token, _ in wide.top] == expected.argsort(descending=True).tolist()
    assert all(LOGPROB_FLOOR <= value <= 0 for _, value in wide.top)
    assert narrow.top == ()
    assert narrow.rank == 1
    assert narrow.logprob == pytest.approx(float(expected.max()), abs=1e-4)


def test_padding_rows_of_the_vocabulary_are_never_sampled() -> None:
    def prefer_padding(model: TinyCausalLM) -> None:
        logits = model.logits

        def biased(hidden: Tensor) -> Tensor:
            out = logits(hidden)
            out[:, VOCAB:] += 1000.0
            return out

        model.logits = biased  # type: ignore[method-assign]  # a spy in a fake

    d = driver(wrap=prefer_padding)
    d.add(0, prompt(0, 5), GREEDY)
    d.add(1, prompt(0, 5), SamplingParams(temperature=2.0, seed=1, logprobs=5, prompt_logprobs=5))
    d.run(6)
    entries = [entry for result in d.results for entry in result.logprobs if entry is not None]
    entries += [e for r in d.results for piece in r.prompt_logprobs for e in piece.logprobs]
    assert all(token < VOCAB for i in (0, 1) for token in d.output(i))
    assert all(token < VOCAB for entry in entries for token, _ in entry.top)


def test_a_row_of_broken_logits_fails_alone() -> None:
    poison = prompt(8, 5)

    def break_rows(model: TinyCausalLM) -> None:
        forward = model.forward

        def broken(token_ids: Tensor, layers: object) -> Tensor:
            hidden = forward(token_ids, layers)  # type: ignore[arg-type]  # passed on
            start = 0 if token_ids[:5].tolist() == poison else len(token_ids)
            hidden[start : start + 5] = float("nan")
            return hidden

        model.forward = broken  # type: ignore[method-assign]  # a fault in a fake

    for sampling in (
        GREEDY,
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=0.0, seed=1, logprobs=2),
        SamplingParams(temperature=0.0, seed=1, prompt_logprobs=2),
    ):
        d = driver(wrap=break_rows)
        d.add(0, poison, sampling)
        d.add(1, prompt(1, 7), GREEDY)
        result = d.step({0: 99, 1: 99})
        assert [error.sequence_id for error in result.errors] == [0]
        assert "not numbers" in result.errors[0].message
        assert result.sequence_ids == [1]
        assert result.token_ids == naive_greedy((None, None), prompt(1, 7), 1)


@pytest.mark.parametrize(
    ("sampling", "prompt_ids", "field"),
    [
        (SamplingParams(seed=1, logit_bias={VOCAB: 1.0}), [1], "logit_bias"),
        (SamplingParams(seed=1, allowed_token_ids=(1, -1)), [1], "allowed_token_ids"),
        (SamplingParams(seed=1, bad_word_token_ids=((1, 99),)), [1], "bad_words"),
        (GREEDY, [48], "prompt"),
    ],
)
def test_ids_outside_the_vocabulary_fail_alone(
    sampling: SamplingParams, prompt_ids: list[int], field: str
) -> None:
    d = driver()
    d.add(0, prompt(1, 7), GREEDY)
    d.add(1, prompt_ids, sampling)
    result = d.step({0: 99, 1: 99})
    assert [(e.sequence_id, e.code) for e in result.errors] == [(1, "invalid_value")]
    assert field in result.errors[0].message
    assert result.token_ids == naive_greedy((None, None), prompt(1, 7), 1)


def test_structured_outputs_without_a_tokenizer_fail_by_name() -> None:
    d = driver()
    d.add(0, [1, 2], SamplingParams(seed=1, structured_outputs=StructuredOutputs(regex="a")))
    result = d.step({0: 99})
    assert result.sequence_ids == []
    assert "tokenizer.json" in result.errors[0].message


def test_a_small_pool_lowers_the_context_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    backend = runner(settings={"kv_cache_tokens": 64})
    info = backend.load(lambda _: None)
    assert info.num_blocks == 8
    assert info.max_model_len == 64
    assert "lowered from 256 to 64" in info.description
    assert "lowered from 256 to 64" in caplog.text


@pytest.mark.parametrize("quantization", ["w8a8", "w4a8"])
def test_the_description_names_the_quantization(quantization: str) -> None:
    if SETTINGS["kernels"] != "native":
        pytest.skip("only the native kernels quantize")
    info = runner(settings={"quantization": quantization}).load(lambda _: None)
    assert f"float32 with weights in {quantization} on cpu" in info.description


def test_a_pool_is_cut_to_what_can_be_used() -> None:
    info = runner(
        settings={"kv_cache_memory_bytes": 1 << 30, "max_model_len": 32, "max_num_seqs": 2}
    ).load(lambda _: None)
    assert info.max_model_len == 32
    assert info.num_blocks == 12  # two contexts of four blocks, and a prefill's own


def test_a_restart_takes_the_blocks_it_is_given() -> None:
    first = runner(settings={"kv_cache_tokens": 64}).load(lambda _: None)
    again = runner(settings={"kv_cache_tokens": 2048}).load(
        lambda _: None, num_blocks=first.num_blocks
    )
    assert (again.num_blocks, again.max_model_len) == (first.num_blocks, first.max_model_len)


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"kv_cache_memory_bytes": 100, "kv_cache_tokens": None}, "kv_cache_memory_bytes"),
        ({"kv_cache_memory_bytes": 1 << 50}, "kv_cache_memory_bytes"),
        ({"max_model_len": 5000}, "max_model_len"),
        ({"device": "cuda:7"}, "device"),
        ({"device": "tpu"}, "device"),
        ({"kv_cache_dtype": "bfloat16", "dtype": "float32"}, "kv_cache_dtype"),
        ({"logits_processors": {"p": "no.such:thing"}}, "logits_processors"),
    ],
)
def test_what_cannot_be_loaded_is_a_config_error(settings: dict[str, object], param: str) -> None:
    with pytest.raises(ConfigError) as caught:
        runner(settings=settings).load(lambda _: None)
    assert caught.value.param == param


def test_close_gives_the_memory_back_and_may_be_repeated() -> None:
    models: list[weakref.ref[TinyCausalLM]] = []

    def remember(model: TinyCausalLM) -> None:
        models.append(weakref.ref(model))

    backend = runner(wrap=remember)
    backend.load(lambda _: None)
    assert models[0]() is not None
    backend.close()
    backend.close()
    assert models[0]() is None


def test_progress_tells_what_the_loading_does() -> None:
    said: list[str] = []
    runner().load(said.append)
    assert [text.split()[0] for text in said] == ["loading", "allocating", "preparing", "warming"]


def test_explicit_dtype_is_honoured() -> None:
    info: RunnerInfo = runner(settings={"dtype": "bfloat16"}).load(lambda _: None)
    assert info.dtype == "bfloat16"
