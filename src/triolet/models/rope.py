"""Rotary frequencies of every kind, and the tables of angles made from them.

Formulas follow the papers named below in the form transformers gives them
(modeling_rope_utils.py, 5.24), so that checkpoints mean the same thing here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from triolet.errors import ConfigError
from triolet.models.spec import RopeSpec


def angle_tables(rope: RopeSpec, num_positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of every position, float32 [num_positions, rotary_dim / 2].

    Raises:
        ConfigError: The kind is unknown, a parameter is missing, or it is "dynamic" and
            `num_positions` is beyond the context where its frequencies stand still.
    """
    frequencies, factor = inverse_frequencies(rope, num_positions)
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)
    return (angles.cos() * factor).to(device), (angles.sin() * factor).to(device)


def inverse_frequencies(rope: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    """Radians per position, float32 [rotary_dim / 2], and a factor on cos and sin.

    `num_positions` is the longest context that will be computed: longrope has two sets of
    frequencies, and one of them must serve all positions, or cached keys would have been
    rotated by the other. As vLLM does, the long set is taken if the context may exceed the
    original one.
    """
    if rope.kind not in _KINDS:
        raise ConfigError(
            f"rope_type {rope.kind!r} is not supported; supported are {', '.join(sorted(_KINDS))}",
            param="model",
        )
    return _KINDS[rope.kind](rope, num_positions)


def _need(rope: RopeSpec, name: str) -> Any:  # noqa: ANN401  # JSON
    value = rope.parameters.get(name)
    if value is None:
        raise ConfigError(f"rope_type {rope.kind!r} needs {name!r} in config.json", param="model")
    return value


def _powers(rope: RopeSpec) -> Tensor:
    """theta^(2 i / rotary_dim): float32 [rotary_dim / 2]."""
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
    return torch.pow(torch.tensor(rope.theta, dtype=torch.float32), exponents)


def _default(rope: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    """Su et al., RoFormer."""
    return 1.0 / _powers(rope), 1.0


def _linear(rope: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    """Position interpolation (Chen et al., 2023)."""
    return 1.0 / _powers(rope) / float(_need(rope, "factor")), 1.0


def _dynamic(rope: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    """Dynamic NTK: beyond the trained context, frequencies change with the length."""
    if num_positions > rope.max_position_embeddings:
        raise ConfigError(
            f"rope_type 'dynamic' beyond {rope.max_position_embeddings} positions rotates cached "
            f"keys anew for every length; set max_model_len to at most that",
            param="max_model_len",
        )
    return _default(rope, num_positions)


def _llama3(rope: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    """Llama 3.1: long wavelengths are interpolated, short ones kept, a ramp between."""
    factor = float(_need(rope, "factor"))
    low, high = float(_need(rope, "low_freq_factor")), float(_need(rope, "high_freq_factor"))
    original = float(_need(rope, "original_max_position_embeddings"))
    frequencies = 1.0 / _powers(rope)
    wavelengths = 2 * math.pi / frequencies
    ramp = (original / wavelengths - low) / (high - low)
    smooth = (1 - ramp) * frequencies / factor + ramp * frequencies
    result = torch.where(wavelengths > original / low, frequencies / factor, smooth)
    return torch.where(wavelengths < original / high, frequencies, result), 1.0


def _yarn(rope: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    """YaRN (Peng et al., 2023), with DeepSeek's mscale."""
    parameters = rope.parameters
    original = float(_need(rope, "original_max_position_embeddings"))
    factor = float(parameters.get("factor") or rope.max_position_embeddings / original)
    fast, slow = parameters.get("beta_fast") or 32, parameters.get("beta_slow") or 1

    def dimension(rotations: float) -> float:
        """The dimension that turns this often over the original context."""
        turns = math.log(original / (rotations * 2 * math.pi))
        return rope.rotary_dim * turns / (2 * math.log(rope.theta))

    low, high = dimension(float(fast)), dimension(float(slow))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    if low == high:
        high += 0.001  # no division by zero: the ramp becomes a step
    ramp = ((torch.arange(rope.rotary_dim // 2) - low) / (high - low)).clamp(0, 1)
    powers = _powers(rope)
    frequencies = ramp / (factor * powers) + (1 - ramp) / powers
    return frequencies, _yarn_attention_factor(parameters, factor)


def _yarn_attention_factor(parameters: Mapping[str, Any], factor: float) -> float:
    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    numerator, denominator = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if numerator and denominator:
        return mscale(float(numerator)) / mscale(float(denominator))
    return mscale(1.0)


def _longrope(rope: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    """LongRoPE (Ding et al., 2024): searched factors, one set for short and one for long."""
    parameters = rope.parameters
    original = int(_need(rope, "original_max_position_embeddings"))
    factors = _need(rope, "long_factor" if num_positions > original else "short_factor")
    if len(factors) != rope.rotary_dim // 2:
        raise ConfigError(
            f"rope_type 'longrope' has {len(factors)} factors in config.json for "
            f"{rope.rotary_dim // 2} frequencies",
            param="model",
        )
    factor = float(parameters.get("factor") or rope.max_position_embeddings / original)
    attention_factor = parameters.get("attention_factor")
    if attention_factor is None:
        stretch = math.log(factor) / math.log(original) if factor > 1 else 0.0
        attention_factor = math.sqrt(1 + stretch)
    scale = torch.tensor(factors, dtype=torch.float32)
    return 1.0 / (scale * _powers(rope)), float(attention_factor)


_KINDS: dict[str, Callable[[RopeSpec, int], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
