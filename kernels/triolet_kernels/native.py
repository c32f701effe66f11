"""`NativeOps`: the operations of `triolet_kernels.ops.Ops` in C++ for CPUs.

This file checks shapes and dtypes and passes addresses; the kernels are in `cpu/`. They are batch
invariant by construction: no bit of a row depends on the rest of its batch, on how its prefill
was cut, or on the number of threads.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor

from triolet_kernels.native_checks import (
    address,
    check,
    check_angles,
    check_int64,
    check_logits,
    check_shape,
)
from triolet_kernels.native_kv_cache import NativeKVCache, allocate, bytes_per_block
from triolet_kernels.ops import (
    Activation,
    AttentionBatch,
    AttentionSpec,
    KVCache,
    Linear,
    PenaltyBatch,
    SamplingBatch,
)
from triolet_kernels.reference import bitmask, penalties

if TYPE_CHECKING:
    from triolet_kernels.packed_weight import PackedWeight, WeightFormat

Quantization = Literal["w8a8", "w4a8"]

_DTYPES: dict[torch.dtype, WeightFormat] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1, "gelu": 2}


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why native kernels cannot run on this device in this dtype; None if they can."""
    if device.type != "cpu":
        return f"the native kernels are for CPUs, not for {device.type}"
    if dtype not in _DTYPES:
        return f"the native CPU kernels compute in float32 and bfloat16, not in {dtype}"
    if importlib.util.find_spec("triolet_kernels._native") is None:
        return (
            "the native CPU kernels were not built (no C++20 compiler at install time), so plain "
            "torch computes, several times slower; install g++ 11 or newer and reinstall triolet"
        )
    if supported_isas()[0] == "portable":
        return "the native kernels are tuned for x86 CPUs with AVX2 or newer; this one has neither"
    return None


def supported_isas() -> list[str]:
    """Instruction sets the kernels can use on this machine, best first."""
    from triolet_kernels import _native

    return _native.supported_isas()


def native_ops(
    device: torch.device,
    dtype: torch.dtype,
    *,
    threads: int,
    quantization: Quantization | None = None,
) -> NativeOps:
    """The native implementation, computing on `threads` threads.

    Raises:
        ValueError: See `unavailable`, and `NativeOps`.
    """
    if (reason := unavailable(device, dtype)) is not None:
        raise ValueError(reason)
    return NativeOps(dtype, threads=threads, quantization=quantization)


