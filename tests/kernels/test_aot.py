"""Every shipped kernel compiles for every chip, fits it, and is no worse than it was.

No GPU is needed: ptxas and cuobjdump come with Triton. What changes on purpose is written to
aot_golden.json by `python -m support.aot --write` in tests/, so that a review shows it.
"""

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("triton")

import triton

from support import aot
from triolet_kernels.triton import launch_table

REGISTERS_MAX = 255
PROCESSES = max(1, min(2, os.cpu_count() or 1))
VARIANTS = aot.shipped_variants()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, aot.Compiled]:
    return aot.compile_all(VARIANTS, PROCESSES, tmp_path_factory.mktemp("triton-cache"))


@pytest.mark.slow
def test_no_variant_spills(compiled: dict[str, aot.Compiled]) -> None:
    assert {name: r for name, r in compiled.items() if r.spills} == {}


@pytest.mark.slow
def test_every_variant_fits_its_chip(compiled: dict[str, aot.Compiled]) -> None:
    for variant in VARIANTS:
        result = compiled[variant.name]
        limit = launch_table.SHARED_MEMORY_BYTES[variant.chip] - aot.SMEM_RESERVED
        assert result.shared <= limit, (variant.name, result)
        assert result.registers <= REGISTERS_MAX, (variant.name, result)
        # a multiprocessor has 65536 registers: a program that needs more cannot be launched
        assert result.registers * 32 * variant.num_warps <= 1 << 16, (variant.name, result)


@pytest.mark.slow
def test_attention_multiplies_on_tensor_cores(compiled: dict[str, aot.Compiled]) -> None:
    """Tiles of 64 rows and more take the instructions that only Hopper and Blackwell have."""
    for variant in VARIANTS:
        if variant.kernel not in ("_split", "_prefill"):
            continue
        rows = variant.constants["ROWS" if variant.kernel == "_prefill" else "GP"]
        newest = {(9, 0): "HGMMA", (10, 0): "UTCHMMA"}.get(variant.chip, "HMMA")
        wanted = newest if rows >= 64 else "HMMA"
        assert compiled[variant.name].tensor_core == wanted, variant.name


@pytest.mark.slow
def test_nothing_got_worse(compiled: dict[str, aot.Compiled]) -> None:
    """Against the golden table, where the same version of Triton compiled it."""
    golden = json.loads(aot.GOLDEN.read_text())
    assert sorted(golden["variants"]) == sorted(compiled), "write the table anew"
    if golden["triton"] != triton.__version__:
        pytest.skip(f"the table is of triton {golden['triton']}, this is {triton.__version__}")
    for name, result in compiled.items():
        before = aot.Compiled(**golden["variants"][name])
        assert result.registers <= before.registers + 8, (name, before, result)
        assert result.shared <= before.shared, (name, before, result)


def test_golden_table_has_the_shipped_variants() -> None:
    golden = json.loads(aot.GOLDEN.read_text())
    names = [variant.name for variant in VARIANTS]
    assert len(set(names)) == len(names), "two variants of one name"
    assert sorted(golden["variants"]) == sorted(names)


def test_every_default_of_the_launch_table_is_compiled() -> None:
    launched = {
        (v.chip, v.num_warps, v.num_stages, v.constants["TILE"], v.constants["D"])
        for v in VARIANTS
        if v.kernel in ("_split", "_prefill")
    }
    for op in ("paged_decode", "paged_prefill"):
        for entry in launch_table.load_table(op)["defaults"]:
            major, minor = entry["chip"].split(".")
            chip = (int(major), int(minor))
            row = (entry["num_warps"], entry["num_stages"], entry["tile"], entry["head_dim_max"])
            assert (chip, *row) in launched, entry


def test_kernels_are_where_the_variants_say() -> None:
    folder = Path(launch_table.__file__).parent
    for variant in VARIANTS:
        assert f"def {variant.kernel}(" in (folder / f"{variant.module}.py").read_text()
