"""`ModelFacts` to `CausalLM`: which implementation, and where its weights come from."""

from __future__ import annotations

from collections.abc import Callable

from triolet.config import ModelConfig
from triolet.errors import ConfigError
from triolet.model_source.facts import ModelFacts
from triolet.model_source.weights import check_weights
from triolet.models import registry
from triolet.models.causal_lm import CausalLM
from triolet.models.decoder import Decoder
from triolet.models.describe import describe
from triolet.models.families import Family
from triolet.models.weights import RandomWeights, SafetensorsWeights
from triolet_kernels.ops import Ops


def load_model(
    facts: ModelFacts, ops: Ops, model: ModelConfig, progress: Callable[[str], None]
) -> CausalLM:
    """Load a model in the dtype and on the device of `ops`.

    Args:
        facts: The model. Its weights are random if it has a `random_seed`.
        ops: What computes.
        model: Decides between triolet's own decoder and transformers' modules ("auto" takes
            the former where it can), and bounds the context.
        progress: Told what is being loaded, in a few words.

    Raises:
        ConfigError: The architecture is not supported, the checkpoint does not fit its
            config.json, or the configuration asks for what this model cannot do.
    """
    if model.quantization is not None and getattr(ops, "quantization", None) != model.quantization:
        raise ConfigError(
            f"quantization {model.quantization!r} is not offered by the {ops.name} kernels",
            param="quantization",
        )
    max_position = model.max_model_len or facts.context_len
    if max_position > facts.context_len:
        raise ConfigError(
            f"max_model_len {max_position} is beyond the context of {facts.name}, which is "
            f"{facts.context_len}",
            param="max_model_len",
        )
    family = registry.find(facts.architecture)
    if model.model_implementation == "triolet":
        family = registry.need(facts.architecture)
    if family is None or model.model_implementation == "transformers":
        from triolet.models.transformers_backend import load_transformers_model

        other = load_transformers_model(facts, ops, max_position, progress)
        _check_attention(other, ops)
        return other
    decoder = _load_decoder(family, facts, ops, max_position, progress)
    _check_attention(decoder, ops)
    return decoder


def _check_attention(model: CausalLM, ops: Ops) -> None:
    """Ask the kernels for one block per kind of layer, so that a refusal comes now."""
    for spec in set(model.attention):
        try:
            ops.allocate_kv(1, 16, spec)
        except ValueError as error:
            raise ConfigError(
                f"the {ops.name} kernels cannot run {model.description}: {error}; "
                "kernels='reference' runs it",
                param="kernels",
            ) from error


def _load_decoder(
    family: Family,
    facts: ModelFacts,
    ops: Ops,
    max_position: int,
    progress: Callable[[str], None],
) -> Decoder:
    spec = describe(family, facts.config)
    if facts.random_seed is not None:
        random = RandomWeights(
            facts.random_seed, ops.dtype, norm_offset=spec.norm_offset, tied=spec.tied
        )
        return Decoder(spec, random, ops, max_position=max_position, progress=progress)
    with SafetensorsWeights(check_weights(facts.directory), ops.dtype) as weights:
        decoder = Decoder(spec, weights, ops, max_position=max_position, progress=progress)
        weights.check_all_taken(tied=spec.tied)
    return decoder
