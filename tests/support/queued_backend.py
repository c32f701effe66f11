"""A runner of a tiny model on a device with a queue, for whole engines."""

from __future__ import annotations

import torch
from torch import Tensor

from support.fake_cuda import FakeQueue
from support.tiny_causal_lm import TinyCausalLM
from triolet.config import EngineConfig, ModelConfig
from triolet.model_source.facts import ModelFacts
from triolet.models.causal_lm import CausalLM
from triolet.runner.backend import Progress
from triolet.runner.model_runner import ModelRunner
from triolet_kernels.ops import Ops

QUEUES: list[FakeQueue] = []
"""Those that were opened, in order."""

FAILING_FORWARDS: set[int] = set()
"""Numbers of forward passes, over all lives, that find no memory."""

_FORWARDS = [0]


def reset(*failing: int) -> None:
    """Forget the queues; let these forward passes fail."""
    QUEUES.clear()
    FAILING_FORWARDS.clear()
    FAILING_FORWARDS.update(failing)
    _FORWARDS[0] = 0


def make(config: EngineConfig, facts: ModelFacts, *, queued: bool) -> ModelRunner:
    """What `WorkerSpec.backend` names.

    Args:
        config: The engine's.
        facts: The model's sizes.
        queued: On a device with a queue; otherwise plainly on the CPU.
    """

    def load(_: ModelFacts, ops: Ops, __: ModelConfig, ___: Progress) -> CausalLM:
        model = TinyCausalLM(ops, (None, 12), vocab_size=264)
        honest = model.forward

        def forward(token_ids: Tensor, layers: object) -> Tensor:
            _FORWARDS[0] += 1
            if _FORWARDS[0] in FAILING_FORWARDS:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return honest(token_ids, layers)  # type: ignore[arg-type]  # passed on

        model.forward = forward  # type: ignore[method-assign]
        return model

    def open_queue(_: torch.device) -> FakeQueue | None:
        if not queued:
            return None
        QUEUES.append(FakeQueue(1 << 30))
        return QUEUES[-1]

    return ModelRunner(config, facts, load=load, queue=open_queue)
