"""Random penalties, and what they do, one token after another."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from triolet_kernels.ops import PenaltyBatch


def random_penalties(
    seed: int,
    rows: int,
    *,
    num_logit_rows: int,
    width: int,
    num_tokens: int | None = None,
    pending: int | None = None,
) -> PenaltyBatch:
    """Penalties on random tokens of some rows.

    Args:
        seed: Of everything.
        rows: Rows with penalties.
        num_logit_rows: Rows there are.
        width: Vocabulary.
        num_tokens: Tokens each row has seen; None is any number.
        pending: The pending token of every row; None is one of them, another, or none.
    """
    rng = random.Random(seed)
    chosen = rng.sample(range(num_logit_rows), rows)
    starts, ids, counts, pendings = [0], list[int](), list[float](), list[int]()
    for _ in range(rows):
        size = rng.randrange(width // 2) if num_tokens is None else num_tokens
        seen = rng.sample(range(width), size)
        ids += seen
        counts += [float(rng.choice((0, 1, 1, 5))) for _ in seen]
        starts.append(len(ids))
        pendings.append(
            rng.choice([-1, rng.randrange(width), *seen[:1]]) if pending is None else pending
        )

    def numbers(*values: float) -> Tensor:
        return torch.tensor([rng.choice(values) for _ in range(rows)], dtype=torch.float32)

    return PenaltyBatch(
        rows=torch.tensor(chosen),
        starts=torch.tensor(starts, dtype=torch.int32),
        ids=torch.tensor(ids, dtype=torch.int64),
        counts=torch.tensor(counts, dtype=torch.float32),
        pending=torch.tensor(pendings),
        repetition=numbers(1.0, 1.3, 0.7),
        frequency=numbers(0.0, 0.5, -0.5),
        presence=numbers(0.0, 0.25, -1.0),
    )


def penalised_by_loop(logits: Tensor, batch: PenaltyBatch) -> Tensor:
    """The logits after penalties."""
    out = logits.clone()
    for i, row in enumerate(batch.rows.tolist()):
        start, stop = batch.starts[i : i + 2].tolist()
        counts = dict(
            zip(batch.ids[start:stop].tolist(), batch.counts[start:stop].tolist(), strict=True)
        )
        pending = int(batch.pending[i])
        if pending >= 0:
            counts[pending] = counts.get(pending, 0.0) + 1.0
        for token, count in counts.items():
            value = float(out[row, token])
            factor = float(batch.repetition[i])
            value = value / factor if value > 0 else value * factor
            value -= float(batch.frequency[i]) * count
            out[row, token] = value - float(batch.presence[i]) * (count > 0)
    return out
