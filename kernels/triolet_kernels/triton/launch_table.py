"""Launch parameters of the attention kernels: a table, no autotuner.

`tuned/<op>.json` has `defaults` per chip and head dimension, chosen by compiling them ahead of
time (no spills, shared memory within the chip's), and `tuned` entries, measured on a device by
`tests/bench/gpu_check.py`, which win. The key of an entry is all that the kernel's speed depends
on: operation, head dimension, group, block size, compute capability.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Iterable
from typing import Any, Literal

AttentionOp = Literal["paged_decode", "paged_prefill"]
Capability = tuple[int, int]

CHIPS: tuple[Capability, ...] = ((8, 0), (9, 0), (10, 0), (12, 0))
"""Capabilities with defaults of their own."""

SHARED_MEMORY_BYTES: dict[Capability, int] = {
    (8, 0): 163 << 10,
    (9, 0): 227 << 10,
    (10, 0): 227 << 10,
    (12, 0): 99 << 10,
}
"""What one program may take (CUDA C++ programming guide, table of compute capabilities)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """How an attention kernel is compiled and launched.

    Attributes:
        rows: Rows of the query tile (query tokens times query heads of one KV head).
        tile: Tokens of context per iteration.
        num_warps: Warps of a program.
        num_stages: Iterations whose loads are in flight.
    """

    rows: int
    tile: int
    num_warps: int
    num_stages: int


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchKey:
    """What an attention launch depends on.

    Attributes:
        op: The kernel.
        head_dim: D.
        group: Query heads per KV head.
        block_size: Tokens per KV block.
        capability: Of the device.
    """

    op: AttentionOp
    head_dim: int
    group: int
    block_size: int
    capability: Capability


def lookup(key: LaunchKey, itemsize: int = 2) -> Launch:
    """The launch of a key: measured, else the default of its chip and head dimension.

    Args:
        key: What is launched.
        itemsize: Bytes of an element. 4 halves tile and stages, as a tile has twice the bytes.

    Raises:
        ValueError: The head dimension is larger than any default.
    """
    table = load_table(key.op)
    launch = _tuned(table["tuned"], key) or _default(table["defaults"], key)
    if itemsize > 2:
        return dataclasses.replace(
            launch, rows=max(16, launch.rows // 2), tile=max(16, launch.tile // 2), num_stages=1
        )
    return launch


def chip_of(capability: Capability) -> Capability:
    """The capability whose defaults serve another one.

    8.6, 8.7, 8.9 and 12.x have the same tensor core instructions and 99 KiB of shared memory or
    more; newer chips than we know get those too, the most modest ones.
    """
    if capability in CHIPS:
        return capability
    if capability[0] in (10, 11):
        return (10, 0)
    return (12, 0)


def warps_for_row(width: int) -> int:
    """Warps for a program that holds one row: 8 elements a thread where 16 warps are enough."""
    warps = 1
    while warps < 16 and warps * 32 * 8 < width:
        warps *= 2
    return warps


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is at least `number`, which is positive."""
    return 1 << (number - 1).bit_length()


def cdiv(dividend: int, divisor: int) -> int:
    """Quotient rounded up."""
    return -(-dividend // divisor)


@functools.cache
def load_table(op: AttentionOp) -> dict[str, list[dict[str, Any]]]:
    """The table of one operation, as it is in its file."""
    text = importlib.resources.files("triolet_kernels").joinpath(f"tuned/{op}.json").read_text()
    table: dict[str, list[dict[str, Any]]] = json.loads(text)
    return table


def format_capability(capability: Capability) -> str:
    """As tables write it: "9.0"."""
    return f"{capability[0]}.{capability[1]}"


def _tuned(entries: Iterable[dict[str, Any]], key: LaunchKey) -> Launch | None:
    wanted = (key.head_dim, key.group, key.block_size, format_capability(key.capability))
    for entry in entries:
        found = (entry["head_dim"], entry["group"], entry["block_size"], entry["capability"])
        if found == wanted:
            return _launch(entry)
    return None


def _default(entries: Iterable[dict[str, Any]], key: LaunchKey) -> Launch:
    chip = format_capability(chip_of(key.capability))
    fitting = [e for e in entries if e["chip"] == chip and e["head_dim_max"] >= key.head_dim]
    if not fitting:
        raise ValueError(f"{key.op}: no launch parameters for head dimension {key.head_dim}")
    return _launch(min(fitting, key=lambda e: int(e["head_dim_max"])))


def _launch(entry: dict[str, Any]) -> Launch:
    return Launch(entry["rows"], entry["tile"], entry["num_warps"], entry["num_stages"])
