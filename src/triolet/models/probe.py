"""Find out by running it what the attention of a transformers model is.

The model computes three tokens with an attention that mixes nothing: every row gets its own
value. Each call tells the shape, scale, window and soft cap of one layer. And since nothing
mixes rows, a row must not change when another token changes; if it does, the model has state
beside attention (a convolution, a recurrence) that a packed batch would leak from one
sequence into the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from triolet_kernels.ops import AttentionSpec

HFModel = Any
"""A transformers.PreTrainedModel; which attributes it has depends on its class."""

# Tensors that transformers hands to attention and that change nothing about it.
_HARMLESS = ("position_ids", "cache_position", "position_embeddings", "s_aux")

_NUM_TOKENS = 3


class Probe:
    """Takes the place of attention while a model is probed.

    Attributes:
        specs: One per attention layer, in order of computation.
        modules: The modules they belong to.
        problems: What this attention cannot be replaced for.
    """

    def __init__(self) -> None:
        self.specs: list[AttentionSpec] = []
        self.modules: list[nn.Module] = []
        self.problems: list[str] = []

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        kwargs: Mapping[str, object],
    ) -> Tensor:
        """Note what the layer is; return every row's own value, [1, T, HQ, D]."""
        num_heads, head_dim = query.shape[1], query.shape[3]
        num_kv_heads = key.shape[1]
        self.problems += _problems(query, key, value, attention_mask, kwargs)
        if all(module is not known for known in self.modules):
            self.modules.append(module)
            scale, window = _number(kwargs, "scaling"), _number(kwargs, "sliding_window")
            self.specs.append(
                AttentionSpec(
                    num_heads=num_heads,
                    num_kv_heads=num_kv_heads,
                    head_dim=head_dim,
                    scale=head_dim**-0.5 if scale is None else scale,
                    window=None if window is None else int(window),
                    softcap=_number(kwargs, "softcap"),
                )
            )
        return value.repeat_interleave(num_heads // num_kv_heads, dim=1).transpose(1, 2)

    def run(self, model: HFModel, first_token: int = 0) -> Tensor:
        """Logits of three tokens, float32 [3, V]; the first token can be chosen."""
        device = next(model.parameters()).device
        ids = torch.tensor([[first_token, 1, 2]], device=device)
        with torch.inference_mode():
            output = model(
                input_ids=ids,
                position_ids=torch.arange(_NUM_TOKENS, device=device)[None],
                use_cache=False,
            )
        logits: Tensor = output.logits[0].to(torch.float32)
        return logits


def probe_model(model: HFModel, probe: Probe) -> str | None:
    """Run a model on the probe, which its modules must already carry.

    Returns:
        Why it cannot run over a packed, paged batch; None if it can.
    """
    try:
        changed = probe.run(model, first_token=3)
        logits = probe.run(model)
    except Exception as error:  # of a model's own code, in which anything can go wrong
        return f"it fails on packed tokens with positions ({type(error).__name__}: {error})"
    num_layers = model.config.get_text_config().num_hidden_layers
    if len(probe.modules) != num_layers:
        return (
            f"{len(probe.modules)} of its {num_layers} layers have attention that transformers "
            "lets us replace, and all must"
        )
    if probe.problems:
        return probe.problems[0]
    spread = float(logits.std())
    if not torch.allclose(changed[1:], logits[1:], rtol=0.0, atol=0.02 * spread):
        return "tokens mix outside attention: it has recurrent or convolution state"
    return None


def probe_head(model: HFModel, head: Callable[[Tensor], Tensor]) -> bool:
    """Whether head(hidden states) are the logits that the whole model computes.

    The model must carry a probe. It is run on one token, which attends to itself alone.
    """
    device = next(model.parameters()).device
    inputs = {
        "input_ids": torch.tensor([[1]], device=device),
        "position_ids": torch.zeros((1, 1), dtype=torch.int64, device=device),
        "use_cache": False,
    }
    with torch.inference_mode():
        expected = model(**inputs).logits[0].to(torch.float32)
        hidden = model.base_model(**inputs).last_hidden_state[0]
        result = head(hidden).to(torch.float32)
    same_shape = result.shape == expected.shape
    return same_shape and torch.allclose(
        result, expected, rtol=1e-3, atol=1e-3 * float(expected.std())
    )


def _problems(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    kwargs: Mapping[str, object],
) -> list[str]:
    problems: list[str] = []
    if value.shape[-1] != query.shape[-1]:
        problems.append(
            f"its values have {value.shape[-1]} dimensions where its keys have {key.shape[-1]}"
        )
    if attention_mask is not None:
        problems.append("it masks attention in a way of its own")
    if kwargs.get("is_causal") is False:
        problems.append("its attention is not causal")
    problems += [
        f"its attention depends on {name!r}"
        for name, argument in kwargs.items()
        if isinstance(argument, Tensor) and name not in _HARMLESS
    ]
    return problems


def _number(kwargs: Mapping[str, object], name: str) -> float | None:
    value = kwargs.get(name)
    if value is None:
        return None
    assert isinstance(value, int | float), f"attention got {name}={value!r}"
    return float(value)
