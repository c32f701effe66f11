"""Does the harness find bugs? Plants mechanical ones, and counts those it misses.

    nice python tests/bench/mutate.py --count 150 --seed 1 --report survivors.md

Each mutant changes one place of one module, chosen by a seed and not by a person: a comparison
or an operator is swapped, a condition inverted, a constant changed, a statement dropped, an
await moved behind the next statement. The standard scenarios and short sweeps are played against it;
it is killed when a guarantee breaks, when nothing ends, or when it does not even load.

Not collected by pytest.
"""

from __future__ import annotations

import argparse
import ast
import copy
import multiprocessing
import multiprocessing.connection
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "tests/simulation/scenarios"
TARGETS = (
    "tracker/actor.py",
    "tracker/admission.py",
    "tracker/deadlines.py",
    "tracker/registry.py",
    "tracker/request_state.py",
    "scheduler/actor.py",
    "scheduler/scheduler.py",
    "scheduler/planner.py",
    "scheduler/forest.py",
    "scheduler/tree.py",
    "scheduler/sequence.py",
    "scheduler/finish.py",
    "scheduler/poison.py",
    "scheduler/policy.py",
    "scheduler/block_pool.py",
    "scheduler/prefix_cache.py",
    "scheduler/kv_cache_manager.py",
    "scheduler/request_queue.py",
    "dispatcher/actor.py",
    "dispatcher/output_table.py",
    "dispatcher/request_output.py",
    "dispatcher/sequence_output.py",
    "dispatcher/stop_strings.py",
    "dispatcher/backpressure.py",
    "engine/engine.py",
    "engine/life.py",
    "engine/open_engine.py",
    "engine/stream.py",
    "runner/actor.py",
    "actor/channel.py",
    "actor/end_marks.py",
    "actor/supervisor.py",
)
TIMEOUT_S = 90.0
SEEDS = range(3)
SWEPT = ("leaving-clients", "over-http", "under-pressure", "worker-dies")
SWEEP_EVERY = 100

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
}


