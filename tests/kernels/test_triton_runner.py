"""A whole model on the Triton kernels, two steps in flight, on a device that is an interpreter.

All that a GPU adds to this is numbers: the same runner, the same kernels, the same graphs of
control flow. Tokens must be those of the reference kernels on the CPU runner.
"""

from pathlib import Path

import pytest
import torch

from support.fake_cuda import FakeQueue
from support.pipeline_driver import PipelineDriver
from support.tiny_causal_lm import TinyCausalLM
from support.tiny_models import facts
from support.triton_kernels import interpreted, triton_ops
from triolet.config import EngineConfig, ModelConfig
from triolet.model_source.facts import ModelFacts
from triolet.models.causal_lm import CausalLM
from triolet.runner import device
from triolet.runner.backend import Progress
from triolet.runner.model_runner import ModelRunner
from triolet.sampling_params import SamplingParams
from triolet_kernels.ops import Ops

pytestmark = interpreted
WORK = (
    ([5, 6, 7, 8, 9], SamplingParams(temperature=0.0, seed=1)),
    ([20] * 11, SamplingParams(temperature=1.0, top_k=5, top_p=0.9, seed=3, logprobs=2)),
)


def outputs(queue: FakeQueue | None, *, enforce_eager: bool = False) -> list[list[int]]:
    def load(_: ModelFacts, ops: Ops, __: ModelConfig, ___: Progress) -> CausalLM:
        return TinyCausalLM(ops, (None, 6))

    config = EngineConfig.of(
        "tiny", device="cpu", dtype="float32", kernels="reference", threads=1, block_size=8,
        kv_cache_tokens=256, max_num_seqs=2, max_model_len=40, max_num_batched_tokens=16,
        enforce_eager=enforce_eager,
    )  # fmt: skip
    described = facts(Path("nowhere"), {"architectures": ["Tiny"], "vocab_size": 48})
    runner = ModelRunner(config, described, load=load, queue=lambda _: queue)
    driver = PipelineDriver(runner, runner.load(lambda _: None), seed=4)
    for i, (prompt, sampling) in enumerate(WORK):
        driver.add(i, prompt, sampling, 3)
    driver.run(chunk=8)
    runner.check_integrity()
    return [driver.output(i) for i in range(len(WORK))]


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_tokens_are_those_of_the_reference_on_the_cpu_runner(
    monkeypatch: pytest.MonkeyPatch, enforce_eager: bool
) -> None:
    expected = outputs(None)
    monkeypatch.setattr(device, "choose_ops", lambda *_: triton_ops(torch.float32))
    queue = FakeQueue(1 << 30)
    assert outputs(queue, enforce_eager=enforce_eager) == expected
    assert (queue.replays > 0) is not enforce_eager
