"""Import directions: the table in docs/explanation/architecture.md is the rule."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from support import arch

MODULES = arch.modules()
ALLOWED = arch.allowed()
# third-party package -> predicate on our module name: may it import the package?
GATES: dict[str, Callable[[str], bool]] = {
    "trio": lambda m: (
        m.endswith((".actor", "transport"))
        or arch.room(m) in ("actor", "engine", "server", "testing", "cli")
        or m == "triolet.telemetry.instrument"
    ),
    "tricycle": lambda m: arch.room(m) in ("actor", "engine"),
    "torch": lambda m: (
        m == "triolet.model_source.convert_gguf"  # only ever runs in a process of its own
        or arch.room(m) in ("models", "triolet_kernels")
        or (
            arch.room(m) == "runner"
            and not m.endswith((".actor", ".backend", "transport", ".worker", ".wire"))
        )
    ),
    "triton": lambda m: arch.room(m) == "triolet_kernels",
    "transformers": lambda m: m.startswith(
        ("triolet.models.", "triolet.tokenizer.", "triolet.model_source.convert_gguf")
    ),
    "quart": lambda m: arch.room(m) == "server" or m == "triolet.testing.http",
    "quart_trio": lambda m: arch.room(m) == "server" or m == "triolet.testing.http",
    "hypercorn": lambda m: arch.room(m) == "server",
    "cattrs": lambda m: (
        m in ("triolet.protocol.converter", "triolet.testing.scenario", "triolet.runner.transport")
    ),
}


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_table(module: str) -> None:
    here = arch.room(module)
    for name in arch.imports(MODULES[module]):
        top = name.split(".")[0]
        if top in GATES:
            assert GATES[top](module), f"{module} may not import {top}"
        if top not in ("triolet", "triolet_kernels") or here == "package":
            continue
        there = arch.room(name)
        if there in (here, "package"):
            continue
        assert there in ALLOWED[here], f"{module} ({here}) may not import {name} ({there})"
        if there == "actor" and here in ("tracker", "scheduler", "runner", "dispatcher"):
            assert module.endswith((".actor", "transport")), (
                f"{module}: only actor.py and transports may use the trio substrate"
            )
        if there == "testing":
            assert here == "testing" or module == "triolet.cli.simulate", module


def test_every_room_is_in_the_table() -> None:
    rooms = {arch.room(m) for m in MODULES} - {"package"}
    assert rooms == set(ALLOWED)


@pytest.mark.parametrize(
    "module",
    [
        m
        for m in MODULES
        if not any(g(m) for n, g in GATES.items() if n != "cattrs") and arch.room(m) != "package"
    ],
)
def test_pure_module_loads_without_trio_torch_or_web(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "bad = {'trio', 'torch', 'triton', 'quart', 'hypercorn', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'{bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_dead_module() -> None:
    entry = {
        "triolet",
        "triolet.__main__",
        "triolet.testing",
        "triolet.testing.http",
        "triolet.testing.pytest_plugin",
        "triolet_kernels",
        "triolet.model_source.convert_gguf",  # programs: python -m
        "triolet.model_source.download",
        "triolet.grammar.check",  # run as a process
        "triolet.runner.model_runner",  # named by WorkerSpec.backend
        "triolet.runner.worker_process",  # run as a process
    }
    entry |= {m for m in MODULES if m.startswith(("triolet.cli.", "triolet.telemetry."))}
    used = set().union(*(arch.imports(p) for p in MODULES.values()))
    used |= {m.rpartition(".")[0] for m in used}
    dead = [m for m, p in MODULES.items() if m not in used | entry and p.read_text().strip()]
    assert not dead, dead
