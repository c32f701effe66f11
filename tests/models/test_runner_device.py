"""Device, dtype, threads and KV memory as they are chosen while loading."""

import dataclasses
import threading

import pytest
import torch

from triolet.config import CacheConfig, DTypeName, EngineConfig, RunnerConfig
from triolet.errors import ConfigError
from triolet.runner import device, kv_tensors
from triolet_kernels.ops import AttentionSpec

CPU = torch.device("cpu")
SPEC = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=8, scale=1.0)


@pytest.mark.parametrize(
    ("name", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)]
)
def test_an_explicit_dtype_is_taken(name: DTypeName, dtype: torch.dtype) -> None:
    assert device.choose_dtype(name, CPU, RunnerConfig()) is dtype


def test_auto_is_bfloat16_exactly_where_native_kernels_compute_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for reason, dtype in ((None, torch.bfloat16), ("not built", torch.float32)):
        monkeypatch.setattr(device, "native_unavailable", lambda *_, reason=reason: reason)
        assert device.choose_dtype("auto", CPU, RunnerConfig()) is dtype
    monkeypatch.setattr(device, "native_unavailable", lambda *_: None)
    reference = RunnerConfig(kernels="reference")
    assert device.choose_dtype("auto", CPU, reference) is torch.float32


def test_threads_of_somebody_elses_process_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "usable_cores", lambda: 7)
    monkeypatch.setattr(device, "native_unavailable", lambda *_: "not built")
    in_thread = RunnerConfig(runner="thread")
    assert device.choose_threads(CPU, torch.float32, in_thread) == torch.get_num_threads()
    assert device.choose_threads(CPU, torch.float32, RunnerConfig(runner="process")) == 7
    assert device.choose_threads(CPU, torch.float32, RunnerConfig(threads=3)) == 3
    monkeypatch.setattr(device, "native_unavailable", lambda *_: None)
    assert device.choose_threads(CPU, torch.float32, in_thread) == 7


def test_torch_computes_on_the_runners_thread_alone_and_others_are_left_alone() -> None:
    class Native:
        name = "native"

    class Plain:
        name = "reference"

    before = torch.get_num_threads()
    counts: list[int] = []

    def run(ops: object) -> None:
        device.keep_torch_single_threaded(ops)  # type: ignore[arg-type]  # only its name matters
        counts.append(torch.get_num_threads())

    try:
        torch.set_num_threads(3)
        for task in (run, run, lambda _: counts.append(torch.get_num_threads())):
            ops = Native() if not counts else Plain()
            thread = threading.Thread(target=task, args=(ops,))
            thread.start()
            thread.join()
        assert counts == [1, 3, 3]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_kernels_that_are_not_there_are_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(runner=RunnerConfig(kernels="native"))
    with pytest.raises(ConfigError, match="native kernels were asked for") as caught:
        device.choose_ops(config, torch.device("meta"), torch.float32, 1)
    assert caught.value.param == "kernels"


@pytest.mark.parametrize("name", ["cuda:99", "tpu", "meta", "cpu:x"])
def test_devices_that_are_not_there_are_config_errors(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        device.choose_device(name)
    assert caught.value.param == "device"


def test_bytes_win_over_tokens_and_tokens_over_the_fraction() -> None:
    def blocks(**settings: object) -> int:
        cache = CacheConfig(block_size=16, **settings)  # type: ignore[arg-type]  # by name
        return kv_tensors.blocks_in_budget(cache, 3, block_bytes=100, free_bytes=10_000)

    assert blocks(kv_cache_memory_bytes=2_050, kv_cache_tokens=16) == 20
    assert blocks(kv_cache_tokens=33) == 9  # three blocks of sixteen, in three groups
    assert blocks(kv_cache_fraction=0.5) == 50
    with pytest.raises(ConfigError) as caught:
        blocks(kv_cache_tokens=1_000_000)
    assert caught.value.param == "kv_cache_tokens"


def test_layers_of_different_shapes_have_tensors_of_their_own() -> None:
    wide = dataclasses.replace(SPEC, head_dim=16)
    windowed = dataclasses.replace(SPEC, window=4)
    layout = kv_tensors.layout_of([windowed, wide, windowed], max_model_len=100)
    assert [group.window for group in layout.groups] == [None]
    assert [s.head_dim for s in kv_tensors.slot_specs(layout, [windowed, wide, windowed])] == [
        8,
        16,
        8,
    ]
    equal = kv_tensors.layout_of([windowed, SPEC, windowed], max_model_len=100)
    assert [group.window for group in equal.groups] == [None, 4, 4]
    assert len(kv_tensors.slot_specs(equal, [windowed, SPEC, windowed])) == 1
