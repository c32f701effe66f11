"""The public harness: the real engine on a virtual clock, faults by seed, cancellation everywhere.

* `open_fake_engine`: a real engine on a fake model, for tests of what you build on it.
* `simulate`, `cancel_sweep`, `crash_sweep`, `shutdown_sweep`, `pair_sweep`: scenarios.
* `open_fake_openai_server`: a server that misbehaves on demand, for tests of clients.
* `triolet.testing.pytest_plugin`: fixtures; name it in `pytest_plugins` to have them.

Names are loaded on first use. Nothing here imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triolet.testing.determinism import deterministic_schedule as deterministic_schedule
    from triolet.testing.engines import FakeHouse as FakeHouse, open_fake_engine as open_fake_engine
    from triolet.testing.fake_engine import FakeEngine as FakeEngine, Script as Script
    from triolet.testing.fake_openai_server import (
        FakeOpenAIServer as FakeOpenAIServer,
        open_fake_openai_server as open_fake_openai_server,
    )
    from triolet.testing.fake_runner import (
        FakeRunner as FakeRunner,
        expected_tokens as expected_tokens,
        fake_facts as fake_facts,
    )
    from triolet.testing.http import AsgiClient as AsgiClient
    from triolet.testing.scenario import (
        Scenario as Scenario,
        SimulatedModel as SimulatedModel,
        Workload as Workload,
        load_scenario as load_scenario,
        scenario_of as scenario_of,
    )
    from triolet.testing.server_faults import (
        DieMidStream as DieMidStream,
        ErrorEvent as ErrorEvent,
        ErrorStatus as ErrorStatus,
        MalformedEvent as MalformedEvent,
        RateLimit as RateLimit,
        SlowStart as SlowStart,
        Stall as Stall,
        Truncate as Truncate,
    )
    from triolet.testing.simulated_transport import SimulatedTransport as SimulatedTransport
    from triolet.testing.simulation import (
        Run as Run,
        SimulationFailed as SimulationFailed,
        simulate as simulate,
    )
    from triolet.testing.sweeps import (
        SweepReport as SweepReport,
        cancel_sweep as cancel_sweep,
        crash_sweep as crash_sweep,
        pair_sweep as pair_sweep,
        replay as replay,
        shutdown_sweep as shutdown_sweep,
        sweep_seeds as sweep_seeds,
    )
    from triolet.testing.trace import diff as diff
    from triolet.testing.watcher import Intervention as Intervention

_EXPORTS = {
    "AsgiClient": "http",
    "DieMidStream": "server_faults",
    "ErrorEvent": "server_faults",
    "ErrorStatus": "server_faults",
    "FakeEngine": "fake_engine",
    "FakeHouse": "engines",
    "FakeOpenAIServer": "fake_openai_server",
    "FakeRunner": "fake_runner",
    "Intervention": "watcher",
    "MalformedEvent": "server_faults",
    "RateLimit": "server_faults",
    "Run": "simulation",
    "Scenario": "scenario",
    "Script": "fake_engine",
    "SimulatedModel": "scenario",
    "SimulatedTransport": "simulated_transport",
    "SimulationFailed": "simulation",
    "SlowStart": "server_faults",
    "Stall": "server_faults",
    "SweepReport": "sweeps",
    "Truncate": "server_faults",
    "Workload": "scenario",
    "cancel_sweep": "sweeps",
    "crash_sweep": "sweeps",
    "deterministic_schedule": "determinism",
    "diff": "trace",
    "expected_tokens": "fake_runner",
    "fake_facts": "fake_runner",
    "load_scenario": "scenario",
    "open_fake_engine": "engines",
    "open_fake_openai_server": "fake_openai_server",
    "pair_sweep": "sweeps",
    "replay": "sweeps",
    "scenario_of": "scenario",
    "shutdown_sweep": "sweeps",
    "simulate": "simulation",
    "sweep_seeds": "sweeps",
}


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