class NativeOps:
    """C++ on the CPU; the meaning of every operation is in `Ops`.

    It owns a pool of threads: `close` ends them, and so does dropping the last reference. It may
    be used from several threads; while one computes, another's operation runs in its own thread.

    Args:
        dtype: float32 or bfloat16.
        threads: Threads that compute, the calling one included.
        isa: One of `supported_isas()`; None takes the best.
        quantization: How `linear` packs its weights; `head` and tied embeddings are w8a8 then.

    Raises:
        ValueError: An argument is out of its range.
    """

    name = "native"
    batch_invariant = True

    def __init__(
        self,
        dtype: torch.dtype,
        *,
        threads: int = 1,
        isa: str | None = None,
        quantization: Quantization | None = None,
    ) -> None:
        from triolet_kernels._native import Kernels

        if dtype not in _DTYPES:
            raise ValueError(f"dtype must be float32 or bfloat16, not {dtype}")
        if quantization not in (None, "w8a8", "w4a8"):
            raise ValueError(f"quantization must be 'w8a8', 'w4a8' or None, not {quantization!r}")
        self.device = torch.device("cpu")
        self.dtype = dtype
        self.isa = isa or supported_isas()[0]
        self.quantization: Quantization | None = quantization
        self._code = 0 if dtype is torch.float32 else 1
        self._kernels = Kernels(self.isa, threads)

    @property
    def threads(self) -> int:
        """Threads that compute, the calling one included."""
        return self._kernels.num_threads

    def close(self) -> None:
        """End the threads of the pool; later calls compute in the calling thread. Idempotent."""
        self._kernels.close()

    # ---- linears -------------------------------------------------------------------------

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """See `Ops.linear`."""
        packed = self._pack(weight, self.quantization or _DTYPES[self.dtype], bias)
        return self._linear(packed, float_output=False)

    def head(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """See `Ops.head`."""
        return self._linear(self._pack(weight, self._head_format(), bias), float_output=True)

    def tied_embedding(
        self, weight: Tensor, *, head: bool
    ) -> tuple[Callable[[Tensor], Tensor], Linear | None]:
        """See `Ops.tied_embedding`."""
        from triolet_kernels.packed_weight import PackedEmbedding

        packed = self._pack(weight, self._head_format() if head else _DTYPES[self.dtype], None)
        look_up = PackedEmbedding(self._kernels, packed, self.dtype)
        return look_up, self._linear(packed, float_output=True) if head else None

    def _head_format(self) -> WeightFormat:
        # Four bits in the head cost more in quality than its share of the time is worth.
        return "w8a8" if self.quantization is not None else _DTYPES[self.dtype]

    def _pack(
        self, weight: Tensor, weight_format: WeightFormat, bias: Tensor | None
    ) -> PackedWeight:
        from triolet_kernels.packed_weight import PackedWeight

        return PackedWeight(
            self._kernels, weight.detach().to(self.device, self.dtype), weight_format, bias
        )

    def _linear(self, packed: PackedWeight, *, float_output: bool) -> Linear:
        from triolet_kernels.packed_weight import PackedLinear

        return PackedLinear(self._kernels, packed, self.dtype, float_output=float_output)

    # ---- norms and activations -------------------------------------------------------------

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        """See `Ops.rms_norm`."""
        return self._rms_norm(x, None, None, weight, eps, offset)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0
    ) -> Tensor:
        """See `Ops.add_rms_norm`."""
        return self._rms_norm(x, residual, None, weight, eps, offset)

    def norm_add_rms_norm(
        self,
        x: Tensor,
        residual: Tensor,
        inner_weight: Tensor,
        weight: Tensor,
        eps: float,
        offset: float = 0.0,
    ) -> Tensor:
        """See `Ops.norm_add_rms_norm`."""
        return self._rms_norm(x, residual, inner_weight, weight, eps, offset)

    def _rms_norm(
        self,
        x: Tensor,
        residual: Tensor | None,
        inner_weight: Tensor | None,
        weight: Tensor,
        eps: float,
        offset: float,
    ) -> Tensor:
        hidden = x.shape[-1]
        check("x", x, self.dtype)
        check_shape("weight", weight, self.dtype, (hidden,))
        if residual is not None:
            check_shape("residual", residual, self.dtype, x.shape)
        if inner_weight is not None:
            check_shape("inner_weight", inner_weight, self.dtype, (hidden,))
        out = torch.empty_like(x)
        self._kernels.rms_norm(
            x.data_ptr(),
            address(residual),
            address(inner_weight),
            weight.data_ptr(),
            out.data_ptr(),
            x.numel() // hidden,
            hidden,
            eps,
            offset,
            self._code,
        )
        return out

    def gated_activation(self, gate_up: Tensor, kind: Activation) -> Tensor:
        """See `Ops.gated_activation`."""
        check("gate_up", gate_up, self.dtype)
        width = gate_up.shape[-1]
        if width % 2 != 0 or kind not in _ACTIVATIONS:
            raise ValueError(
                f"gate_up must have an even width and kind be one of {list(_ACTIVATIONS)}; "
                f"got {tuple(gate_up.shape)} and {kind!r}"
            )
        out = torch.empty((*gate_up.shape[:-1], width // 2), dtype=self.dtype)
        self._kernels.gated_activation(
            gate_up.data_ptr(),
            out.data_ptr(),
            gate_up.numel() // width,
            width // 2,
            _ACTIVATIONS[kind],
            self._code,
        )
        return out

    # ---- attention -------------------------------------------------------------------------

    def allocate_kv(self, num_blocks: int, block_size: int, spec: AttentionSpec) -> KVCache:
        """See `Ops.allocate_kv`.

        Raises:
            ValueError: The kernels do not take such blocks or heads.
        """
        return allocate(num_blocks, block_size, spec, self.dtype)

    def kv_bytes_per_block(self, block_size: int, spec: AttentionSpec) -> int:
        """See `Ops.kv_bytes_per_block`."""
        return bytes_per_block(block_size, spec, self.dtype)

    def rope_and_store(
        self,
        qkv: Tensor,
        spec: AttentionSpec,
        batch: AttentionBatch,
        cache: KVCache,
        cos: Tensor | None,
        sin: Tensor | None,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
    ) -> Tensor:
        """See `Ops.rope_and_store`."""
        native = cast("NativeKVCache", cache)
        rows = qkv.shape[0]
        width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        check_shape("qkv", qkv, self.dtype, (rows, width))
        check_int64("positions", batch.positions, rows)
        check_int64("slots", batch.slots, rows)
        max_positions = check_angles(cos, sin, spec.rotary_dim)
        for name, weight in (("q_norm", q_norm), ("k_norm", k_norm)):
            if weight is not None:
                check_shape(name, weight, self.dtype, (spec.head_dim,))
        q = torch.empty((rows, spec.num_heads, spec.head_dim), dtype=self.dtype)
        self._kernels.rope_and_store(
            qkv.data_ptr(),
            q.data_ptr(),
            native.keys.data_ptr(),
            native.values.data_ptr(),
            batch.positions.data_ptr(),
            batch.slots.data_ptr(),
            address(cos),
            address(sin),
            address(q_norm),
            address(k_norm),
            rows,
            native.num_blocks,
            max_positions,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            native.block_size,
            spec.rotary_dim,
            spec.norm_eps,
            spec.norm_offset,
            self._code,
        )
        return q

    def paged_attention(
        self,
        q: Tensor,
        spec: AttentionSpec,
        batch: AttentionBatch,
        cache: KVCache,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See `Ops.paged_attention`."""
        native = cast("NativeKVCache", cache)
        rows = q.shape[0]
        check_shape("q", q, self.dtype, (rows, spec.num_heads, spec.head_dim))
        check_int64("positions", batch.positions, rows)
        table, starts = batch.block_table, batch.query_starts
        if table.dtype is not torch.int32 or table.stride(-1) != 1:
            raise ValueError(f"block_table must be int32 with contiguous rows, got {table.dtype}")
        if starts.dtype is not torch.int32 or starts.shape != (table.shape[0] + 1,):
            raise ValueError(
                f"query_starts must be int32 [{table.shape[0] + 1}], got {starts.dtype} "
                f"{tuple(starts.shape)}"
            )
        if sinks is not None:
            sinks = sinks.to(torch.float32).contiguous()
        out = torch.empty_like(q)
        self._kernels.paged_attention(
            q.data_ptr(),
            out.data_ptr(),
            native.keys.data_ptr(),
            native.values.data_ptr(),
            batch.positions.data_ptr(),
            starts.data_ptr(),
            table.data_ptr(),
            address(sinks),
            table.shape[0],
            table.stride(0) if table.shape[0] > 1 else table.shape[1],
            native.num_blocks,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            native.block_size,
            spec.window or 0,
            spec.scale,
            spec.softcap or 0.0,
            self._code,
        )
        return out

    # ---- sampling --------------------------------------------------------------------------

    def penalize(self, logits: Tensor, batch: PenaltyBatch) -> None:
        """See `Ops.penalize`."""
        penalties.penalize(logits, batch)

    def ban(self, logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
        """See `Ops.ban`."""
        bitmask.ban(logits, rows, allowed)

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """See `Ops.sample`.

        Raises:
            ValueError: A row that samples has a NaN or no finite logit.
        """
        rows, vocabulary = check_logits(logits)
        tokens = torch.empty(rows, dtype=torch.int64)
        self._kernels.sample(
            logits.data_ptr(),
            0 if batch.all_greedy else batch.temperature.data_ptr(),
            batch.top_k.data_ptr(),
            batch.top_p.data_ptr(),
            batch.min_p.data_ptr(),
            batch.uniform.data_ptr(),
            tokens.data_ptr(),
            rows,
            vocabulary,
        )
        if not batch.all_greedy and rows and int(tokens.min()) < 0:
            raise ValueError(
                f"row {int(tokens.argmin())} has no finite logit: every token is forbidden, "
                "or one is NaN"
            )
        return tokens

    def top_logprobs(
        self, logits: Tensor, tokens: Tensor, k: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See `Ops.top_logprobs`.

        Raises:
            ValueError: k is negative or larger than the vocabulary.
            IndexError: A token is not in the vocabulary.
        """
        rows, vocabulary = check_logits(logits)
        check_int64("tokens", tokens, rows)
        if not 0 <= k <= vocabulary:
            raise ValueError(f"k must be between 0 and the vocabulary size {vocabulary}, not {k}")
        logprobs = torch.empty(rows)
        ranks = torch.empty(rows, dtype=torch.int64)
        ids = torch.empty((rows, k), dtype=torch.int64)
        best = torch.empty((rows, k))
        self._kernels.top_logprobs(
            logits.data_ptr(),
            tokens.data_ptr(),
            logprobs.data_ptr(),
            ranks.data_ptr(),
            ids.data_ptr(),
            best.data_ptr(),
            rows,
            vocabulary,
            k,
        )
        return logprobs, ranks, ids, best
