"""Constrained and free rows in one batch; grammars survive everything tokens survive."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from support.batch_driver import BatchDriver
from support.byte_level_tokenizer import EOS, byte_level_tokenizer
from support.tiny_causal_lm import TinyCausalLM
from triolet.config import EngineConfig, ModelConfig
from triolet.model_source.facts import ModelFacts
from triolet.models.causal_lm import CausalLM
from triolet.runner.backend import Progress
from triolet.runner.model_runner import ModelRunner
from triolet.sampling_params import SamplingParams, StructuredOutputs
from triolet_kernels.ops import Ops

TOKENIZER = byte_level_tokenizer()
VOCAB = TOKENIZER.get_vocab_size()
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999}, "b": {"enum": ["ab"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
JSON = StructuredOutputs(json_schema=json.dumps(SCHEMA))
CODE = StructuredOutputs(regex="[a-f]{4}-[0-9]{3}")


@pytest.fixture
def facts(tmp_path: Path) -> ModelFacts:
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    return ModelFacts("tiny", tmp_path, "Tiny", {}, VOCAB, 256, (EOS,), {})


def load(_: ModelFacts, ops: Ops, __: ModelConfig, ___: Progress) -> CausalLM:
    return TinyCausalLM(ops, (None,), vocab_size=VOCAB + 3)


def driver(facts: ModelFacts) -> BatchDriver:
    config = EngineConfig.of(
        "tiny", device="cpu", kernels="reference", threads=1, kv_cache_tokens=4096
    )
    backend = ModelRunner(config, facts, load=load)
    return BatchDriver(backend, backend.load(lambda _: None))


def params(structured: StructuredOutputs | None, seed: int = 1, **more: object) -> SamplingParams:
    settings: dict[str, object] = {"temperature": 1.0, "logprobs": 0, **more}
    return SamplingParams(seed=seed, structured_outputs=structured, **settings)  # type: ignore[arg-type]


def run_to_eos(d: BatchDriver, live: Sequence[int], steps: int = 80) -> None:
    """Step everything until each has sampled EOS; what has is ended."""
    pending = list(live)
    for _ in range(steps):
        d.step(dict.fromkeys(pending, 100))
        for i in [i for i in pending if d.output(i)[-1] == EOS]:
            d.end(i)
            pending.remove(i)
        if not pending:
            return
    raise AssertionError(f"no EOS from {pending}")


def text(d: BatchDriver, sequence_id: int) -> str:
    output = d.output(sequence_id)
    return str(TOKENIZER.decode(output[: output.index(EOS)]))


def test_several_grammars_and_free_rows_share_a_batch(facts: ModelFacts) -> None:
    d = driver(facts)
    free = SamplingParams(temperature=1.0, seed=9)
    for i in range(3):
        d.add(i, [10 + i], params(JSON, seed=i))
        d.add(10 + i, [20 + i], params(CODE, seed=i))
        d.add(20 + i, [30 + i], attrs.evolve(free, seed=i))
    for _ in range(4):
        d.step(dict.fromkeys((0, 1, 2, 10, 11, 12, 20, 21, 22), 100))
    run_to_eos(d, (0, 1, 2, 10, 11, 12))
    for i in range(3):
        assert set(json.loads(text(d, i))) == {"a", "b"}
        assert re.fullmatch("[a-f]{4}-[0-9]{3}", text(d, 10 + i))

    alone = driver(facts)
    for i in range(3):
        alone.add(20 + i, [30 + i], attrs.evolve(free, seed=i))
    for _ in range(4):
        alone.step(dict.fromkeys((20, 21, 22), 100))
    assert [d.output(20 + i)[:4] for i in range(3)] == [alone.output(20 + i) for i in range(3)]


def test_preemption_changes_nothing(facts: ModelFacts) -> None:
    calm, harried = driver(facts), driver(facts)
    for d in (calm, harried):
        d.add(0, [5, 6], params(JSON, seed=4))
        d.add(1, [5, 6], params(CODE, seed=4))
    run_to_eos(calm, (0, 1))
    for _ in range(5):
        harried.step({0: 100, 1: 100})
        harried.preempt(0)
    harried.preempt(1)
    run_to_eos(harried, (0, 1))
    assert text(harried, 0) == text(calm, 0)
    assert text(harried, 1) == text(calm, 1)


def test_the_n_outputs_follow_the_grammar_each_in_its_way(facts: ModelFacts) -> None:
    d = driver(facts)
    for index in range(4):
        d.add(index, [5], params(CODE, seed=2, temperature=2.0), sample_index=index)
    run_to_eos(d, range(4))
    texts = {text(d, i) for i in range(4)}
    assert len(texts) > 1
    assert all(re.fullmatch("[a-f]{4}-[0-9]{3}", t) for t in texts)


def test_logprobs_of_constrained_rows_are_raw(facts: ModelFacts) -> None:
    d = driver(facts)
    d.add(0, [5], params(CODE, logprobs=3))
    d.add(1, [5], params(None, logprobs=3))
    constrained, free = d.step({0: 100, 1: 100}).logprobs
    assert constrained is not None
    assert free is not None
    assert constrained.top == free.top


def test_bans_that_leave_the_grammar_nothing_fail_the_row_alone(facts: ModelFacts) -> None:
    d = driver(facts)
    d.add(0, [5], params(StructuredOutputs(choice=("ab",)), min_tokens=5))
    d.add(1, [5], params(CODE))
    d.step({0: 100, 1: 100})
    result = d.step({0: 100, 1: 100})
    for _ in range(3):
        if result.errors:
            break
        result = d.step({0: 100, 1: 100})
    assert [error.sequence_id for error in result.errors] == [0]
    assert "exclude every one" in result.errors[0].message
    assert result.sequence_ids == [1]


def test_a_resume_that_does_not_fit_its_grammar_fails_alone(facts: ModelFacts) -> None:
    d = driver(facts)
    d.add(0, [5], params(CODE), output=[200, 201])
    d.add(1, [5], params(CODE))
    result = d.step({0: 100, 1: 100})
    assert [(e.sequence_id, e.code) for e in result.errors] == [(0, "request_failed")]
    assert result.sequence_ids == [1]


def test_a_tokenizer_that_cannot_be_read_switches_grammars_off(
    facts: ModelFacts, caplog: pytest.LogCaptureFixture
) -> None:
    (facts.directory / "tokenizer.json").write_text("{}")
    d = driver(facts)
    assert "structured outputs are off" in caplog.text
    d.add(0, [5], params(CODE))
    assert "tokenizer.json" in d.step({0: 100}).errors[0].message
