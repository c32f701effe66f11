"""Where a model's tensors come from: safetensors files, or a seed.

Names are logical: those of a plain llama checkpoint without its "model." prefix, such as
"layers.0.self_attn.q_proj.weight", "embed_tokens.weight" and "lm_head.weight".
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from triolet.errors import ConfigError

# The text model of a multi-modal checkpoint lies deeper; the first that fits is taken.
_BODY_PREFIXES = ("model.", "language_model.model.", "model.language_model.", "")
_HEAD_PREFIXES = ("", "language_model.")

# What a checkpoint may hold beside the text model: other modalities, and tables that old
# versions of transformers saved although they follow from config.json.
_OTHER_MODALITIES = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                     "model.multi_modal_projector.")  # fmt: skip
_DERIVED = (".rotary_emb.inv_freq",)

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Weights(Protocol):
    """Tensors by logical name."""

    def has(self, name: str) -> bool:
        """Whether there is such a tensor to be taken."""
        ...

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of this shape, in the model's dtype, in memory of its own.

        Raises:
            ConfigError: It is missing, of another shape, or not of floating point.
        """
        ...


class SafetensorsWeights:
    """Memory-mapped files; a tensor is copied out when it is taken. A context manager."""

    def __init__(self, files: Sequence[Path], dtype: torch.dtype) -> None:
        """Open the files.

        Raises:
            ConfigError: A file is broken, or two have a tensor of the same name.
        """
        self._dtype = dtype
        self._stack = contextlib.ExitStack()
        self._files: dict[str, safe_open] = {}
        self._taken: set[str] = set()
        with contextlib.ExitStack() as stack:
            for path in files:
                try:
                    opened = stack.enter_context(safe_open(path, framework="pt"))
                except (SafetensorError, OSError) as error:
                    raise ConfigError(f"cannot read {path}: {error}", param="model") from error
                for name in opened.keys():  # noqa: SIM118  # no mapping: it has no __iter__
                    if name in self._files:
                        raise ConfigError(f"{path}: tensor {name} is in two files", param="model")
                    self._files[name] = opened
            self._stack = stack.pop_all()
        self._body = next(
            (p for p in _BODY_PREFIXES if f"{p}embed_tokens.weight" in self._files), "model."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._files.clear()
        self._stack.close()

    def has(self, name: str) -> bool:
        """See `Weights.has`."""
        return self._stored_name(name) in self._files

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See `Weights.take`."""
        stored = self._stored_name(name)
        if stored not in self._files:
            raise ConfigError(
                f"the checkpoint has no tensor {stored}; it does not fit its config.json, or a "
                "file is missing",
                param="model",
            )
        tensor: Tensor = self._files[stored].get_tensor(stored)  # type: ignore[no-untyped-call]  # no stubs
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"tensor {stored} has shape {tuple(tensor.shape)}, but config.json asks for "
                f"{shape}",
                param="model",
            )
        if tensor.dtype not in _FLOATS:
            raise ConfigError(
                f"tensor {stored} is {tensor.dtype}: quantized checkpoints are not supported",
                param="model",
            )
        self._taken.add(stored)
        own = torch.empty(shape, dtype=self._dtype)
        return own.copy_(tensor)

    def check_all_taken(self, *, tied: bool) -> None:
        """Refuse tensors that nobody asked for: the model would not be the one on disk.

        Args:
            tied: The head is the embedding; a copy of it in the checkpoint is passed over.

        Raises:
            ConfigError: Names some of them.
        """
        rest = [
            name
            for name in sorted(self._files.keys() - self._taken)
            if not name.startswith(_OTHER_MODALITIES)
            and not name.endswith(_DERIVED)
            and not (tied and name == self._stored_name("lm_head.weight"))
        ]
        if rest:
            more = f" and {len(rest) - 3} more" if len(rest) > 3 else ""
            raise ConfigError(
                f"the checkpoint has tensors that the model does not use: {', '.join(rest[:3])}"
                f"{more}; its config.json does not describe it",
                param="model",
            )

    def _stored_name(self, name: str) -> str:
        if not name.startswith("lm_head."):
            return self._body + name
        names = [prefix + name for prefix in _HEAD_PREFIXES]
        return next((n for n in names if n in self._files), names[0])


class RandomWeights:
    """Tensors drawn from a seed, each from its own name: no matter in which order.

    Activations keep a size near 1 through the layers, and logits get a standard deviation of
    about 3, so that a greedy answer is not a matter of rounding.
    """

    _LOGITS_DEVIATION = 3.0

    def __init__(self, seed: int, dtype: torch.dtype, *, norm_offset: float, tied: bool) -> None:
        self._seed = seed
        self._dtype = dtype
        self._norm_offset = norm_offset
        self._tied = tied

    def has(self, name: str) -> bool:
        """Fused tensors are a matter of files; here every tensor is apart."""
        return not name.endswith(("qkv_proj.weight", "gate_up_proj.weight"))

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See `Weights.take`."""
        if name.endswith("bias"):
            return torch.zeros(shape, dtype=self._dtype)
        if len(shape) == 1:
            return torch.full(shape, 1.0 - self._norm_offset, dtype=self._dtype)
        deviation = shape[1] ** -0.5
        if name == "lm_head.weight" or (self._tied and name == "embed_tokens.weight"):
            deviation *= self._LOGITS_DEVIATION
        elif name == "embed_tokens.weight":
            deviation = 1.0
        key = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little", signed=True))
        return torch.randn(shape, generator=generator).mul_(deviation).to(self._dtype)
