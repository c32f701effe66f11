"""Random models of usual shapes, made on the device, and runners of them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.fake_cuda import FakeQueue
from triolet.config import EngineConfig, ModelConfig
from triolet.model_source.facts import ModelFacts
from triolet.models.causal_lm import CausalLM
from triolet.models.decoder import Decoder
from triolet.models.describe import describe
from triolet.models.registry import need
from triolet.runner.backend import Progress
from triolet.runner.cuda_device import open_queue
from triolet.runner.model_runner import ModelRunner, OpenQueue
from triolet_kernels.ops import Ops

SHAPES: dict[str, dict[str, Any]] = {
    "1b": {  # llama-3.2-1b
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "8b": {  # llama-3.1-8b
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 128256, "tie_word_embeddings": False,
    },
    "tiny": {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320,
        "tie_word_embeddings": True,
    },
}  # fmt: skip


def config_of(shape: str) -> dict[str, Any]:
    """config.json of a shape."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 8448,
        **SHAPES[shape],
    }


def facts_of(shape: str, vocab_size: int | None = None) -> ModelFacts:
    """Facts of a shape; `vocab_size` bounds what may be sampled, not what is computed."""
    config = config_of(shape)
    return ModelFacts(
        name=f"random-{shape}",
        directory=Path(tempfile.gettempdir()),
        architecture="LlamaForCausalLM",
        config=config,
        vocab_size=vocab_size or config["vocab_size"],
        context_len=config["max_position_embeddings"],
        eos_token_ids=(),
        generation={},
        random_seed=0,
    )


class DeviceWeights:
    """Random weights drawn where they stay: on a CPU those of 8 billion would take minutes."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self._generator = torch.Generator(ops.device).manual_seed(0)

    def has(self, name: str) -> bool:
        """See `Weights.has`."""
        return not name.endswith(("qkv_proj.weight", "gate_up_proj.weight"))

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See `Weights.take`."""
        if len(shape) == 1:
            return torch.ones(shape, dtype=self._ops.dtype, device=self._ops.device)
        values = torch.randn(
            shape, generator=self._generator, dtype=self._ops.dtype, device=self._ops.device
        )
        return values.mul_(shape[1] ** -0.5)


def load_random(facts: ModelFacts, ops: Ops, model: ModelConfig, progress: Progress) -> CausalLM:
    """A `LoadModel` that draws the weights on the device."""
    spec = describe(need(facts.architecture), facts.config)
    length = model.max_model_len or facts.context_len
    return Decoder(spec, DeviceWeights(ops), ops, max_position=length, progress=progress)


def make_backend(config: EngineConfig, facts: ModelFacts, *, fake: bool = False) -> ModelRunner:
    """What `WorkerSpec.backend` names; a fake device is the CPU with a queue."""
    queue: OpenQueue = (lambda _: FakeQueue(1 << 30)) if fake else open_queue
    return ModelRunner(config, facts, load=load_random, queue=queue)


def weight_bytes(shape: str, itemsize: int) -> int:
    """Bytes of weights that a decode step reads."""
    c = SHAPES[shape]
    heads = c["num_attention_heads"] + 2 * c["num_key_value_heads"]
    attention = c["hidden_size"] * c["head_dim"] * (heads + c["num_attention_heads"])
    mlp = 3 * c["hidden_size"] * c["intermediate_size"]
    head = c["vocab_size"] * c["hidden_size"]
    return int(itemsize * (c["num_hidden_layers"] * (attention + mlp) + head))


def kv_bytes(shape: str, num_tokens: int, itemsize: int) -> int:
    """Bytes of keys and values of that many tokens in all layers."""
    c = SHAPES[shape]
    per_token = 2 * c["num_hidden_layers"] * c["num_key_value_heads"] * c["head_dim"]
    return int(per_token * num_tokens * itemsize)
