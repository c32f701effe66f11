"""Checks of what clients received: each output against what it must be, usage against both."""

from __future__ import annotations

from collections.abc import Iterator

from triolet.request import FinishReason
from triolet.testing.clients import ReceivedOutput, SimulatedClient
from triolet.testing.workloads import ExpectedOutput, expected_output, text_of
from triolet.testing.world import World

Findings = Iterator[str]
"""What a check says that is broken."""


def find_wrong_outputs(world: World) -> Findings:
    """Every token and character is that of a quiet run, in order, up to where it ended."""
    for client in world.clients:
        sampling = client.plan.sampling
        if client.end == "finished" and len(client.outputs) != sampling.n:
            yield f"client {client.number} got {len(client.outputs)} of {sampling.n} outputs"
        if client.end == "finished" and sampling.prompt_logprobs is not None:
            scored = [None if s is None else s.token_id for s in client.prompt_logprobs or ()]
            if scored != [None, *client.plan.prompt[1:]]:
                yield f"client {client.number} got log-probabilities of {scored} for its prompt"
        for index, got in sorted(client.outputs.items()):
            expected = expected_output(
                client.plan, index, world.max_model_len, world.scenario.model.eos_one_in
            )
            for finding in _compare(client, got, expected, world):
                yield f"client {client.number}, output {index}: {finding}"


def _compare(
    client: SimulatedClient, got: ReceivedOutput, expected: ExpectedOutput, world: World
) -> Findings:
    plan = client.plan
    if got.pieces_after_end:
        yield f"{got.pieces_after_end} pieces came after its end"
    if plan.sampling.logprobs is not None and got.logprobs != len(got.token_ids):
        yield f"{got.logprobs} log-probabilities for {len(got.token_ids)} tokens"
    match got.finish_reason:
        case FinishReason.STOP | FinishReason.LENGTH:
            whole = (expected.token_ids, expected.text, expected.finish_reason)
            if (tuple(got.token_ids), got.text, got.finish_reason) != whole:
                yield f"{got} is not {expected}"
            if got.stop_reason != expected.stop_reason:
                yield f"stopped by {got.stop_reason!r}, not {expected.stop_reason!r}"
            return
        case FinishReason.TIMEOUT if plan.timeouts.total is None:
            yield "ran out of a time that it had no limit of"
        case FinishReason.CANCELLED if (
            plan.sampling.keep is None and client.label not in world.excuses.cancelled_labels
        ):
            yield "was cancelled, which nobody did"
        case None if client.end == "finished":
            yield "has no end"
        case _:
            pass
    if tuple(got.token_ids) != expected.token_ids[: len(got.token_ids)]:
        yield f"tokens {got.token_ids} are not the first of {expected.token_ids}"
    if not text_of(got.token_ids).startswith(got.text):
        yield f"text {got.text!r} is not that of tokens {got.token_ids}"


def find_wrong_usage(world: World) -> Findings:
    """Usage counts what was delivered, and the prompt once."""
    for client in world.clients:
        if client.usage is None:
            continue
        delivered = len(client.plan.prefix) + sum(len(o.token_ids) for o in client.outputs.values())
        counted = (client.usage.prompt_tokens, client.usage.completion_tokens)
        if counted != (len(client.plan.prompt), delivered):
            yield (
                f"client {client.number} was charged {counted} for "
                f"{(len(client.plan.prompt), delivered)} tokens"
            )
