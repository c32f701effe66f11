"""Every guarantee as an invariant: after each scheduler tick, and at the end of a run.

A check is a function of the `World` that says what it finds. They know what was done on
purpose (`world.excuses`, and the plan of each client), and excuse nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import attrs
from trio.testing import wait_all_tasks_blocked

from triolet.engine.client import Health
from triolet.sampling_params import SamplingParams
from triolet.testing.clients import SimulatedClient
from triolet.testing.excuses import death_is_excused, num_runner_faults, unexplained_end
from triolet.testing.fake_runner import expected_tokens
from triolet.testing.output_checks import Findings, find_wrong_outputs, find_wrong_usage
from triolet.testing.world import World
from triolet.tracker.request_state import RequestState

TIME_TOLERANCE_S = 1e-6
"""Virtual time is exact but for the rounding of sums."""
GAUGES = (
    *("num_requests_running", "num_requests_waiting", "num_requests_live"),
    "kv_cache_blocks_used",
)
FINAL_STATES = {
    "finished": {RequestState.FINISHED},
    "failed": {RequestState.FAILED},
    "dead": {RequestState.FAILED},
    "refused": {RequestState.FAILED},
}
"""How the request of a client ended in the registry; whoever leaves may leave after its end."""
LIVES = "e2e_request_latency_seconds_count"
"""Observed once per admitted request, when its scope is left."""
CANARY = "canary"
CANARY_PROMPT = tuple(range(40, 60))
CANARY_TOKENS = 5


@attrs.frozen
class Check:
    """One invariant.

    Attributes:
        about: The guarantee it stands for.
        find: Says what is broken.
    """

    about: str
    find: Callable[[World], Findings]


# After each turn of the scheduler.


def find_lost_blocks(world: World) -> Findings:
    """Block pool, prefix cache, queues and trees agree with each other."""
    assert world.scheduler is not None
    try:
        world.scheduler.check_integrity()
    except AssertionError as error:
        yield f"the scheduler's books do not balance: {error!r}"


def find_ended_but_scheduled(world: World) -> Findings:
    """After a turn the scheduler holds no request whose scope was left or that has ended."""
    assert world.insides is not None
    assert world.scheduler is not None
    registry = world.insides.registry
    for request in world.scheduler.requests():
        entry = registry.get(request.request_id)
        if entry is None or entry.state.is_final:
            state = "gone" if entry is None else entry.state.value
            yield (
                f"{request.request_id} is {state} and the scheduler still holds it, "
                f"with {request.blocks} blocks"
            )


def find_credits_without_owner(world: World) -> Findings:
    """Admission counts at least the live requests, and at most its limit."""
    assert world.insides is not None
    admission = world.insides.admission.statistics()
    limit = world.config.scheduler.max_live_requests
    if not len(world.insides.registry) <= admission.live_requests <= limit:
        yield (
            f"admission counts {admission.live_requests} requests; {len(world.insides.registry)} "
            f"are live and the limit is {limit}"
        )


TURN_CHECKS = {
    "blocks": Check("G1: every block has an owner or is free", find_lost_blocks),
    "ended": Check("G1: no step contains a request that has ended", find_ended_but_scheduled),
    "credits": Check("G7: what is admitted is counted", find_credits_without_owner),
}

# When every client is gone and the engine is still open.


def find_leftovers_in_open_engine(world: World) -> Findings:
    """An engine without clients holds nothing: requests, blocks, credits, gauges."""
    assert world.engine is not None
    assert world.insides is not None
    statistics = world.engine.statistics()
    is_alive = world.engine.health is not Health.DEAD
    left = {
        "requests_live": statistics.requests_live,
        "requests_running": statistics.requests_running if is_alive else 0,
        "requests_waiting": statistics.requests_waiting if is_alive else 0,
        "blocks_used": statistics.blocks_used if is_alive else 0,
    }
    yield from (f"{name} is {value}, not 0" for name, value in left.items() if value)


def find_wrong_metrics(world: World) -> Findings:
    """What operators see of an idle engine is that it is idle, and each request's one end."""
    assert world.engine is not None
    assert world.insides is not None
    values: defaultdict[str, float] = defaultdict(float)
    for line in world.engine.metrics().decode().splitlines():
        name, _, labelled = line.removeprefix("triolet:").partition("{")
        if labelled:
            values[name] += float(labelled.rsplit(" ", 1)[1])
    if world.engine.health is not Health.DEAD:
        for gauge in GAUGES:
            if gauge not in values or values[gauge]:
                yield f"gauge {gauge} is {values.get(gauge)}, not 0"
    ended, left = sum(world.insides.registry.ended.values()), values[LIVES]
    if ended != left:
        yield f"{left:g} admitted requests were left and {ended} were ended"


