"""Every other architecture: transformers' own modules over our paged attention.

transformers lets a model's attention be replaced by name (`AttentionInterface`). Ours stores
keys and values in the paged cache and attends over it; the rest of the model sees one packed
row of tokens, `input_ids [1, T]`, and never knows where a sequence ends. That is right only if
nothing but attention mixes tokens, so a loaded model is probed before it is believed
(`probe.py`). Linear layers are replaced by the kernels' own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from typing_extensions import override

from triolet.errors import ConfigError
from triolet.model_source.facts import ModelFacts
from triolet.models.probe import HFModel, Probe, probe_head, probe_model
from triolet_kernels.ops import AttentionBatch, AttentionSpec, KVCache, Linear, Ops

IMPLEMENTATION: Final = "triolet_paged"
"""Name of our attention in transformers' registry. What it does for a model hangs on that
model's own modules, so two models in one process do not meet."""

_ATTRIBUTE: Final = "triolet_attention"


def load_transformers_model(
    facts: ModelFacts, ops: Ops, max_position: int, progress: Callable[[str], None]
) -> TransformersCausalLM:
    """Load a model with transformers' modules.

    Args:
        facts: The model; with a `random_seed` its weights are transformers' own random ones.
        ops: Attention, linear layers and head.
        max_position: Longest context.
        progress: Told what is going on.

    Raises:
        ConfigError: transformers does not know or cannot load it, or it cannot run over a
            packed, paged batch; the message says what stands in the way.
    """
    import transformers

    transformers.AttentionInterface.register(IMPLEMENTATION, _attention_function)
    _refuse_by_config(facts, max_position)
    progress(f"loading {facts.architecture} with transformers {transformers.__version__}")
    model = _load(facts, ops).to(ops.device).eval().requires_grad_(False)
    progress("probing attention")
    return TransformersCausalLM(model, facts, ops, max_position=max_position)


class TransformersCausalLM:
    """A `CausalLM` made of transformers' modules.

    Rows depend on their batch in their last bits: norms, activations and expert layers are
    torch's.
    """

    batch_invariant = False

    def __init__(self, model: HFModel, facts: ModelFacts, ops: Ops, *, max_position: int) -> None:
        """Probe the model and put our attention, linear layers and head into it.

        Raises:
            ConfigError: It cannot run over a packed, paged batch.
        """
        self._model = model
        self._base = model.base_model
        self._ops = ops
        self._paged = _PagedAttention(ops)
        probe = _probe(model, facts)
        _replace_linears(model, ops, facts, probe)
        self._head = self._find_head(facts)
        for module in model.modules():
            setattr(module, _ATTRIBUTE, self._paged)
        for index, module in enumerate(probe.modules):
            self._paged.index[id(module)] = index
        self._paged.specs = probe.specs
        self.attention: Sequence[AttentionSpec] = probe.specs
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.max_position = max_position
        self.description = f"{type(model).__name__} of transformers, {ops.name} kernels"

    def forward(
        self, token_ids: Tensor, layers: Sequence[tuple[AttentionBatch, KVCache]]
    ) -> Tensor:
        """See `CausalLM.forward`."""
        self._paged.layers = layers
        try:
            output = self._base(
                input_ids=token_ids[None],
                position_ids=layers[0][0].positions[None],
                use_cache=False,
            )
        finally:
            self._paged.layers = ()
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """See `CausalLM.logits`."""
        return self._head(hidden)

    def _find_head(self, facts: ModelFacts) -> Linear:
        """The kernels' head if the model has a plain one, else the model's own last steps.

        Some models scale or cap their logits in `forward`; for those the base model is made to
        return given hidden states, so that what follows it can be run alone.
        """
        output = self._model.get_output_embeddings()
        if probe_head(self._model, output):
            bias = getattr(output, "bias", None)
            return self._ops.head(output.weight, bias)
        gate = _BaseModelGate(self._base)

        def head(hidden: Tensor) -> Tensor:
            return gate.logits(self._model, hidden)

        if not probe_head(self._model, head):
            raise _refusal(facts, "its logits cannot be computed apart from its layers")
        return head


