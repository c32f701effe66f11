"""The thread pool and the life of `NativeOps`."""

import gc
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from support.native_kernels import CPU, isas, native_ops
from triolet_kernels import native, native_unavailable, select_ops

ISAS = isas()


def thread_count() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="counts threads in /proc"
)


def test_extension_is_built_where_there_is_a_compiler() -> None:
    """The install falls back to plain torch in silence; this is where it is heard."""
    if shutil.which("c++") or shutil.which("g++"):
        reason = native_unavailable(CPU, torch.bfloat16)
        assert reason is None or "AVX2" in reason


def test_auto_selects_the_native_kernels() -> None:
    ops = select_ops(CPU, torch.bfloat16, threads=1)
    assert ops.name == "native"
    assert ops.batch_invariant


def test_unsupported_devices_and_dtypes_are_explained() -> None:
    assert "float16" in str(native.unavailable(CPU, torch.float16))
    assert "cuda" in str(native.unavailable(torch.device("cuda"), torch.bfloat16))
    with pytest.raises(ValueError, match="float16"):
        native.native_ops(CPU, torch.float16, threads=1)
    with pytest.raises(ValueError, match=r"isa 'mmx' does not run here; one of .*portable"):
        native.NativeOps(torch.float32, isa="mmx")
    with pytest.raises(ValueError, match="num_threads"):
        native.NativeOps(torch.float32, threads=0)
    with pytest.raises(ValueError, match="quantization"):
        native.NativeOps(torch.float32, quantization="w2")  # type: ignore[arg-type]


@needs_proc
def test_close_ends_the_threads_and_computing_goes_on() -> None:
    before = thread_count()
    ops = native.NativeOps(torch.float32, threads=3)
    weight, x = torch.randn(300, 64), torch.randn(5, 64)
    linear = ops.linear(weight)
    result = linear(x)
    assert thread_count() == before + 2
    ops.close()
    ops.close()
    assert thread_count() == before
    assert torch.equal(linear(x), result)


@needs_proc
def test_dropping_the_last_reference_ends_the_threads() -> None:
    before = thread_count()
    ops = native.NativeOps(torch.float32, threads=2)
    assert thread_count() == before + 1
    del ops
    gc.collect()
    assert thread_count() == before


def test_two_threads_may_share_one_pool() -> None:
    ops = native_ops(torch.float32, ISAS[0], 2)
    linear = ops.linear(torch.randn(500, 128))
    x = torch.randn(9, 128)
    expected = linear(x)
    ready = threading.Barrier(2)

    def work() -> bool:
        ready.wait()
        return all(torch.equal(linear(x), expected) for _ in range(200))

    with ThreadPoolExecutor(2) as executor:
        assert all(future.result() for future in [executor.submit(work) for _ in range(2)])


def test_tiles_are_handed_out_once_each_however_many_there_are() -> None:
    """Thousands of tiny operations: a lost or doubled tile would hang or corrupt one."""
    ops = native.NativeOps(torch.float32, threads=4)
    ops._kernels.empty_operations(3, 3000)
    ops._kernels.empty_operations(100, 300)
    ops.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_computes_alone() -> None:
    ops = native_ops(torch.float32, ISAS[0], 3)
    linear = ops.linear(torch.randn(500, 128))
    x = torch.randn(9, 128)
    expected = linear(x)
    child = os.fork()
    if child == 0:
        same = torch.equal(linear(x), expected)
        ops.close()
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert torch.equal(linear(x), expected)
