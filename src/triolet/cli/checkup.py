"""The checks of `triolet doctor`: each looks at one thing and says what it found."""

from __future__ import annotations

import enum
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from triolet.config import ServerConfig, cache_directory
from triolet.errors import ConfigError
from triolet.model_source.demo import DEMOS, demo_parts
from triolet.model_source.gguf import stored_name
from triolet.runner.memory import available_memory_bytes, usable_cores

GIB = 1 << 30
CPU_FEATURES = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16")
"""Names in /proc/cpuinfo of what the native kernels have code for."""
DEMO_BYTES = 400 << 20
"""Room for the demo model: its weights in bf16 and the copy while they are written."""
PROBE_TIMEOUT_S = 120
"""The first import of torch from a cold disk takes most of a minute."""

PACKAGES = ("trio", "hypercorn", "quart", "quart-trio", "transformers", "tokenizers", "llguidance")

TORCH_PROBE = """
import json, torch
from triolet_kernels import native_unavailable
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__,
    "cuda_build": torch.version.cuda,
    "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    "native": {
        dtype: native_unavailable(torch.device("cuda" if cuda else "cpu"), getattr(torch, dtype))
        for dtype in ("float32", "bfloat16")
    },
}))
"""
"""Runs in a process of its own: a broken torch must not take the doctor down."""


class State(enum.StrEnum):
    """How serious a finding is."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@attrs.frozen
class Finding:
    """What one check found.

    Attributes:
        name: What was looked at.
        text: What is there.
        state: How serious it is.
        advice: What to do about it.
    """

    name: str
    text: str
    state: State = State.GOOD
    advice: str = ""


def check_versions() -> list[Finding]:
    """Python, triolet, and the packages that matter most."""
    python = Finding("python", f"{platform.python_version()} on {platform.platform()}")
    findings = [python, Finding("triolet", importlib.metadata.version("triolet"))]
    versions: list[str] = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            advice = "install triolet again with its dependencies: pip install triolet"
            findings.append(Finding(package, "is not installed", State.BAD, advice))
    return [*findings, Finding("packages", ", ".join(versions))]


def check_machine() -> list[Finding]:
    """CPU, cores and memory, as affinity and cgroup allow."""
    cores, memory = usable_cores(), available_memory_bytes() / GIB
    model, flags = _cpu()
    present = [name for name in CPU_FEATURES if name in flags]
    return [
        Finding("cpu", f"{model}; {', '.join(present) or 'no vector features known'}"),
        Finding("cores", f"{cores} of {os.cpu_count()} may be used"),
        Finding(
            "memory",
            f"{memory:.1f} GiB available",
            State.GOOD if memory >= 1 else State.WARNING,
            "" if memory >= 1 else "the demo model needs about 1 GiB",
        ),
    ]


def _cpu() -> tuple[str, frozenset[str]]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine(), frozenset()
    fields = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    flags = fields.get("flags") or fields.get("Features") or ""
    return fields.get("model name", platform.machine()).strip(), frozenset(flags.split())


def check_torch() -> list[Finding]:
    """Which torch is installed, whether it fits the machine, and the kernels for it."""
    try:
        probe = subprocess.run(  # noqa: S603 - our own interpreter, a constant program
            [sys.executable, "-c", TORCH_PROBE],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [Finding("torch", f"does not load within {PROBE_TIMEOUT_S} s", State.BAD)]
    if probe.returncode:
        last = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        return [Finding("torch", f"cannot be loaded: {last}", State.BAD, "install torch again")]
    found: dict[str, Any] = json.loads(probe.stdout)
    return [torch_finding(found, has_nvidia_device=_has_nvidia_device()), kernels_finding(found)]


def torch_finding(found: Mapping[str, Any], *, has_nvidia_device: bool) -> Finding:
    """Whether the build of torch fits the machine."""
    if found["devices"]:
        text = (
            f"{found['version']}, CUDA {found['cuda_build']} build; {', '.join(found['devices'])}"
        )
        return Finding("torch", text)
    if found["cuda_build"]:
        text = f"{found['version']}, CUDA {found['cuda_build']} build, but it finds no GPU"
        if has_nvidia_device:
            advice = "there is an NVIDIA device: its driver may be too old for this build"
        else:
            advice = "it works on the CPU, and a CPU build is gigabytes smaller: see TORCH_INDEX"
        return Finding("torch", text, State.WARNING, advice)
    text = f"{found['version']}, CPU build"
    if has_nvidia_device:
        advice = "there is an NVIDIA device: a CUDA build would use it; see TORCH_INDEX in Makefile"
        return Finding("torch", text, State.WARNING, advice)
    return Finding("torch", text)


def kernels_finding(found: Mapping[str, Any]) -> Finding:
    """Which kernels run on the device that "auto" takes."""
    native = [dtype for dtype, reason in found["native"].items() if reason is None]
    if native:
        return Finding("kernels", f"native for {', '.join(native)}; reference for the rest")
    reason = next(iter(found["native"].values()))
    return Finding("kernels", f"reference only: {reason}", State.WARNING, "answers will be slow")


def _has_nvidia_device() -> bool:
    return Path("/dev/nvidiactl").exists()


def check_cache() -> list[Finding]:
    """Whether converted models can be kept."""
    directory = cache_directory()
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        advice = "set TRIOLET_CACHE to a directory that can be written"
        return [Finding("cache", f"{directory} cannot be written", State.BAD, advice)]
    free = shutil.disk_usage(existing).free
    finding = Finding("cache", f"{directory}, {free / GIB:.1f} GiB free")
    if free < DEMO_BYTES:
        advice = "the demo model needs 0.4 GiB; set TRIOLET_CACHE to a directory with room"
        return [attrs.evolve(finding, state=State.WARNING, advice=advice)]
    return [finding]


def check_demo() -> list[Finding]:
    """Whether the demo model is there, and converted already."""
    demo = DEMOS["demo"]
    directory = cache_directory() / stored_name(demo.stem, demo.sha256)
    if directory.is_dir():
        return [Finding("demo model", f"{demo.stem}, ready in {directory}")]
    try:
        demo_parts("demo")
    except ConfigError:
        advice = "run `triolet pull demo`, or serve another model"
        return [Finding("demo model", "is not installed", State.WARNING, advice)]
    return [Finding("demo model", f"{demo.stem} is installed; its first start converts it (20 s)")]


def check_port() -> list[Finding]:
    """Whether the default port is free."""
    server = ServerConfig()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((server.host, server.port))
        except OSError as error:
            text = f"{server.host}:{server.port} is not free: {error.strerror}"
            return [Finding("port", text, State.WARNING, "give `triolet serve` another --port")]
    return [Finding("port", f"{server.host}:{server.port} is free")]


CHECKS: tuple[Callable[[], list[Finding]], ...] = (
    check_versions,
    check_machine,
    check_torch,
    check_cache,
    check_demo,
    check_port,
)