@attrs.frozen
class Mutant:
    """One planted bug.

    Attributes:
        file: Under `src/triolet`.
        line: Where.
        kind: What was done.
        before: The code there.
        source: The whole module with the bug.
    """

    file: str
    line: int
    kind: str
    before: str
    source: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="files whose name contains this")
    parser.add_argument("--report", type=Path, help="write the survivors as a table")
    options = parser.parse_args()
    mutants = choose(options.count, options.seed, options.only)
    results: list[tuple[Mutant, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "src"
        shutil.copytree(SCENARIOS, tree.parent / "scenarios")
        shutil.copytree(ROOT / "src", tree, ignore=shutil.ignore_patterns("__pycache__"))
        preload()
        if judge(tree) != "survived":
            sys.exit("the code without any mutation fails already")
        for number, mutant in enumerate(mutants, 1):
            path = tree / "triolet" / mutant.file
            original = path.read_text()
            path.write_text(mutant.source)
            start = time.monotonic()
            verdict = judge(tree)
            path.write_text(original)
            results.append((mutant, verdict))
            print(
                f"{number}/{len(mutants)} {verdict:30.30} {time.monotonic() - start:5.1f} s  "
                f"{mutant.file}:{mutant.line} {mutant.kind}: {mutant.before}",
                flush=True,
            )
    summarise(results, options.report)


def summarise(results: list[tuple[Mutant, str]], report: Path | None) -> None:
    rooms: dict[str, Counter[bool]] = {}
    for mutant, verdict in results:
        room = mutant.file.split("/")[0]
        rooms.setdefault(room, Counter())[verdict == "survived"] += 1
    for room, counter in sorted(rooms.items()):
        print(f"{room:12} killed {counter[False]:4} of {counter.total():4}")
    killed = sum(verdict != "survived" for _, verdict in results)
    print(f"{'all':12} killed {killed:4} of {len(results):4} ({killed / len(results):.0%})")
    if report is not None:
        lines = ["| place | mutation | code |", "|---|---|---|"]
        for mutant, verdict in results:
            if verdict == "survived":
                code = mutant.before.replace("|", "\\|")
                lines.append(f"| {mutant.file}:{mutant.line} | {mutant.kind} | `{code}` |")
        report.write_text("\n".join(lines) + "\n")


def choose(count: int, seed: int, only: str) -> list[Mutant]:
    """Draw mutants, evenly over the files."""
    rng = random.Random(seed)
    pools: list[list[Mutant]] = []
    for name in TARGETS:
        if only in name:
            pool = list(mutants_of(name, (ROOT / "src/triolet" / name).read_text()))
            rng.shuffle(pool)
            pools.append(pool)
    chosen: list[Mutant] = []
    while len(chosen) < count and any(pools):
        for pool in pools:
            if pool and len(chosen) < count:
                chosen.append(pool.pop())
    return chosen


def mutants_of(name: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a module."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    for index, node in enumerate(nodes):
        for kind, place, change in changes(node):
            mutated = copy.deepcopy(tree)
            twin = list(ast.walk(mutated))[index]
            before = ast.unparse(place).splitlines()[0][:100]
            change(twin)
            ast.fix_missing_locations(mutated)
            text = ast.unparse(mutated)
            if text != ast.unparse(tree):
                yield Mutant(name, getattr(place, "lineno", 0), kind, before, text)


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, Callable[[ast.AST], None]]]:
    """What can be done to a node, and where; the change is applied to a copy of the node."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield "comparison swapped", node, _swap_comparison
        case ast.BinOp(op=operator) if type(operator) in OPERATORS:
            yield "operator swapped", node, _swap_operator
        case ast.BoolOp():
            yield "and/or swapped", node, _swap_bool
        case ast.If() | ast.While() if not _is_constant(node.test):
            yield "check inverted", node.test, _invert
        case _:
            pass
    # Statements live in the lists of their parents.
    for field in ("body", "orelse", "finalbody"):
        statements = getattr(node, field, None)
        if not isinstance(statements, list):
            continue
        for position, statement in enumerate(statements):
            if _is_droppable(statement):
                yield "statement dropped", statement, _drop(field, position)
            if _awaits(statement) and position + 1 < len(statements):
                yield "await moved", statement, _move(field, position)


def _is_constant(test: ast.expr) -> bool:
    return isinstance(test, ast.Constant) or ast.unparse(test) == "TYPE_CHECKING"


def _swap_comparison(node: ast.AST) -> None:
    assert isinstance(node, ast.Compare)
    node.ops = [COMPARISONS[type(node.ops[0])]()]


def _swap_operator(node: ast.AST) -> None:
    assert isinstance(node, ast.BinOp)
    node.op = OPERATORS[type(node.op)]()


def _swap_bool(node: ast.AST) -> None:
    assert isinstance(node, ast.BoolOp)
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


def _invert(node: ast.AST) -> None:
    assert isinstance(node, (ast.If, ast.While))
    node.test = ast.UnaryOp(ast.Not(), node.test)


def _is_droppable(statement: ast.stmt) -> bool:
    """Statements with an effect; not docstrings, asserts, or lines of the log."""
    match statement:
        case ast.Expr(value=ast.Call() as call):
            return not ast.unparse(call.func).startswith(("log.", "_logger."))
        case ast.Expr(value=ast.Await()) | ast.AugAssign() | ast.Delete() | ast.Raise():
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
        case ast.Continue() | ast.Break():
            return True
        case _:
            return False


def _awaits(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Await)


def _drop(field: str, position: int) -> Callable[[ast.AST], None]:
    def change(node: ast.AST) -> None:
        getattr(node, field)[position] = ast.Pass()

    return change


def _move(field: str, position: int) -> Callable[[ast.AST], None]:
    def change(node: ast.AST) -> None:
        statements = getattr(node, field)
        statements[position : position + 2] = statements[position : position + 2][::-1]

    return change


def preload() -> None:
    """Load what all mutants share, so that a fork of this process need not."""
    import triolet.testing.sweeps  # noqa: F401

    for name in list(sys.modules):
        if name.split(".")[0] == "triolet":
            del sys.modules[name]


def judge(tree: Path) -> str:
    """Play the scenarios against the code in `tree`: "survived", or what it died of."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_play, args=(tree, sender))
    process.start()
    sender.close()
    verdict = "hung"
    if receiver.poll(TIMEOUT_S):
        try:
            verdict = receiver.recv()
        except EOFError:
            verdict = "crashed"
    process.kill()
    process.join()
    return verdict


def _play(tree: Path, sender: multiprocessing.connection.Connection) -> None:
    """In a fork."""
    # An editable install would put the real code before the mutated one.
    sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
    sys.path.insert(0, str(tree))
    try:
        verdict = _first_violation(tree)
    except Exception as error:
        verdict = f"raised {type(error).__name__}"
    sender.send(verdict)
    sender.close()


def _first_violation(tree: Path) -> str:
    from triolet.testing import simulation
    from triolet.testing.scenario import load_scenario
    from triolet.testing.sweeps import SweepReport, cancel_sweep, crash_sweep, shutdown_sweep

    assert Path(simulation.__file__).is_relative_to(tree), "the installed code was loaded"
    scenarios = [load_scenario(path) for path in sorted((tree.parent / "scenarios").glob("*.toml"))]
    for seed in SEEDS:
        for scenario in scenarios:
            run = simulation.simulate(scenario, seed)
            if run.violations:
                return f"{scenario.name}: {run.violations[0].check}"
    for scenario in scenarios:
        if scenario.name not in SWEPT:
            continue
        reports: list[SweepReport] = [
            cancel_sweep(scenario, 1, every=SWEEP_EVERY),
            crash_sweep(scenario, 1, every=SWEEP_EVERY),
            shutdown_sweep(scenario, 1, every=SWEEP_EVERY),
        ]
        for report in reports:
            if report.failures:
                return f"sweep of {scenario.name}: {report.failures[0].violations[0].check}"
    return "survived"


if __name__ == "__main__":
    main()
