"""Real weights: greedy tokens of the demo models are transformers' own, in float32."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from support.demo import need_demo
from support.packed_model import KERNELS, make_ops, run_packed
from support.paged import BlockTables
from triolet.config import ModelConfig
from triolet.model_source.resolve import resolve
from triolet.models.causal_lm import CausalLM
from triolet.models.loader import load_model
from triolet_kernels import Kernels
from triolet_kernels.ops import Ops

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time",
    "Water boils at",
    # longer than gemma's window of 512 tokens
    " ".join(f"Item {i} costs {i * 7 % 13} euros." for i in range(64)),
]
NUM_TOKENS: dict[Kernels, int] = {"native": 64, "reference": 16}


def greedy(model: CausalLM, ops: Ops, prompts: list[Tensor], num_tokens: int) -> list[Tensor]:
    """Prompts with `num_tokens` greedy tokens behind each, computed side by side."""
    texts = list(prompts)
    num_blocks = sum((len(text) + num_tokens) // 16 + 1 for text in texts)
    tables = BlockTables(num_blocks, 16)
    caches = [ops.allocate_kv(num_blocks, 16, spec) for spec in model.attention]
    done = [0] * len(texts)
    for _ in range(num_tokens):
        batch = tables.batch([(i, done[i], len(text) - done[i]) for i, text in enumerate(texts)])
        ids = torch.cat([text[start:] for text, start in zip(texts, done, strict=True)])
        hidden = model.forward(ids, [(batch, cache) for cache in caches])
        last_rows = batch.query_starts[1:].to(torch.int64) - 1
        tokens = model.logits(hidden[last_rows]).argmax(dim=-1)
        done = [len(text) for text in texts]
        texts = [torch.cat([text, tokens[i : i + 1]]) for i, text in enumerate(texts)]
    return texts


@pytest.mark.slow
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ["demo", "demo-gemma"])
def test_greedy_tokens_are_those_of_transformers(name: str, kernels: Kernels) -> None:
    """By induction: transformers, given our output so far, takes the same next token."""
    need_demo(name)
    facts = resolve(ModelConfig(model=name))
    ops = make_ops(kernels, torch.float32)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(facts.directory)
    prompts = [torch.tensor(tokenizer(text).input_ids) for text in PROMPTS]
    model = load_model(facts, ops, ModelConfig(max_model_len=2048), lambda _: None)
    texts = greedy(model, ops, prompts, NUM_TOKENS[kernels])
    del model
    factory: Any = transformers.AutoModelForCausalLM
    oracle = factory.from_pretrained(facts.directory, dtype=torch.float32)
    for text, prompt in zip(texts, prompts, strict=True):
        rows = torch.arange(len(prompt) - 1, len(text) - 1)
        logits = oracle(text[None], use_cache=False, logits_to_keep=rows).logits[0]
        assert logits.argmax(dim=-1).tolist() == text[len(prompt) :].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["demo", "demo-gemma"])
def test_bfloat16_differs_only_where_transformers_itself_is_undecided(name: str) -> None:
    """Along transformers' own float32 greedy text, teacher-forced.

    The error of our bfloat16 logits against float32 is at most one and a half times that of
    transformers' bfloat16, and another token is the best only where the two best of float32
    are closer than twice the error.
    """
    need_demo(name)
    facts = resolve(ModelConfig(model=name))
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(facts.directory)
    factory: Any = transformers.AutoModelForCausalLM
    exact = factory.from_pretrained(facts.directory, dtype=torch.float32)
    texts = []
    for prompt in PROMPTS[:4]:
        ids = torch.tensor([tokenizer(prompt).input_ids])
        texts.append(exact.generate(ids, max_new_tokens=64, do_sample=False)[0])
    wanted = [exact(text[None], use_cache=False).logits[0].float() for text in texts]
    del exact
    rough = factory.from_pretrained(facts.directory, dtype=torch.bfloat16)
    theirs = [rough(text[None], use_cache=False).logits[0].float() for text in texts]
    del rough
    ops = make_ops("native", torch.bfloat16)
    model = load_model(facts, ops, ModelConfig(max_model_len=2048), lambda _: None)
    ours = run_packed(model, ops, texts, [[(i, len(text)) for i, text in enumerate(texts)]])
    vocab_size = wanted[0].shape[-1]
    our_error = max(
        float((a[:, :vocab_size] - b).abs().mean()) for a, b in zip(ours, wanted, strict=True)
    )
    their_error = max(float((a - b).abs().mean()) for a, b in zip(theirs, wanted, strict=True))
    assert our_error <= 1.5 * their_error
    for mine, right in zip(ours, wanted, strict=True):
        largest = (mine[:, :vocab_size] - right).abs().amax(dim=-1)
        best = right.topk(2, dim=-1).values
        undecided = best[:, 0] - best[:, 1] < 2 * largest
        same = mine[:, :vocab_size].argmax(dim=-1) == right.argmax(dim=-1)
        assert bool((same | undecided).all())
        assert float(same.float().mean()) > 0.9
