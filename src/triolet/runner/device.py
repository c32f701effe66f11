"""Which device, dtype, threads and kernels: decided once, while loading."""

from __future__ import annotations

import threading

import torch

from triolet.config import DTypeName, EngineConfig, RunnerConfig
from triolet.errors import ConfigError
from triolet.runner.memory import usable_cores
from triolet_kernels import KernelsUnavailable, native_unavailable, select_ops
from triolet_kernels.ops import Ops

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str) -> torch.device:
    """The device of a setting: "auto" takes a CUDA device if there is one.

    Raises:
        ConfigError: There is no such device.
    """
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {name!r}", param="device"
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"triolet runs on cpu and cuda, not on {name!r}", param="device")
    if device.type == "cuda":
        index = device.index or 0
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise ConfigError(
                f"device {name!r}: torch {torch.__version__} finds no such device (it sees "
                f"{torch.cuda.device_count()}); use device='cpu' or install a CUDA build of torch",
                param="device",
            )
        return torch.device("cuda", index)
    return device


def choose_dtype(name: DTypeName, device: torch.device, runner: RunnerConfig) -> torch.dtype:
    """The dtype of a setting: "auto" is bfloat16 where kernels compute in it, else float32.

    Plain torch on CPU is slower in bfloat16 than in float32, so there it takes the native
    kernels, which say themselves what they can do on this machine.
    """
    if name != "auto":
        return _DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    has_native = runner.kernels != "reference" and not native_unavailable(device, torch.bfloat16)
    return torch.bfloat16 if has_native else torch.float32


def choose_threads(device: torch.device, dtype: torch.dtype, runner: RunnerConfig) -> int:
    """Compute threads.

    Native kernels have a pool of their own. Plain torch has one count for the whole process:
    in somebody else's process it is left alone unless `threads` says otherwise.
    """
    if runner.threads is not None:
        return runner.threads
    is_native = runner.kernels != "reference" and not native_unavailable(device, dtype)
    if is_native or runner.runner == "process":
        return usable_cores()
    return torch.get_num_threads()


def choose_ops(config: EngineConfig, device: torch.device, dtype: torch.dtype, threads: int) -> Ops:
    """The kernels.

    Raises:
        ConfigError: `kernels` asks for what is not there.
    """
    try:
        return select_ops(
            device,
            dtype,
            kernels=config.runner.kernels,
            batch_invariant=config.runner.batch_invariant,
            threads=threads,
            quantization=config.model.quantization,
        )
    except (KernelsUnavailable, ValueError) as error:
        param = "kernels" if config.model.quantization is None else "quantization"
        raise ConfigError(str(error), param=param) from error


def keep_torch_single_threaded(ops: Ops) -> None:
    """Let torch's own operations use the calling thread alone, beside kernels with a pool.

    Threads of OpenMP spin for a while after each operation, on the cores of the kernels' pool:
    that made loading four times as long on two cores, and ten times when they were shared.
    OpenMP keeps the number per thread, so the rest of the process is left as it is: torch's
    number for threads to come is put back by a thread that ends at once.

    Args:
        ops: Those that the calling thread is going to compute with.
    """
    if ops.name != "native":
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    restorer = threading.Thread(target=torch.set_num_threads, args=(before,))
    restorer.start()
    restorer.join()