class _PagedAttention:
    """Attention of one model over the caches of the step that is being computed."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self.specs: Sequence[AttentionSpec] = ()
        self.index: dict[int, int] = {}
        self.layers: Sequence[tuple[AttentionBatch, KVCache]] = ()

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """query [1, HQ, T, D], key and value [1, HKV, T, D], rotated -> [1, T, HQ, D]."""
        layer = self.index[id(module)]
        spec = self.specs[layer]
        batch, cache = self.layers[layer]
        num_rows = query.shape[2]
        parts = [x[0].transpose(0, 1).reshape(num_rows, -1) for x in (query, key, value)]
        packed = torch.cat([part.to(self._ops.dtype) for part in parts], dim=1)
        rows = self._ops.rope_and_store(packed, spec, batch, cache, None, None)
        return self._ops.paged_attention(rows, spec, batch, cache, sinks)[None].to(query.dtype)


class _BaseModelGate:
    """Lets the part of a model behind its base model be run alone."""

    def __init__(self, base: HFModel) -> None:
        self._forward = base.forward
        self._hidden: Tensor | None = None
        base.forward = self._gated

    def _gated(self, *args: object, **kwargs: object) -> object:
        from transformers.modeling_outputs import BaseModelOutputWithPast

        if self._hidden is None:
            return self._forward(*args, **kwargs)
        return BaseModelOutputWithPast(last_hidden_state=self._hidden[None])

    def logits(self, model: HFModel, hidden: Tensor) -> Tensor:
        """What the model makes of hidden states [R, H]: float32 [R, V]."""
        self._hidden = hidden
        try:
            ids = torch.zeros((1, hidden.shape[0]), dtype=torch.int64, device=hidden.device)
            logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
        finally:
            self._hidden = None
        return logits.to(torch.float32)


class _PackedLinear(nn.Module):
    """Stands for an nn.Linear, computed by the kernels."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self._linear = linear

    @override
    def forward(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N]."""
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        result = self._linear(rows)
        return result.view(*x.shape[:-1], result.shape[-1])


def _attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """What transformers calls; the model's own modules say what is to be done."""
    target = getattr(module, _ATTRIBUTE)
    if isinstance(target, Probe):
        return target.attend(module, query, key, value, attention_mask, kwargs), None
    assert isinstance(target, _PagedAttention)
    sinks = kwargs.get("s_aux")
    assert sinks is None or isinstance(sinks, Tensor)
    return target.attend(module, query, key, value, sinks), None


def _refuse_by_config(facts: ModelFacts, max_position: int) -> None:
    config = facts.config
    if config.get("alibi") or config.get("position_embedding_type") == "alibi":
        raise _refusal(facts, "it has ALiBi position biases")
    if config.get("quantization_config"):
        raise _refusal(facts, "its checkpoint is quantized")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type"))
    original = config.get("original_max_position_embeddings") or rope.get(
        "original_max_position_embeddings"
    )
    limit = original or config.get("max_position_embeddings") or max_position
    if kind in ("dynamic", "longrope") and max_position > limit:
        raise ConfigError(
            f"{facts.architecture} changes its rotary frequencies beyond {limit} positions, "
            f"which cached keys cannot follow; set max_model_len to at most {limit}",
            param="max_model_len",
        )


def _load(facts: ModelFacts, ops: Ops) -> HFModel:
    import transformers

    factory: Any = transformers.AutoModelForCausalLM
    options = {"dtype": ops.dtype, "attn_implementation": IMPLEMENTATION}
    try:
        if facts.random_seed is not None:
            fields = dict(facts.config)
            config = transformers.AutoConfig.for_model(fields.pop("model_type", None), **fields)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(facts.random_seed)
                return factory.from_config(config, **options)
        with _no_progress_bars():
            model, info = factory.from_pretrained(
                facts.directory,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                **options,
            )
    except (ValueError, KeyError, OSError, RuntimeError, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"transformers {transformers.__version__} cannot load {facts.architecture}: {reason}",
            param="model",
        ) from error
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = sorted(map(str, info[kind]))
        if names:
            raise ConfigError(
                f"the checkpoint does not fit {facts.architecture}: {kind.replace('_', ' ')} "
                f"{', '.join(names[:3])}{' and more' if len(names) > 3 else ''}",
                param="model",
            )
    return model


def _probe(model: HFModel, facts: ModelFacts) -> Probe:
    """Record the model's attention, and refuse what would be wrong when packed."""
    probe = Probe()
    for module in model.modules():
        setattr(module, _ATTRIBUTE, probe)
    reason = probe_model(model, probe)
    if reason is not None:
        raise _refusal(facts, reason)
    return probe


def _replace_linears(model: HFModel, ops: Ops, facts: ModelFacts, probe: Probe) -> None:
    """Replace every linear layer but the head, unless the model reads weights by itself.

    Until the model has been seen to work with them, its own layers are kept.
    """
    expected = probe.run(model)
    replaced = _swap_linears(model, ops)
    try:
        result = probe.run(model)
    except AttributeError:  # it asks a layer for its weight
        for parent, name, child in replaced:
            setattr(parent, name, child)
        return
    if not torch.allclose(result, expected, rtol=0.05, atol=0.05 * float(expected.std())):
        raise _refusal(facts, "its results change when its linear layers are replaced")


def _swap_linears(model: HFModel, ops: Ops) -> list[tuple[nn.Module, str, nn.Module]]:
    """Returns (parent, name, what was there) of every layer that was replaced."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    replaced: list[tuple[nn.Module, str, nn.Module]] = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is head or type(child) not in (nn.Linear, Conv1D):
                continue
            weight: Any = child.weight
            if type(child) is Conv1D:  # GPT-2's layer holds its weight as [K, N]
                weight = weight.t().contiguous()
            setattr(parent, name, _PackedLinear(ops.linear(weight, child.bias)))
            replaced.append((parent, name, child))
    return replaced


@contextlib.contextmanager
def _no_progress_bars() -> Generator[None]:
    """transformers writes bars to stderr, which belongs to the program we live in."""
    from transformers.utils import logging

    transformers_logging: Any = logging  # its functions have no annotations
    shown: bool = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _refusal(facts: ModelFacts, reason: str) -> ConfigError:
    return ConfigError(f"{facts.architecture} cannot be served: {reason}", param="model")
