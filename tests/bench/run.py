"""triolet beside every peer that is installed, on the same requests: `make bench`.

    python tests/bench/run.py [--model demo] [--repeat 5] [--only 1,16] [--quick] [--write]

All servers run at once and are asked in turn, scenario by scenario and repetition by
repetition, so that what else happens on the machine hits them alike. Every repetition has
prompts of its own, the same for all. A figure is the median; it is marked when other processes
used more than 0.1 cores in any of its repetitions, or when tokens were missing. Everything that
was measured goes to build/bench/results.jsonl; --write puts the tables into
docs/explanation/performance.md, between its markers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import trio

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench import ceilings  # noqa: E402  needs the line above
from bench.peers import PEERS, BenchModel, Peer, Running, free_port, running  # noqa: E402
from triolet.cli.bench.machine import tree_rss_bytes  # noqa: E402
from triolet.cli.bench.measure import measure_server  # noqa: E402
from triolet.cli.bench.records import medians  # noqa: E402
from triolet.cli.bench.server_load import ServerLoad  # noqa: E402
from triolet.cli.bench.workload import WorkloadConfig  # noqa: E402
from triolet.config import ModelConfig  # noqa: E402
from triolet.model_source.resolve import resolve  # noqa: E402

PAGE = ROOT / "docs/explanation/performance.md"
RESULTS = ROOT / "build/bench/results.jsonl"
BEGIN, END = "<!-- make bench: begin -->", "<!-- make bench: end -->"
QUICK_DIVISOR = 4


@attrs.frozen(kw_only=True)
class Scenario:
    """One load.

    Attributes:
        name: For `--only`.
        title: In tables.
        streams: Requests open at once.
        rounds: Requests per stream.
        input_len: Tokens of a prompt.
        output_len: Tokens of an answer.
        shared_prefix_len: Of all prompts of a repetition.
        top_p: 1 with temperature 0: greedy.
        temperature: Of sampling.
        figure: What the table shows.
    """

    name: str
    title: str
    streams: int
    rounds: int = 1
    input_len: int = 128
    output_len: int = 64
    shared_prefix_len: int = 0
    top_p: float = 1.0
    temperature: float = 0.0
    figure: str = "output_tokens_per_s"

    def workload(self, repetition: int, divisor: int) -> WorkloadConfig:
        """The requests of one repetition; `divisor` shortens the answers."""
        return WorkloadConfig(
            num_prompts=self.streams * self.rounds,
            input_len=self.input_len,
            output_len=max(4, self.output_len // divisor),
            shared_prefix_len=self.shared_prefix_len,
            temperature=self.temperature,
            top_p=self.top_p,
            bench_seed=repetition,
            repeat=1,
        )


SCENARIOS = (
    Scenario(name="1", title="1 stream, 128 in, 128 out", streams=1, rounds=2, output_len=128),
    Scenario(name="16", title="16 streams, 128 in, 64 out", streams=16, rounds=2),
    Scenario(name="64", title="64 streams, 128 in, 128 out", streams=64, output_len=128),
    Scenario(
        name="prefill",
        title="8 streams, 1024 in, 32 out, all tokens",
        streams=8,
        input_len=1024,
        output_len=32,
        figure="total_tokens_per_s",
    ),
    Scenario(
        name="top_p",
        title="32 streams, top_p 0.9, temperature 0.8",
        streams=32,
        top_p=0.9,
        temperature=0.8,
    ),
    Scenario(
        name="prefix",
        title="64 requests with 512 tokens in common, TTFT in ms",
        streams=8,
        rounds=8,
        input_len=544,
        output_len=16,
        shared_prefix_len=512,
        figure="ttft_ms_p50",
    ),
)


@attrs.frozen
class Cell:
    """One server under one load: the figures of its repetitions."""

    scenario: Scenario
    peer: Peer
    rows: list[dict[str, Any]]

    @property
    def figures(self) -> dict[str, Any]:
        return medians(self.rows)

    @property
    def text(self) -> str:
        """The median, its spread, and what is wrong with it."""
        column = sorted(float(row[self.scenario.figure]) for row in self.rows)
        figures = self.figures
        marks = "" if figures.get("clean") else "*"
        marks += "!" if figures["missing_tokens"] or figures["failed"] else ""
        middle = f"{figures[self.scenario.figure]:.0f}{marks}"
        return middle if len(column) == 1 else f"{middle} ({column[0]:.0f}-{column[-1]:.0f})"


def measure(
    servers: Sequence[Running], scenarios: Sequence[Scenario], model: str, repeat: int, divisor: int
) -> list[Cell]:
    """Ask every server in turn; the one that begins changes with each repetition."""
    cells = {(s.name, r.peer.name): Cell(s, r.peer, []) for s in scenarios for r in servers}
    for repetition in range(repeat):
        for scenario in scenarios:
            first = repetition % len(servers)
            for server in (*servers[first:], *servers[:first]):
                figures = ask(server, scenario, model, repetition, divisor)
                cells[scenario.name, server.peer.name].rows.append(figures)
                note(server, scenario, repetition, figures)
    return list(cells.values())


def ask(
    server: Running, scenario: Scenario, model: str, repetition: int, divisor: int
) -> dict[str, Any]:
    """One repetition of one load."""
    peer = server.peer
    load = ServerLoad(
        url=server.url,
        served_model=peer.served_model,
        tokenizer=model,
        token_ids=peer.token_ids,
        concurrency=scenario.streams,
        warmup=1 if repetition == 0 else 0,
        extra_body=json.dumps(peer.extra_body),
        server_pid=server.pid,
    )
    workload = scenario.workload(repetition, divisor)
    workload = attrs.evolve(workload, ignore_eos=workload.ignore_eos and peer.ignore_eos)
    rows, _ = trio.run(measure_server, load, workload)
    return {**rows[0], "rss_bytes": tree_rss_bytes(server.pid)}


def note(server: Running, scenario: Scenario, repetition: int, figures: dict[str, Any]) -> None:
    """Keep a result, and show it."""
    line = {
        "time": time.strftime("%FT%T"),
        "peer": server.peer.name,
        "version": server.peer.version,
        "scenario": scenario.name,
        "repetition": repetition,
        "load_average": os.getloadavg()[0],
        **figures,
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
    others = figures.get("other_cores", 0.0)
    value = f"{figures[scenario.figure]:8.1f}"
    print(
        f"{repetition + 1} {scenario.name:8} {server.peer.name:14} {value} {others:6.2f}",
        flush=True,
    )


def speed_table(cells: Iterable[Cell], servers: Sequence[Running]) -> list[str]:
    """Loads down, servers across; the ratio of triolet to each peer behind its figure."""
    by_place = {(c.scenario.name, c.peer.name): c for c in cells}
    scenarios = list(dict.fromkeys(c.scenario for c in by_place.values()))
    names = [server.peer.name for server in servers]
    lines = [f"| load | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for scenario in scenarios:
        own = by_place[scenario.name, names[0]].figures[scenario.figure]
        row = [scenario.title]
        for name in names:
            cell = by_place[scenario.name, name]
            ratio = own / cell.figures[scenario.figure]
            ratio = 1 / ratio if scenario.figure.startswith("ttft") else ratio
            row.append(cell.text if name == names[0] else f"{cell.text}, {ratio:.2f}x")
        lines.append(f"| {' | '.join(row)} |")
    return lines


def cost_table(cells: Sequence[Cell], servers: Sequence[Running]) -> list[str]:
    """What each server is and costs."""
    lines = [
        (
            "| server | version | start to ready, s | memory at ready, MB | most memory, MB | "
            "CPU ms per token, by load |"
        ),
        "|---|---|---|---|---|---|",
    ]
    for server in servers:
        mine = [cell for cell in cells if cell.peer is server.peer]
        most = max(row["rss_bytes"] for cell in mine for row in cell.rows)
        cpu = ", ".join(
            f"{c.scenario.name}: {c.figures['cpu_ms_per_output_token']:.2f}" for c in mine
        )
        lines.append(
            f"| {server.peer.name} | {server.peer.version} | {server.start_s:.1f} | "
            f"{server.rss_bytes / 1e6:.0f} | {most / 1e6:.0f} | {cpu} |"
        )
    return lines


def machine_lines(model: str, repeat: int) -> list[str]:
    """Where and of what this was measured."""
    info = Path("/proc/cpuinfo").read_text()
    cpu = next((x.split(":")[1].strip() for x in info.split("\n") if "model name" in x), "?")
    kinds = [kind for kind in ("avx512_vnni", "avx512_bf16", "amx_bf16") if kind in info]
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    cores = len(os.sched_getaffinity(0))
    top = ceilings.measure(cores)
    limits = ", ".join(f"{name} {value:.4g}" for name, value in top.items())
    return [
        (
            f"Model {model}, medians of {repeat} (lowest and highest behind), commit {commit}, "
            f"{time.strftime('%F')}."
        ),
        (
            f"Machine: {cores} cores of {cpu} ({', '.join(kinds) or 'no AVX-512'}), Linux "
            f"{platform.release()}, Python {platform.python_version()}; load average "
            f"{os.getloadavg()[0]:.1f} at the end."
        ),
        f"Ceilings on all cores, measured at the end: {limits}.",
        (
            "`*` is not clean: other processes used more than 0.1 cores. `!` tokens were missing or "
            "requests failed. A ratio above 1 means that triolet (the first column) is faster."
        ),
    ]


def write_page(lines: Sequence[str]) -> None:
    """Put the tables between the markers of the page."""
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]))


def find_model(name: str, gguf: Path | None, root: Path) -> BenchModel:
    """The model's directory, and its GGUF file for llama.cpp if one is given or found."""
    facts = resolve(ModelConfig(model=name), print)
    if gguf is None:
        # The directory of a converted demo is called after its model.
        stem = facts.directory.name.split("-gguf")[0].replace("-", "").lower()
        files = sorted((root / "models/gguf").glob("*bf16.gguf"))
        found = [path for path in files if stem in path.name.replace("-", "").lower()]
        gguf = found[0] if found else None
    return BenchModel(name, facts.directory, gguf)


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", help="names of loads, with commas")
    parser.add_argument("--gguf", type=Path, help="the weights for llama.cpp, in bfloat16")
    parser.add_argument("--quick", action="store_true", help="answers a quarter as long")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    arguments = parser.parse_args()
    root = Path(os.environ.get("PEERS", Path.home() / ".cache/triolet-peers"))
    model = find_model(arguments.model, arguments.gguf, root)
    names = arguments.only.split(",") if arguments.only else [s.name for s in SCENARIOS]
    scenarios = [scenario for scenario in SCENARIOS if scenario.name in names]
    if len(scenarios) != len(set(names)):
        parser.error(f"loads are {', '.join(scenario.name for scenario in SCENARIOS)}")
    with ExitStack() as stack:
        servers: list[Running] = []
        for make in PEERS:
            for index in range(len(make(root, model, 0))):
                port = free_port()
                peer = make(root, model, port)[index]
                log = RESULTS.parent / f"{peer.name.replace(' ', '-')}.log"
                log.parent.mkdir(parents=True, exist_ok=True)
                print(f"starting {peer.name} {peer.version}", flush=True)
                servers.append(stack.enter_context(running(peer, port, log)))
        divisor = QUICK_DIVISOR if arguments.quick else 1
        cells = measure(servers, scenarios, model.name, arguments.repeat, divisor)
    lines = [
        *machine_lines(model.name, arguments.repeat),
        "",
        *speed_table(cells, servers),
        "",
        *cost_table(cells, servers),
    ]
    print("\n".join(lines))
    if arguments.write:
        write_page(lines)


if __name__ == "__main__":
    main()
