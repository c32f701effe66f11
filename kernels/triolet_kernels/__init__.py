"""Operations of the model runner, dispatched by device: Triton on CUDA, native code on CPU, torch as the reference.

`select_ops` is the one place that decides which implementation runs. Importing this package
loads neither torch nor any extension; the implementation is imported when it is selected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

    from triolet_kernels.ops import Ops

Kernels = Literal["auto", "native", "reference"]
Quantization = Literal["w8a8", "w4a8"]


class KernelsUnavailable(RuntimeError):
    """The kernels that were asked for do not exist here; the message says why and what to do."""


def select_ops(
    device: torch.device,
    dtype: torch.dtype,
    *,
    kernels: Kernels = "auto",
    batch_invariant: bool = False,
    threads: int = 1,
    quantization: Quantization | None = None,
) -> Ops:
    """Choose the implementation of the operations.

    Args:
        device: Where tensors live.
        dtype: Of weights and activations: float32, bfloat16 or float16.
        kernels: "native" takes compiled kernels or fails, "reference" takes plain torch,
            "auto" takes native ones if there are any for this device and dtype.
        batch_invariant: No row of a result depends, in any bit, on the rest of its batch.
            Native CPU kernels always are; others pay for it with fixed-size calls.
        threads: Compute threads. The reference sets torch's count, which is one per process.
        quantization: How weights are packed; native CPU kernels only.

    Raises:
        KernelsUnavailable: `kernels` is "native", or `quantization` is set, and there are no
            native kernels for this device and dtype.
        ValueError: `kernels` has no such value, or `threads` is below 1.
    """
    if kernels not in ("auto", "native", "reference"):
        raise ValueError(f"kernels must be 'auto', 'native' or 'reference', not {kernels!r}")
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    if kernels != "reference":
        reason = native_unavailable(device, dtype)
        if reason is None and device.type == "cuda":
            from triolet_kernels.cuda import triton_ops

            if quantization is not None:
                raise KernelsUnavailable(
                    f"quantization {quantization!r} is computed by the native CPU kernels only; "
                    "leave quantization unset, or use device='cpu'"
                )
            return triton_ops(device, dtype, batch_invariant=batch_invariant)
        if reason is None:
            from triolet_kernels.native import native_ops

            return native_ops(device, dtype, threads=threads, quantization=quantization)
        if kernels == "native":
            raise KernelsUnavailable(
                f"native kernels were asked for, but {reason}; use kernels='auto' or 'reference'"
            )
    if quantization is not None:
        raise KernelsUnavailable(
            f"quantization {quantization!r} needs native kernels, and the reference was "
            f"{'asked for' if kernels == 'reference' else 'all there is'}; leave quantization unset"
        )
    from triolet_kernels.reference.reference_ops import ReferenceOps

    return ReferenceOps(device, dtype, batch_invariant=batch_invariant, threads=threads)


def native_unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why there are no native kernels for `device` and `dtype`; None if there are.

    Native means Triton on CUDA devices and the C++ extension on CPUs.
    """
    if device.type == "cuda":
        from triolet_kernels import cuda

        return cuda.unavailable(device, dtype)
    from triolet_kernels.native import unavailable

    return unavailable(device, dtype)
