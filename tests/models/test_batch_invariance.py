"""Batch-invariant kernels: no bit of a row's logits depends on its batch or on chunking."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.packed_model import (
    KERNELS,
    make_ops,
    prefill_in_chunks,
    prefill_then_decode,
    run_packed,
)
from support.tiny_models import SMALL, facts, random_sequences
from triolet.config import ModelConfig
from triolet.models.causal_lm import CausalLM
from triolet.models.loader import load_model
from triolet_kernels import Kernels
from triolet_kernels.ops import Ops

# odd sizes, so that libraries meet their left-overs
SIZES = {"hidden_size": 120, "intermediate_size": 331, "vocab_size": 501}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "head_dim": 24},
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"], "head_dim": 24, "sliding_window": 40,
        "attn_logit_softcapping": 5.0, "final_logit_softcapping": 9.0,
    },
    "olmo2": {"architectures": ["Olmo2ForCausalLM"], "head_dim": 40},
}  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16]

LENGTH = 150  # three KV tiles of 64
OTHERS = [4, 70, 10, 129, 64, 17, 40, 9] * 3 + [5, 66, 30, 8, 12, 21, 33]


def load(name: str, directory: Path, ops: Ops) -> CausalLM:
    config = {**SMALL, **SIZES, **MODELS[name]}
    return load_model(facts(directory, config, random_seed=0), ops, ModelConfig(), lambda _: None)


def whole(model: CausalLM, ops: Ops, sequence: Tensor) -> Tensor:
    return run_packed(model, ops, [sequence], [[(0, len(sequence))]])[0]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [1, 7, 16, 64])
@pytest.mark.slow
def test_chunks_of_a_prefill_give_the_bits_of_the_whole(
    name: str, dtype: torch.dtype, size: int, kernels: Kernels, tmp_path: Path
) -> None:
    ops = make_ops(kernels, dtype, batch_invariant=True)
    model = load(name, tmp_path, ops)
    (sequence,) = random_sequences([LENGTH], 501)
    chunked = run_packed(model, ops, [sequence], prefill_in_chunks([LENGTH], size))[0]
    assert torch.equal(chunked, whole(model, ops, sequence))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.slow
def test_crowd_of_prefills_and_decodes_gives_the_bits_of_running_alone(
    name: str, dtype: torch.dtype, threads: int, kernels: Kernels, tmp_path: Path
) -> None:
    torch.set_num_threads(threads)
    ops = make_ops(kernels, dtype, batch_invariant=True)
    model = load(name, tmp_path, ops)
    sequences = random_sequences([LENGTH, *OTHERS], 501)
    alone = [whole(model, ops, sequence) for sequence in sequences]
    for crowd in (2, 9, 32):
        steps = prefill_then_decode([LENGTH, *OTHERS][:crowd], decodes=3)
        together = run_packed(model, ops, sequences[:crowd], steps)
        for index, result in enumerate(together):
            assert torch.equal(result, alone[index]), (crowd, index)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_one_row_in_short(dtype: torch.dtype, kernels: Kernels, tmp_path: Path) -> None:
    """The two tests above in small, for every run of the suite."""
    ops = make_ops(kernels, dtype, batch_invariant=True)
    model = load("gemma2", tmp_path, ops)
    lengths = [75, 20, 3]
    sequences = random_sequences(lengths, 501)
    together = run_packed(model, ops, sequences, prefill_in_chunks(lengths, 33))
    for sequence, result in zip(sequences, together, strict=True):
        assert torch.equal(result, whole(model, ops, sequence))


def test_without_it_bits_do_depend_on_the_batch(tmp_path: Path) -> None:
    """So the tests above can fail: nothing but the fixed shapes makes them pass."""
    ops = make_ops("reference", torch.float32)
    model = load("llama", tmp_path, ops)
    (sequence,) = random_sequences([LENGTH], 501)
    chunked = run_packed(model, ops, [sequence], prefill_in_chunks([LENGTH], 7))[0]
    assert not torch.equal(chunked, whole(model, ops, sequence))
    torch.testing.assert_close(chunked, whole(model, ops, sequence), rtol=0.0, atol=1e-3)
