"""`make bench`: what it finds and what it writes."""

from pathlib import Path

import pytest

from bench import run
from bench.peers import PEERS, BenchModel, Peer, Running

OWN = Peer(name="triolet", command=(), version="1", served_model="m")
OTHER = Peer(name="other", command=(), version="2", served_model="m")
SERVERS = [Running(peer, "http://x", 1, 2.5, 3_000_000) for peer in (OWN, OTHER)]
FIGURES = {
    "clean": True,
    "missing_tokens": 0,
    "failed": 0,
    "cpu_ms_per_output_token": 2.0,
    "rss_bytes": 4_000_000,
}


def cells(figure: str, own: list[float], other: list[float]) -> list[run.Cell]:
    scenario = run.Scenario(name="s", title="a load", streams=1, figure=figure)
    return [
        run.Cell(scenario, peer, [{**FIGURES, figure: value} for value in values])
        for peer, values in ((OWN, own), (OTHER, other))
    ]


def test_ratio_is_that_of_the_medians() -> None:
    table = run.speed_table(cells("output_tokens_per_s", [30, 10, 20], [10, 5, 11]), SERVERS)
    assert table[-1] == "| a load | 20 (10-30) | 10 (5-11), 2.00x |"


def test_ratio_of_a_latency_is_turned_round() -> None:
    table = run.speed_table(cells("ttft_ms_p50", [20], [40]), SERVERS)
    assert table[-1] == "| a load | 20 | 40, 2.00x |"


@pytest.mark.parametrize(
    ("fault", "text"),
    [({"clean": False}, "20*"), ({"missing_tokens": 3}, "20!"), ({"failed": 1}, "20!")],
)
def test_figure_with_a_fault_is_marked(fault: dict[str, object], text: str) -> None:
    cell = cells("output_tokens_per_s", [20], [20])[0]
    cell.rows[0].update(fault)
    assert cell.text == text


def test_cost_of_every_server_is_shown() -> None:
    table = run.cost_table(cells("output_tokens_per_s", [20], [10]), SERVERS)
    assert table[-1] == "| other | 2 | 2.5 | 3 | 4 | s: 2.00 |"


def test_tables_go_between_the_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{run.BEGIN}\nold\n{run.END}\nafter\n")
    monkeypatch.setattr(run, "PAGE", page)
    run.write_page(["new"])
    run.write_page(["newer"])
    assert page.read_text() == f"before\n{run.BEGIN}\n\nnewer\n\n{run.END}\nafter\n"


def test_the_page_has_the_markers() -> None:
    text = run.PAGE.read_text()
    assert text.count(run.BEGIN) == text.count(run.END) == 1


def test_peers_that_are_installed_are_found(tmp_path: Path) -> None:
    model = BenchModel("demo", tmp_path / "model", tmp_path / "model.gguf")
    found = [peer.name for make in PEERS for peer in make(tmp_path, model, 1)]
    assert found == ["triolet", "triolet w8a8"]
    for program in ("vllm/bin/vllm", "vllm/bin/python", "llamacpp/bin/llama-server"):
        path = tmp_path / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\necho version: 5\n")
        path.chmod(0o755)
    peers = [peer for make in PEERS for peer in make(tmp_path, model, 8123)]
    assert [peer.name for peer in peers[2:]] == ["vLLM", "vLLM eager", "llama.cpp"]
    assert all("8123" in peer.command for peer in peers)
    # Without the weights in its own form llama.cpp has nothing to compare with.
    without = BenchModel("demo", tmp_path / "model", None)
    assert "llama.cpp" not in [p.name for make in PEERS for p in make(tmp_path, without, 1)]
