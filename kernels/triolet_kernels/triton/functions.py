"""Functions that several kernels call. Elementwise ones take and return float32.

There is no libdevice here: the interpreter has none, and exp2 is one instruction anyway.
"""

from __future__ import annotations

import triton.language as tl

from triolet_kernels.triton.jit import Value, jit

LOG2E = tl.constexpr(1.4426950408889634)


@jit
def dot(a: Value, b: Value, acc: Value, UPCAST: tl.constexpr) -> Value:
    """acc + a @ b in float32; a [M, K], b [K, N], acc float32 [M, N].

    UPCAST multiplies in float32: the interpreter multiplies the bits of bfloat16 as integers.
    "ieee" concerns float32 alone, which tensor cores would cut to tf32.
    """
    if UPCAST:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@jit
def exp(x: Value) -> Value:
    """e^x."""
    return tl.exp2(x * LOG2E)


@jit
def tanh(x: Value) -> Value:
    """1 - 2 / (e^2x + 1): right at both ends too, where e^2x is 0 or infinite."""
    return 1.0 - 2.0 / (tl.exp2(x * (2.0 * LOG2E)) + 1.0)


@jit
def soft_cap(x: Value, cap: Value) -> Value:
    """cap * tanh(x / cap)."""
    return cap * tanh(x / cap)
