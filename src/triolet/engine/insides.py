"""The parts of an open engine, in reach of a harness that checks them from outside.

Nothing that serves requests may use this: what a caller needs is `EngineClient`.
"""

from __future__ import annotations

import attrs

from triolet.actor.end_marks import EndMarks
from triolet.dispatcher.actor import OutputDispatcher
from triolet.engine.wiring import Wiring
from triolet.runner.actor import DeviceRunner
from triolet.scheduler.actor import StepLoop
from triolet.tracker.actor import RequestTracker
from triolet.tracker.admission import Admission
from triolet.tracker.registry import Registry


@attrs.frozen
class EngineInsides:
    """Everything one engine is made of, before its actors start."""

    wiring: Wiring
    marks: EndMarks
    registry: Registry
    admission: Admission
    tracker: RequestTracker
    step_loop: StepLoop
    runner: DeviceRunner
    dispatcher: OutputDispatcher
