"""What a runner decides once, while it loads: context, KV blocks, grammars, how it is described."""

from __future__ import annotations

import logging

from triolet.config import EngineConfig
from triolet.errors import ConfigError
from triolet.grammar.matcher import GrammarCompiler
from triolet.messages.runner_to_scheduler import RunnerInfo
from triolet.model_source.facts import ModelFacts
from triolet.models.causal_lm import CausalLM
from triolet.runner import cuda_runner, kv_tensors
from triolet.runner.backend import Progress
from triolet.runner.cuda_device import DeviceQueue
from triolet.runner.kv_layout import KVLayout
from triolet.runner.memory import available_memory_bytes
from triolet_kernels.ops import Ops

log = logging.getLogger(__name__)


def wanted_model_len(model: CausalLM, facts: ModelFacts, config: EngineConfig) -> int:
    """The context that is asked for, before memory is looked at.

    Raises:
        ConfigError: The model has no such positions.
    """
    longest = min(facts.context_len, model.max_position)
    asked = config.model.max_model_len
    if asked is not None and asked > longest:
        raise ConfigError(
            f"max_model_len is {asked}, and {facts.name} was made for contexts of at "
            f"most {longest} tokens",
            param="max_model_len",
        )
    return asked or longest


def count_blocks(
    queue: DeviceQueue | None,
    model: CausalLM,
    ops: Ops,
    layout: KVLayout,
    block_bytes: int,
    max_model_len: int,
    config: EngineConfig,
    progress: Progress,
) -> int:
    """KV blocks that memory and settings allow.

    Args:
        queue: The device, if it has a queue: then the largest step is computed and measured.
        model: Loaded.
        ops: Its kernels.
        layout: Of its KV cache.
        block_bytes: Bytes of one block.
        max_model_len: Longest context that is asked for.
        config: The engine's configuration.
        progress: Told what is done.

    Raises:
        ConfigError: More is asked for than there is room for.
    """
    if queue is None:
        free = available_memory_bytes()
        return kv_tensors.blocks_in_budget(config.cache, len(layout.groups), block_bytes, free)
    progress("measuring the memory of a step")
    budget = cuda_runner.memory_for_cache(
        queue,
        config,
        lambda: cuda_runner.compute_largest_step(model, ops, layout, config, max_model_len),
    )
    budget -= block_bytes  # of the block that is nobody's, see `cuda_graph`
    return cuda_runner.blocks_for_cache(config, len(layout.groups), block_bytes, max(0, budget))


def load_grammars(facts: ModelFacts) -> GrammarCompiler | None:
    """The compiler of grammars; None (and each request that needs it fails) without one."""
    try:
        return GrammarCompiler.from_directory(
            facts.directory, facts.vocab_size, facts.eos_token_ids
        )
    except ValueError as error:
        log.warning("structured outputs are off: cannot read tokenizer.json: %s", error)
        return None


def describe(info: RunnerInfo, model: CausalLM, wanted: int, quantization: str | None) -> str:
    """One line for people; a shortened context is also a warning in the log.

    Args:
        info: The runner.
        model: Its model.
        wanted: Context that was asked for.
        quantization: Of the weights.
    """
    size = info.num_blocks * info.block_bytes >> 20
    dtype = info.dtype if quantization is None else f"{info.dtype} with weights in {quantization}"
    text = (
        f"{model.description}, {dtype} on {info.device}, "
        f"{info.threads} threads, KV cache of {info.num_blocks} blocks ({size} MiB), "
        f"contexts up to {info.max_model_len} tokens"
    )
    if info.max_model_len < wanted:
        reason = (
            f"max_model_len was lowered from {wanted} to {info.max_model_len}: longer contexts "
            f"do not fit the KV cache of {size} MiB"
        )
        log.warning(reason)
        text = f"{text}; {reason}"
    return text
