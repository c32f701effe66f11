"""Scenario files are read strictly, and what is wrong in them is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from triolet.errors import ConfigError
from triolet.testing.faults import Clog, LoadFailure, RunnerCrash
from triolet.testing.scenario import load_scenario, scenario_of
from triolet.testing.simulation import simulate

GOOD = """
about = "One of everything."
[engine]
max_num_seqs = 3
[model]
step_s = 1
windows = [0, 8]
[[workload]]
clients = 2
prompt_tokens = [1, 5]
[[workload]]
leaves = 0.5
[[fault]]
kind = "runner_crash"
times = 2
within_s = [0, 1.5]
[[fault]]
kind = "load_failure"
first = true
"""


def test_a_file_becomes_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "all-of-it.toml"
    path.write_text(GOOD)
    scenario = load_scenario(path)
    assert scenario.name == "all-of-it"
    assert scenario.config().scheduler.max_num_seqs == 3
    assert scenario.model.windows == (0, 8)
    assert [workload.clients for workload in scenario.workloads] == [2, 8]
    assert scenario.faults == (RunnerCrash(times=2, within_s=(0, 1.5)), LoadFailure(first=True))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"workload": [{"clientes": 3}]}, "clientes"),
        ({"workload": [{"clients": "3"}]}, r"clients"),
        ({"workload": [{"clients": True}]}, r"clients"),
        ({"workload": [{"prompt_tokens": [1]}]}, "prompt_tokens"),
        ({"workload": [{"via": "pigeon"}]}, "via"),
        ({"fault": [{"kind": "meteor"}]}, r"faults\[0\]"),
        ({"fault": [{"times": 1}]}, r"faults\[0\]"),
        ({"fault": [{"kind": "close", "grace_s": 1}]}, "grace_s"),
        ({"engine": {"max_num_sequences": 1}}, "max_num_seqs"),
        ({"engine": {"max_num_seqs": 0}}, "max_num_seqs"),
        ({"weather": "bad"}, "weather"),
        ({}, "name"),
    ],
)
def test_what_is_wrong_is_named(data: dict[str, object], message: str) -> None:
    fields = data if data == {} else {"name": "bad", **data}
    with pytest.raises(ConfigError, match=message):
        scenario_of(fields)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        load_scenario(tmp_path / "absent.toml")
    (tmp_path / "broken.toml").write_text("a = [")
    with pytest.raises(ConfigError, match="broken"):
        load_scenario(tmp_path / "broken.toml")


def test_points_and_turns_that_there_are_not_are_refused() -> None:
    with pytest.raises(ConfigError, match="no fault point"):
        scenario_of({"name": "x", "fault": [{"kind": "actor_crash", "point": "engine.nowhere"}]})
    with pytest.raises(ConfigError, match="caller's own task"):
        scenario_of(
            {"name": "x", "fault": [{"kind": "actor_crash", "point": "engine.before_submit"}]}
        )
    with pytest.raises(ConfigError, match="turns"):
        Clog(channel="runner", turns=100)


def test_checks_that_there_are_not_are_refused() -> None:
    scenario = scenario_of({"name": "x", "skip_checks": ["luck"]})
    with pytest.raises(ConfigError, match="luck"):
        simulate(scenario, 0)


def test_the_harness_loads_no_torch() -> None:
    code = (
        "import sys, triolet.testing as t\n"
        "assert all(callable(getattr(t, name)) for name in t._EXPORTS)\n"
        "assert set(t._EXPORTS) <= set(dir(t))\n"
        "sys.exit(','.join({'torch', 'transformers', 'quart', 'hypercorn'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    import triolet.testing

    with pytest.raises(AttributeError, match="nothing"):
        triolet.testing.nothing  # noqa: B018  the access is the test


def test_no_exported_name_is_that_of_a_module() -> None:
    """Importing a module makes its name an attribute of the package, in front of the export."""
    import triolet.testing

    modules = {path.stem for path in Path(triolet.testing.__path__[0]).glob("*.py")}
    assert not modules & set(triolet.testing._EXPORTS)