def find_wrong_health(world: World) -> Findings:
    """An idle engine is not stuck, and dead only if there is a reason."""
    assert world.engine is not None
    health = world.engine.health
    if health is Health.STUCK:
        yield "the engine has no work and calls itself stuck"
    if health is Health.DEAD and not death_is_excused(world):
        yield f"the engine is dead: {world.engine.death}"


IDLE_CHECKS = {
    "idle": Check("G3: an engine without clients holds nothing", find_leftovers_in_open_engine),
    "health": Check("G8: health tells the truth", find_wrong_health),
}
METRICS_CHECKS = {
    "metrics": Check("G2, G8: gauges are 0, and every request ended once", find_wrong_metrics),
}


async def check_canary(world: World) -> Findings:
    """After all that happened a new request is served, with the right answer."""
    assert world.engine is not None
    sampling = SamplingParams(temperature=0.0, max_tokens=CANARY_TOKENS, ignore_eos=True)
    prompt = CANARY_PROMPT[: max(1, world.engine.max_model_len - CANARY_TOKENS)]
    async with world.engine.generate(prompt, sampling, label=CANARY) as stream:
        got = [token async for delta in stream for token in delta.token_ids]
    eos_one_in = world.scenario.model.eos_one_in
    expected = expected_tokens(
        prompt, CANARY_TOKENS, eos_token_id=_fake_eos(world), eos_one_in=eos_one_in
    )
    await wait_all_tasks_blocked()
    if got[: len(expected)] == expected or CANARY in world.excuses.cancelled_labels:
        return iter(())
    return iter((f"got {got}, not {expected}",))


def _fake_eos(world: World) -> int:
    assert world.engine is not None
    return world.engine.facts.eos_token_ids[0]


# When everything is closed.


def find_unexplained_ends(world: World) -> Findings:
    """Everyone got an answer, or what they themselves, or a fault, brought about."""
    for client in world.clients:
        why_not = unexplained_end(client, world)
        if why_not is not None:
            error = "" if client.error is None else f" ({client.error.code}: {client.error})"
            yield f"client {client.number} {why_not}{error}"


def find_wrong_number_of_ends(world: World) -> Findings:
    """A request ends exactly once, for the engine and for its sink."""
    for client in world.clients:
        if client.plan.has_sink and client.is_streaming:
            is_told = client.end in ("finished", "failed", "dead")
            if not is_told <= client.ends_seen <= 1:
                yield f"client {client.number} was told {client.ends_seen} times of its end"
        state = world.final_states.get(client.label)
        fitting = FINAL_STATES.get(client.end or "", {state})
        was_cancelled = client.label in world.excuses.cancelled_labels
        if client.is_streaming and not was_cancelled and state not in (None, *fitting):
            yield f"client {client.number} {client.end}, and its request is {state}"
    assert world.insides is not None
    ended = sum(world.insides.registry.ended.values())
    seen = world.counts["requests"]
    if ended < seen:
        yield f"{seen} requests were submitted and {ended} ended"


def find_missed_deadlines(world: World) -> Findings:
    """A deadline is kept to the moment, on a clock that does not jump."""
    if world.excuses.clock_jumped:
        return
    for client in world.clients:
        if client.ended_at is None or client.arrived_at is None:
            continue
        if client.plan.read_delay_s or client.plan.ignores_s is not None:
            continue  # it looked later
        took = client.ended_at - client.arrived_at
        total = client.plan.timeouts.total
        if total is not None and took > total + _tokenizing_s(client, world) + TIME_TOLERANCE_S:
            yield f"client {client.number} was there for {took} s; its limit is {total} s"
        if client.error is None or client.error.code != "deadline_exceeded":
            continue
        limits = [s for s in attrs.astuple(client.plan.timeouts) if s is not None]
        longest = max(min(limits), _tokenizing_s(client, world)) + TIME_TOLERANCE_S
        if not min(limits) - TIME_TOLERANCE_S <= took <= longest:
            yield f"client {client.number} was ended after {took} s; its limit is {min(limits)} s"


