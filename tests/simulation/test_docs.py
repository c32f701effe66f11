"""The pages about the harness say what there is, and their code runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import attrs
import pytest

from triolet.actor.faultpoint import POINTS
from triolet.testing.checks import CHECKS
from triolet.testing.faults import CORRUPTIONS, FAULT_CLASSES, Fault
from triolet.testing.scenario import SimulatedModel, Workload, load_scenario
from triolet.testing.simulation import simulate
from triolet.testing.sweeps import crash_sweep

ROOT = Path(__file__).parents[2]
FAULTS = (ROOT / "docs/reference/faults.md").read_text()
TUTORIAL = (ROOT / "docs/tutorials/first-simulation.md").read_text()


def first_cells(section: str) -> set[str]:
    """Names in the first column of the tables of a section."""
    text = re.split(r"^## ", FAULTS.split(f"\n## {section}\n")[1], flags=re.MULTILINE)[0]
    return {
        name
        for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        for name in re.findall(r"`(\w[\w.]*)`", row)
    }


def test_the_reference_lists_exactly_the_fault_points() -> None:
    assert first_cells("Fault points") == POINTS


def test_the_reference_lists_exactly_the_checks() -> None:
    assert first_cells("Checks") == set(CHECKS)


def test_the_reference_lists_exactly_the_faults_and_their_keys() -> None:
    assert first_cells("Faults") == set(FAULT_CLASSES)
    common = {field.name for field in attrs.fields(Fault)}
    for name, fault_class in FAULT_CLASSES.items():
        (row,) = re.findall(rf"^\| `{name}` \|.*$", FAULTS, re.MULTILINE)
        keys = {field.name for field in attrs.fields(fault_class)} - common
        assert set(re.findall(r"`(\w+)`", row.split("|")[3])) == keys, name
    for corruption in CORRUPTIONS:
        assert corruption in FAULTS


def test_the_reference_lists_the_keys_of_workload_and_model() -> None:
    keys = {field.name for field in attrs.fields(Workload)}
    assert keys == first_cells("Scenario files")
    for field in attrs.fields(SimulatedModel):
        assert f"`{field.name}`" in FAULTS


def tutorial_files() -> dict[str, str]:
    blocks = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", TUTORIAL, re.DOTALL)
    return dict(blocks)


@pytest.mark.slow
def test_the_code_of_the_tutorial_passes(pytester: pytest.Pytester) -> None:
    for name, text in tutorial_files().items():
        (pytester.path / name).write_text(text)
    pytester.makeini("[pytest]\ntrio_mode = true\npythonpath = .\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=5)


@pytest.mark.slow
def test_the_scenario_of_the_tutorial_holds(tmp_path: Path) -> None:
    path = tmp_path / "busy-hour.toml"
    path.write_text(tutorial_files()["busy-hour.toml"])
    scenario = load_scenario(path)
    for seed in range(20):
        simulate(scenario, seed).check()
    crash_sweep(scenario, 0, every=20).check()


@pytest.mark.slow
def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples/simulate_a_crash.py"))["main"](seeds=5)
    assert "5 histories, 40 answers" in capsys.readouterr().out
