"""Everything that changes logits before a token is drawn, in one documented order.

1. rows of the vocabulary that are padding: -inf;
   (log-probabilities are taken here, from the raw logits: see `sampler.py`)
2. `logit_bias`: added;
3. penalties: repetition (divides positive, multiplies negative logits of tokens seen in prompt
   or output, CTRL, arXiv:1909.05858), then frequency and presence (subtracted, for tokens of the
   output), as vLLM and transformers define them;
4. the processors registered with the engine, in the order of the request;
5. bans, last, so that nothing undoes them: `allowed_token_ids`, `bad_words`, `min_tokens` (EOS
   and stop ids), the grammar.

Steps 2, 3 and most of 5 are one gather and one scatter over the touched tokens of all rows.
A row without such parameters is not touched, so its bits are those it has alone.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from triolet.errors import ConfigError, RequestFailed
from triolet.runner.input_batch import to_device
from triolet.runner.logit_edits import Ids, LogitEdits
from triolet_kernels.ops import PenaltyBatch

LogitsProcessor = Callable[[list[int], list[int], Tensor], object]
"""(prompt ids, output ids, logits float32 [V]) -> logits float32 [V]. Stateless: it is called
again with the same tokens when a sequence resumes elsewhere. (Typed as returning anything, for
that is what a stranger's function does; `run_processor` checks it.)"""

EditedRow = tuple[int, LogitEdits]
"""A row of the logits, and what changes it."""


def load_logits_processors(paths: Mapping[str, str]) -> dict[str, LogitsProcessor]:
    """Import the registered processors.

    Args:
        paths: Name to import path "package.module:function".

    Raises:
        ConfigError: A path does not lead to a callable.
    """
    loaded: dict[str, LogitsProcessor] = {}
    for name, path in paths.items():
        module, _, attribute = path.partition(":")
        try:
            function = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"logits_processors.{name}: cannot import {path!r} ({error}); give "
                "'package.module:function'",
                param="logits_processors",
            ) from error
        if not callable(function):
            raise ConfigError(
                f"logits_processors.{name}: {path!r} is no function", param="logits_processors"
            )
        loaded[name] = function
    return loaded


def add_bias(logits: Tensor, rows: Sequence[EditedRow]) -> None:
    """Step 2, in place.

    Args:
        logits: float32 [R, V], contiguous.
        rows: The rows with edits.
    """
    biased = [(row, edits) for row, edits in rows if len(edits.bias_ids)]
    if biased:
        index = _flat_index(
            [(row, edits.bias_ids) for row, edits in biased], logits.shape[1], logits
        )
        bias = np.concatenate([edits.bias for _, edits in biased])
        logits.view(-1)[index] += to_device(bias, logits.device)


def penalties_of(
    rows: Sequence[EditedRow], device: torch.device, pending: Tensor | None = None
) -> PenaltyBatch | None:
    """Step 3 for `Ops.penalize`; None if no row has a penalty.

    Args:
        rows: The rows with edits.
        device: Of the logits.
        pending: int64 [R], per row of the logits the token that a step in flight samples, or
            -1; None where all tokens are known.
    """
    seen = [(row, edits.seen, edits.sampling) for row, edits in rows if edits.seen is not None]
    if not seen:
        return None
    starts = np.zeros(len(seen) + 1, np.int32)
    np.cumsum([len(tokens.ids) for _, tokens, _ in seen], out=starts[1:])

    def numbers(values: list[float]) -> Tensor:
        return to_device(np.array(values, np.float32), device)

    index = to_device(np.array([row for row, _, _ in seen], np.int64), device)
    return PenaltyBatch(
        rows=index,
        starts=to_device(starts, device),
        ids=to_device(np.concatenate([tokens.ids for _, tokens, _ in seen]), device),
        counts=to_device(np.concatenate([tokens.counts for _, tokens, _ in seen]), device),
        pending=torch.full_like(index, -1) if pending is None else pending[index],
        repetition=numbers([sampling.repetition_penalty for _, _, sampling in seen]),
        frequency=numbers([sampling.frequency_penalty for _, _, sampling in seen]),
        presence=numbers([sampling.presence_penalty for _, _, sampling in seen]),
    )


def run_processor(
    name: str,
    processor: LogitsProcessor,
    prompt: list[int],
    output: list[int],
    logits: Tensor,
) -> Tensor:
    """Step 4 for one row: call a registered processor and check what it returns.

    Args:
        name: Its registered name, for the message.
        processor: The function.
        prompt: Prompt tokens.
        output: Output tokens so far.
        logits: float32 [V]; the processor gets a copy.

    Returns:
        float32 [V].

    Raises:
        RequestFailed: It raised, or returned something that is no row of logits.
    """
    try:
        result = processor(prompt, output, logits.clone())
    except Exception as error:  # foreign code: its fault is this request's alone
        raise RequestFailed(
            f"logits processor {name!r} raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(result, Tensor) or result.shape != logits.shape:
        shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise RequestFailed(
            f"logits processor {name!r} must return a tensor of shape {tuple(logits.shape)}, "
            f"got {shape}"
        )
    if not result.is_floating_point() or bool(torch.isnan(result).any()):
        raise RequestFailed(f"logits processor {name!r} returned logits that are not numbers")
    # +inf would make the row's softmax NaN; the largest number wins as surely.
    return result.to(logits).clamp(max=torch.finfo(torch.float32).max)


def ban_tokens(logits: Tensor, rows: Sequence[EditedRow]) -> list[int]:
    """Step 5 but for grammars, in place.

    Args:
        logits: float32 [R, V], contiguous.
        rows: The rows with edits.

    Returns:
        Rows in which something was banned.
    """
    touched: list[int] = []
    for row, edits in rows:
        if edits.allowed_ids is not None:
            allowed = torch.from_numpy(edits.allowed_ids).to(logits.device)
            kept = logits[row, allowed]
            logits[row] = -math.inf
            logits[row, allowed] = kept
            touched.append(row)
    banned = [(row, ids) for row, edits in rows if len(ids := edits.banned_ids())]
    if banned:
        logits.view(-1)[_flat_index(banned, logits.shape[1], logits)] = -math.inf
        touched += [row for row, _ in banned]
    return touched


def _flat_index(ids: Sequence[tuple[int, Ids]], width: int, logits: Tensor) -> Tensor:
    """int64 [N], indices of (row, token ids) pairs into the flattened logits."""
    index = np.concatenate([row * width + tokens for row, tokens in ids])
    return torch.from_numpy(index).to(logits.device)
