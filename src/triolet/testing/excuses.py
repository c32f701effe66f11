"""What may have happened, given what was done on purpose: the reasons that a check accepts."""

from __future__ import annotations

import attrs

from triolet.testing.clients import SimulatedClient
from triolet.testing.world import World

RUNNER_FAULTS = (
    *("runner_crash", "runner_hang", "slow_step", "step_error", "corrupt_result"),
    *("lost_result", "repeated_result", "load_failure"),
)
"""Kinds of fault that may cost the runner its life."""
FALSE_POISON_DEATHS = 3
"""Deaths in a row that make an innocent request look like poison: no rule can tell."""


def unexplained_end(client: SimulatedClient, world: World) -> str | None:
    """Why the end of a client is a violation; None if there is a reason for it."""
    plan, excuses = client.plan, world.excuses
    code = None if client.error is None else client.error.code
    is_shutting = excuses.drained or excuses.closed or excuses.service_cancelled
    match client.end, code:
        case None, _:
            return "never came to an end"
        case "finished", _:
            return "finished although it is poison" if plan.is_poison else None
        case "left", _:
            plans = (plan.leaves_after_s, plan.breaks_after, plan.ignores_s)
            wanted = client.told is not None or any(value is not None for value in plans)
            return None if wanted else "left, which it did not want"
        case "unserved", _:
            return None if is_shutting or death_is_excused(world) else "found no engine"
        case "refused", "not_serving":
            return None if is_shutting else "was refused by an engine that serves"
        case "refused", "queue_full":
            limits = {"max_live_requests", "max_queued_tokens"} & set(world.scenario.engine)
            return None if limits else "was refused for limits that nobody reached"
        case "refused", "context_length_exceeded":
            fits = len(plan.prompt) + max(1, len(plan.prefix)) <= world.max_model_len
            return "was refused although it fits" if fits else None
        case "failed", "deadline_exceeded":
            had_one = any(value is not None for value in attrs.astuple(plan.timeouts))
            return None if had_one else "ran out of a time that it had no limit of"
        case "failed", "poison_request":
            # Real poison isolates everyone: one more death then hits whoever is alone.
            has_poison = any(other.plan.is_poison for other in world.clients)
            deaths = num_runner_faults(world)
            framed = deaths >= (1 if has_poison else FALSE_POISON_DEATHS)
            return None if plan.is_poison or framed else "was taken for poison"
        case "failed", "request_failed":
            broken = plan.has_row_error or plan.sink_breaks_at is not None
            return None if broken else "failed alone"
        case "dead", _:
            return None if death_is_excused(world) else "found the engine dead"
        case _:
            return f"ended as {client.end}"


def num_runner_faults(world: World) -> int:
    """Faults that struck so far and may have killed the runner.

    An exception in the task that waits for the worker is taken for the worker's death.
    """
    struck = sum(world.counts[f"fault {name}"] for name in RUNNER_FAULTS)
    return struck + world.counts["crashed runner"]


def death_is_excused(world: World) -> bool:
    """Whether something was done that may kill the engine as a whole."""
    excuses = world.excuses
    if excuses.actors_crashed or excuses.load_failed:
        return True
    assert world.insides is not None
    is_spent = world.insides.runner.statistics().state == "dead"
    has_poison = any(client.plan.is_poison for client in world.clients)
    limit = world.config.runner.max_restarts
    return is_spent and (num_runner_faults(world) > limit or has_poison)
