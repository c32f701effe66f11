"""Real engines on a fake model: what most tests of an engine, or around one, need."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs

from triolet.actor.faultpoint import FaultPoints
from triolet.config import EngineConfig
from triolet.engine.engine import Engine
from triolet.engine.grammar_gate import answer_inline
from triolet.engine.offload import InlineOffload
from triolet.engine.open_engine import EngineParts, open_engine_from_parts
from triolet.messages.runner_to_scheduler import BatchResult
from triolet.model_source.facts import ModelFacts
from triolet.runner.transport import Transport
from triolet.testing.fake_runner import FakeRunner, fake_facts
from triolet.testing.simulated_transport import (
    SimulatedTransport,
    StepTime,
    constant_step_time,
)
from triolet.tokenizer.byte_tokenizer import ByteTokenizer
from triolet.tokenizer.tokenizer import Tokenizer

STEP_S = 0.01
"""Virtual seconds of a fake step, where a test does not say otherwise."""


@attrs.define
class FakeHouse:
    """A fake engine with its parts in reach of the test.

    Attributes:
        engine: The real engine.
        transport: Kills its worker, holds its backends.
        faults: Its fault points.
    """

    engine: Engine
    transport: SimulatedTransport
    faults: FaultPoints

    @property
    def runner(self) -> FakeRunner:
        """The fake runner that lives now."""
        backend = self.transport.backends[-1]
        assert isinstance(backend, FakeRunner)
        return backend


@asynccontextmanager
async def open_fake_engine(
    *,
    seed: int = 0,
    step_time: StepTime | float = STEP_S,
    load_s: float = 0.0,
    alter: Callable[[BatchResult], BatchResult | None] | None = None,
    runner: Mapping[str, Any] | None = None,
    facts: ModelFacts | None = None,
    **settings: object,
) -> AsyncGenerator[FakeHouse]:
    """Open a real engine on the fake runner, entirely in this thread.

    With an autojump clock it takes no real time, and a run depends on nothing but its seed.

    Args:
        seed: Of request seeds and of nothing else.
        step_time: Seconds per step, or a function of the batch.
        load_s: Seconds that loading takes.
        alter: Changes or loses results; see `SimulatedTransport`.
        runner: Options of `FakeRunner`.
        facts: The model it pretends to be.
        **settings: As for `open_engine`.
    """
    config = EngineConfig.of("fake", **settings)
    facts = fake_facts() if facts is None else facts
    options = dict(runner or {})
    transport = SimulatedTransport(
        lambda: FakeRunner(config, facts, **options),
        step_time if callable(step_time) else constant_step_time(step_time),
        load_s,
        alter,
    )
    parts = fake_parts(facts, transport, seed)
    async with open_engine_from_parts(config, parts) as engine:
        yield FakeHouse(engine, transport, parts.faults)


def fake_parts(
    facts: ModelFacts, transport: Transport, seed: int = 0, tokenizer: Tokenizer | None = None
) -> EngineParts:
    """Parts of an engine that depend on nothing but a seed, around a given transport."""
    return EngineParts(
        facts=facts,
        tokenizer=ByteTokenizer() if tokenizer is None else tokenizer,
        transport=transport,
        offload=InlineOffload(),
        rng=random.Random(seed),
        id_prefix="test",
        secret=b"not a secret",
        answer_grammar=answer_inline,
    )
