"""What the model runner asks of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from triolet_kernels.ops import AttentionBatch, AttentionSpec, KVCache


class CausalLM(Protocol):
    """A loaded decoder-only language model over a paged KV cache.

    Call it under `torch.inference_mode()`. It keeps no state between calls: keys and values
    are in the caches it is given.

    Attributes:
        attention: One per layer with attention, in the order of `forward`'s `layers`.
        vocab_size: V, rows of the head; ids past the tokenizer's are padding.
        max_position: Positions below this can be computed.
        batch_invariant: Whether no bit of a row depends on the rest of its batch.
        description: A few words for people: family or class, and how it is computed.
    """

    attention: Sequence[AttentionSpec]
    vocab_size: int
    max_position: int
    batch_invariant: bool
    description: str

    def forward(
        self, token_ids: Tensor, layers: Sequence[tuple[AttentionBatch, KVCache]]
    ) -> Tensor:
        """Run a packed batch through all layers.

        Args:
            token_ids: int64 [T].
            layers: Batch and cache of each layer; all batches have the same rows.

        Returns:
            Hidden states after the final norm, [T, H] in the model's dtype.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of some hidden states, [R, H] -> float32 [R, V]."""
        ...
