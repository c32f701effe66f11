"""`triton.jit` with a type: Triton itself has none that checkers accept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import triton
import triton.language as tl

if TYPE_CHECKING:
    Value: TypeAlias = Any
    """A pointer, a number or a tile in device code: what Triton makes of it no checker follows."""
    i32: TypeAlias = Any  # noqa: PYI042  # Triton knows it by this name
    """A parameter that Triton takes as int32 (by this name), whatever number comes: without it,
    1 would be compiled in as a constant."""
    fp32: TypeAlias = Any  # noqa: PYI042  # Triton knows it by this name
    """The same, float32."""
else:  # Triton looks annotations up, and accepts what is its own
    Value, i32, fp32 = tl.tensor, tl.int32, tl.float32


class Kernel(Protocol):
    """A function that Triton compiles.

    Attributes:
        arg_names: Names of its parameters, in order.
    """

    arg_names: list[str]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        """What launches it on a grid of programs."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # device code
        """A call from another kernel."""
        ...


def jit(function: Callable[..., object]) -> Kernel:
    """Make a kernel, or a function that kernels call."""
    return cast("Kernel", triton.jit(function))
