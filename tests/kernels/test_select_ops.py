"""Which implementation runs, and what is said when it cannot."""

import importlib.util
import subprocess
import sys

import pytest
import torch

from triolet_kernels import Kernels, KernelsUnavailable, select_ops
from triolet_kernels.reference.reference_ops import ReferenceOps

CPU = torch.device("cpu")


def test_import_is_light() -> None:
    code = "import sys, triolet_kernels; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reference_is_chosen_by_name() -> None:
    ops = select_ops(CPU, torch.float32, kernels="reference", batch_invariant=True)
    assert isinstance(ops, ReferenceOps)
    assert ops.batch_invariant
    assert (ops.device, ops.dtype) == (CPU, torch.float32)


def test_auto_falls_back_where_there_are_no_native_kernels() -> None:
    # no native kernels compute in float16
    assert select_ops(CPU, torch.float16).name == "reference"


def test_native_without_native_kernels_says_why_and_what_to_do() -> None:
    with pytest.raises(KernelsUnavailable, match=r"but .*; use kernels='auto' or 'reference'"):
        select_ops(CPU, torch.float16, kernels="native")


def test_build_without_native_kernels_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(KernelsUnavailable, match="but the native CPU kernels were not built"):
        select_ops(CPU, torch.float32, kernels="native")
    assert select_ops(CPU, torch.float32).name == "reference"


def test_threads_of_the_reference_are_those_of_torch() -> None:
    select_ops(CPU, torch.float32, kernels="reference", threads=2)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [({"kernels": "fast"}, "not 'fast'"), ({"threads": 0}, "at least 1, not 0")],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_ops(CPU, torch.float32, **options)  # type: ignore[arg-type]  # the point


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_quantization_is_never_dropped_in_silence(kernels: Kernels) -> None:
    with pytest.raises(KernelsUnavailable, match="'w8a8' needs native kernels"):
        select_ops(CPU, torch.float16, kernels=kernels, quantization="w8a8")
