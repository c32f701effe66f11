"""Which launch parameters a kernel gets."""

import json

import pytest

from triolet_kernels.triton import launch_table
from triolet_kernels.triton.launch_table import Launch, LaunchKey, lookup

pytest.importorskip("triton")
KEY = LaunchKey("paged_decode", head_dim=128, group=4, block_size=16, capability=(9, 0))


def test_a_measured_entry_wins_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "defaults": launch_table.load_table("paged_decode")["defaults"],
        "tuned": [
            {
                "head_dim": 128, "group": 4, "block_size": 16, "capability": "9.0",
                "rows": 16, "tile": 128, "num_warps": 2, "num_stages": 4,
            }
        ],
    }  # fmt: skip
    monkeypatch.setattr(launch_table, "load_table", lambda _: table)
    assert lookup(KEY) == Launch(16, 128, 2, 4)
    other = LaunchKey("paged_decode", 128, 8, 16, (9, 0))
    assert lookup(other) != Launch(16, 128, 2, 4)


@pytest.mark.parametrize("op", ["paged_decode", "paged_prefill"])
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 1)])
def test_every_chip_and_head_dimension_has_a_default(
    op: launch_table.AttentionOp, capability: tuple[int, int]
) -> None:
    for head_dim in (8, 64, 80, 96, 128, 192, 256, 512):
        launch = lookup(LaunchKey(op, head_dim, 4, 16, capability))
        assert launch.rows >= 16
        assert launch.tile >= 16


def test_chips_that_are_not_known_get_the_most_modest_defaults() -> None:
    unknown = LaunchKey("paged_prefill", 128, 4, 16, (13, 0))
    assert lookup(unknown) == lookup(LaunchKey("paged_prefill", 128, 4, 16, (12, 0)))


def test_a_head_dimension_beyond_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="head dimension 1024"):
        lookup(LaunchKey("paged_decode", 1024, 4, 16, (9, 0)))


def test_float32_takes_smaller_tiles() -> None:
    half, whole = lookup(KEY), lookup(KEY, itemsize=4)
    assert whole.tile * 4 <= half.tile * 2
    assert whole.num_stages == 1


@pytest.mark.parametrize(("width", "warps"), [(1, 1), (256, 1), (257, 2), (4096, 16), (32768, 16)])
def test_warps_grow_with_the_row(width: int, warps: int) -> None:
    assert launch_table.warps_for_row(width) == warps


def test_the_tables_are_valid() -> None:
    for op in ("paged_decode", "paged_prefill"):
        table = launch_table.load_table(op)
        assert set(table) == {"defaults", "tuned"}
        for entry in table["defaults"] + table["tuned"]:
            for name in ("rows", "tile", "num_warps"):
                assert entry[name] & (entry[name] - 1) == 0, (op, entry)
        json.dumps(table)
