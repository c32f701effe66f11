"""Log-probabilities of the chosen tokens and of the best ones."""

from __future__ import annotations

import torch
from torch import Tensor


def top_logprobs(logits: Tensor, tokens: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log_softmax of float32 logits [R, V] at `tokens` and at the k best.

    Rows are taken one by one and normalised in float64; see `Ops.top_logprobs`.

    Raises:
        ValueError: k is negative or larger than the vocabulary.
    """
    num_rows, vocab_size = logits.shape
    if not 0 <= k <= vocab_size:
        raise ValueError(f"k must be between 0 and the vocabulary size {vocab_size}, not {k}")
    device = logits.device
    chosen = torch.empty(num_rows, dtype=torch.float32, device=device)
    ranks = torch.empty(num_rows, dtype=torch.int64, device=device)
    best_ids = torch.empty((num_rows, k), dtype=torch.int64, device=device)
    best = torch.empty((num_rows, k), dtype=torch.float32, device=device)
    for row, token in enumerate(tokens.tolist()):
        values = logits[row]
        normaliser = torch.logsumexp(values.to(torch.float64), dim=0)
        value = values[token]
        chosen[row] = value.to(torch.float64) - normaliser
        ties_before = int((values[:token] == value).sum())
        ranks[row] = int((values > value).sum()) + ties_before + 1
        if k:
            ids = _best_ids(values, k)
            best_ids[row] = ids
            best[row] = values[ids].to(torch.float64) - normaliser
    return chosen, ranks, best_ids, best


def _best_ids(values: Tensor, k: int) -> Tensor:
    """Ids of the k largest values [V], largest first, ties by id."""
    border = torch.topk(values, k).values[-1]
    candidates = torch.nonzero(values >= border)[:, 0]  # by id; more than k if ties at the border
    order = torch.argsort(values[candidates], descending=True, stable=True)
    return candidates[order[:k]]