def _tokenizing_s(client: SimulatedClient, world: World) -> float:
    """For how long a deadline cannot be kept: tokenizing is not interrupted by it."""
    return world.scenario.model.tokenize_s if client.plan.is_text else 0.0


def find_leftovers(world: World) -> Findings:
    """Nothing outlives the engine: requests, credits, outputs, marks, workers."""
    insides, transport = world.insides, world.transport
    assert insides is not None
    assert transport is not None
    admission = insides.admission.statistics()
    left = {
        "live requests": len(insides.registry),
        "reserved places": admission.live_requests,
        "reserved tokens": admission.queued_tokens,
        "open outputs": insides.dispatcher.statistics().outputs.requests,
        "workers": sum(not getattr(backend, "closed", False) for backend in transport.backends),
    }
    yield from (f"{value} {name} are left" for name, value in left.items() if value)


def find_overfull_channels(world: World) -> Findings:
    """No channel ever held more than its bound."""
    assert world.insides is not None
    for channel in attrs.astuple(world.insides.wiring, recurse=False):
        statistics = channel.statistics()
        if statistics.depth_max > statistics.bound:
            yield f"{statistics.name} held {statistics.depth_max}, its bound is {statistics.bound}"


def find_unexplained_deaths(world: World) -> Findings:
    """The runner dies of what was done to it, and the engine of nothing else either."""
    assert world.insides is not None
    restarts = world.insides.runner.statistics().restarts
    has_poison = any(client.plan.is_poison for client in world.clients)
    if restarts > num_runner_faults(world) and not has_poison:
        yield f"the runner was replaced {restarts} times; {num_runner_faults(world)} faults struck"
    if world.death is not None and not death_is_excused(world):
        yield f"the engine died: {world.death!r}"
    fatal = [actor for actor in world.excuses.actors_crashed if actor != "runner"]
    if world.death is None and fatal and not world.excuses.service_cancelled:
        yield f"{fatal} crashed and the engine said nothing"


def find_logged_errors(world: World) -> Findings:
    """Nothing is logged as an error that was not done on purpose."""
    if not death_is_excused(world):
        yield from (f"logged: {line}" for line in world.logged_errors)


END_CHECKS = {
    "ends": Check("G2, G4, G5: every end has its reason", find_unexplained_ends),
    "outputs": Check("G2, G4, G5: outputs equal those of a quiet run", find_wrong_outputs),
    "usage": Check("G2: usage is what was delivered", find_wrong_usage),
    "one_end": Check("G2: exactly one end", find_wrong_number_of_ends),
    "deadlines": Check("G10: deadlines are kept", find_missed_deadlines),
    "leftovers": Check("G3: nothing is left", find_leftovers),
    "channels": Check("G7: every queue has its bound", find_overfull_channels),
    "deaths": Check("G4: nothing dies without a cause", find_unexplained_deaths),
    "log": Check("G5: no error without a cause", find_logged_errors),
}

# Found by the simulation itself.

OTHER_CHECKS = {
    "progress": "G6: everything ends before the horizon",
    "transitions": "G2: request states follow the table",
    "kv_content": "G5: a sequence reads its own tokens in the KV cache",
    "canary": "G6: afterwards a new request is served",
    "tasks": "G3: no task is left",
    "crash": "G3: nothing but the errors of the interface comes out",
}

CHECKS: dict[str, str] = {
    **{
        name: check.about
        for checks in (TURN_CHECKS, IDLE_CHECKS, METRICS_CHECKS, END_CHECKS)
        for name, check in checks.items()
    },
    **OTHER_CHECKS,
}
"""Every check by name, with the guarantee it stands for."""


def run_checks(world: World, checks: dict[str, Check]) -> None:
    """Note what some checks find, but for those that the scenario skips."""
    for name, check in checks.items():
        if name not in world.scenario.skip_checks:
            for finding in check.find(world):
                world.violate(name, finding)
