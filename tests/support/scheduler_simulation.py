"""Drives the scheduler against `KVRunner` and checks everything it says.

The outputs are compared token by token with a naive generator that knows neither blocks nor
batches; every output must end exactly once, and nothing may be said about an ended request.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import attrs

from support.kv_runner import (
    EOS,
    VOCAB_SIZE,
    KVRunner,
    extend_hash,
    prefix_hashes,
    prompt_score,
    sample,
    top_logprobs,
)
from triolet.config import CacheConfig, SchedulerConfig
from triolet.messages.runner_to_scheduler import KVGroup, RunnerInfo
from triolet.messages.scheduler_to_dispatcher import (
    PromptScored,
    RequestErrored,
    RequestFinished,
    RequestStarted,
    SchedulerFact,
    TokensSampled,
)
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.output import TokenLogprobs
from triolet.request import FinishReason, GenerationRequest, RequestId
from triolet.sampling_params import SamplingParams
from triolet.scheduler.scheduler import Scheduler

Ending = tuple[FinishReason, int | None]


@attrs.frozen
class Output:
    """One output of the naive generator: all tokens, the given prefix included, and its end."""

    tokens: tuple[int, ...]
    ending: Ending


def reference(request: GenerationRequest, index: int, max_model_len: int) -> Output:
    """Generate one output, one token at a time."""
    sampling = request.sampling
    tokens = list(request.prefix if index == 0 else ())
    prompt = list(request.prompt_token_ids)
    prefix = prefix_hashes(prompt + tokens)[-1]
    while True:
        ending = _ending(tokens, len(prompt), sampling, max_model_len)
        if ending is not None:
            return Output(tuple(tokens), ending)
        token = sample(prefix, sampling, index)
        tokens.append(token)
        prefix = extend_hash(prefix, token)


def _ending(
    tokens: list[int], num_prompt: int, sampling: SamplingParams, max_model_len: int
) -> Ending | None:
    if not tokens:
        return None
    if len(tokens) > sampling.min_tokens:
        if tokens[-1] == EOS and not sampling.ignore_eos:
            return (FinishReason.STOP, None)
        if tokens[-1] in sampling.stop_token_ids:
            return (FinishReason.STOP, tokens[-1])
    limit = math.inf if sampling.max_tokens is None else sampling.max_tokens
    if len(tokens) >= limit or num_prompt + len(tokens) >= max_model_len:
        return (FinishReason.LENGTH, None)
    return None


def beam_reference(request: GenerationRequest, max_model_len: int) -> list[Output]:
    """Beam search over whole token lists, the n best outputs, best first."""
    sampling = request.sampling
    width = sampling.beam_width
    assert width is not None
    prompt = list(request.prompt_token_ids)
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, list[int], Ending]] = []

    def score(logprob: float, length: int) -> float:
        return logprob / math.pow(length, sampling.length_penalty)

    while True:
        pool: list[tuple[float, int, int, list[int]]] = []
        for number, (logprob, tokens) in enumerate(beams):
            prefix = prefix_hashes(prompt + tokens)[-1]
            for rank, (token, more) in enumerate(top_logprobs(prefix, VOCAB_SIZE)):
                early = len(tokens) < sampling.min_tokens
                ends = token in sampling.stop_token_ids or (
                    token == EOS and not sampling.ignore_eos
                )
                if not (early and ends):
                    pool.append((-(logprob + more), number, rank, [*tokens, token]))
        pool.sort(key=lambda c: c[:3])
        beams = []
        for place, (negative, _, _, tokens) in enumerate(pool[: 2 * width]):
            ending = _ending(tokens, len(prompt), sampling, max_model_len)
            if ending is None:
                beams.append((-negative, tokens))
            elif place < width:
                done.append((score(-negative, len(tokens)), tokens, ending))
            if len(beams) == width:
                break
        done = sorted(done, key=lambda d: -d[0])[:width]
        if not beams or (
            len(done) == width and done[-1][0] >= score(beams[0][0], len(beams[0][1]))
        ):
            return [Output(tuple(tokens), ending) for _, tokens, ending in done[: sampling.n]]


@attrs.define
class Client:
    """What the consumer of one request has seen."""

    request: GenerationRequest
    outputs: dict[int, list[int]]
    expected: dict[int, Output]
    endings: dict[int, FinishReason | None] = attrs.field(factory=dict[int, "FinishReason | None"])
    """None: a stop string ended it."""
    started: bool = False
    scored: bool = False
    errored: bool = False

    @property
    def num_outputs(self) -> int:
        """Outputs asked for."""
        return self.request.sampling.n

    @property
    def is_over(self) -> bool:
        """Whether every output has ended."""
        return self.errored or len(self.endings) == self.num_outputs


class SchedulerSimulation:
    """A scheduler, a checking runner and the clients.

    Args:
        info: The runner.
        scheduler: Its configuration.
        prefix_caching: Whether to cache prefixes.
    """

    def __init__(
        self, info: RunnerInfo, scheduler: SchedulerConfig, *, prefix_caching: bool = True
    ) -> None:
        self.info = info
        self.config = scheduler
        self.runner = KVRunner(info, scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
        self.scheduler = Scheduler(
            scheduler,
            CacheConfig(enable_prefix_caching=prefix_caching),
            info,
            eos_token_ids=(EOS,),
            model_key="fake",
            secret=b"secret",
        )
        self.scheduler.runner_restored(info, self.runner.incarnation)
        self.clients: dict[RequestId, Client] = {}
        self.finished: dict[RequestId, Client] = {}
        self.now = 0.0
        self.num_submitted = 0
        self.num_poisoned = 0

    # Actions

    def submit(
        self,
        prompt: Iterable[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        prefix: Iterable[int] = (),
        cache_salt: str | None = None,
    ) -> RequestId:
        """Add a request."""
        self.num_submitted += 1
        self.now += 0.001
        request = GenerationRequest(
            request_id=RequestId(f"r{self.num_submitted}"),
            prompt_token_ids=tuple(prompt),
            sampling=sampling,
            arrival_time=self.now,
            priority=priority,
            prefix=tuple(prefix),
            cache_salt=cache_salt,
        )
        limit = self.scheduler.max_model_len
        outputs: dict[int, list[int]] = {index: [] for index in range(sampling.n)}
        if sampling.beam_width is None:
            expected = {i: reference(request, i, limit) for i in range(sampling.n)}
            outputs[0] = list(request.prefix)
        else:
            expected = dict(enumerate(beam_reference(request, limit)))
        self.clients[request.request_id] = Client(request, outputs, expected)
        self.scheduler.add(request, self.now)
        self._take(self.scheduler.take_facts())
        return request.request_id

    def launch(self) -> ScheduledBatch | None:
        """Schedule a step and give it to the runner."""
        batch = self.scheduler.schedule(self.now)
        self._take(self.scheduler.take_facts())
        if batch is not None:
            self.runner.launch(batch)
        return batch

    def collect(self) -> bool:
        """Take the oldest result, if there is one."""
        if not self.runner.in_flight:
            return False
        self.now += 0.01
        self._take(self.scheduler.update(self.runner.collect(), self.now))
        return True

    def step(self) -> bool:
        """Launch what may be in flight, and take one result; False if nothing happened."""
        launched = False
        while self.launch() is not None:
            launched = True
        return self.collect() or launched

    def end(self, request_id: RequestId) -> None:
        """The consumer leaves."""
        self.scheduler.end(request_id)
        self.clients.pop(request_id, None)
        assert not self.scheduler.take_facts()

    def stop(self, request_id: RequestId, index: int, num_output_tokens: int) -> None:
        """A stop string matched in an output that the client still waits for."""
        client = self.clients[request_id]
        assert index not in client.endings
        client.endings[index] = None
        del client.outputs[index][num_output_tokens:]
        self.scheduler.stop_matched(request_id, index, num_output_tokens)
        self._take(self.scheduler.take_facts())
        self._settle(client)

    def lose_runner(self) -> None:
        """The runner dies and is replaced."""
        self.runner.die()
        self.scheduler.runner_lost(self.now)
        assert self.scheduler.schedule(self.now) is None
        self._take(self.scheduler.take_facts())
        self.scheduler.runner_restored(self.info, self.runner.incarnation)

    def drain(self, steps_max: int) -> int:
        """Run until every request is over; the number of steps it took."""
        for steps in range(steps_max):
            if not self.scheduler.has_work:
                while self.collect():
                    pass
                assert not self.clients, "a request vanished"
                return steps
            assert self.step(), "work and no step: stuck"
        raise AssertionError(f"{len(self.clients)} requests are not over after {steps_max} steps")

    def check(self) -> None:
        """Everything that must hold now."""
        self.scheduler.check_integrity()
        statistics = self.scheduler.statistics()
        assert statistics.requests_running + statistics.requests_waiting == len(self.clients)
        if not self.clients:
            assert statistics.blocks_used == 0

    # Facts

    def _take(self, facts: list[SchedulerFact]) -> None:
        for fact in facts:
            client = self.clients.get(fact.request_id)
            assert client is not None, f"{fact} about a request that is over"
            match fact:
                case RequestStarted():
                    assert not client.started
                    client.started = True
                    assert 0 <= fact.cached_tokens <= client.request.num_prompt_tokens
                case TokensSampled():
                    self._take_tokens(client, fact)
                case PromptScored():
                    assert not client.scored
                    client.scored = True
                    _check_prompt_scores(client.request, fact.logprobs)
                case RequestFinished():
                    self._take_finish(client, fact)
                case RequestErrored():
                    assert fact.code in ("request_failed", "poison_request"), fact
                    client.errored = True
                    self.num_poisoned += fact.code == "poison_request"
            self._settle(client)

    def _take_tokens(self, client: Client, fact: TokensSampled) -> None:
        assert client.started
        assert fact.index not in client.endings, "tokens after the end"
        tokens = client.outputs[fact.index]
        tokens += fact.token_ids
        assert tuple(tokens) == client.expected[fact.index].tokens[: len(tokens)], fact
        wanted = client.request.sampling.logprobs
        if wanted is None:
            assert fact.logprobs is None
        else:
            assert fact.logprobs is not None
            assert [entry.token_id for entry in fact.logprobs] == list(fact.token_ids)
            assert all(len(entry.top) == min(wanted, VOCAB_SIZE) for entry in fact.logprobs)

    def _take_finish(self, client: Client, fact: RequestFinished) -> None:
        assert fact.index not in client.endings, "ended twice"
        client.endings[fact.index] = fact.reason
        tokens = client.outputs[fact.index]
        assert fact.num_output_tokens == len(tokens)
        if fact.reason is FinishReason.CANCELLED:
            keep = client.request.sampling.keep
            assert keep is not None or client.request.sampling.beam_width is not None
            return
        expected = client.expected[fact.index]
        assert tuple(tokens) == expected.tokens
        assert (fact.reason, fact.stop_reason) == expected.ending

    def _settle(self, client: Client) -> None:
        if client.is_over and client.request.request_id in self.clients:
            del self.clients[client.request.request_id]
            self.finished[client.request.request_id] = client
            sampling = client.request.sampling
            if sampling.prompt_logprobs is not None and not client.errored and client.started:
                assert client.scored or None in client.endings.values()


def _check_prompt_scores(
    request: GenerationRequest, logprobs: tuple[TokenLogprobs | None, ...]
) -> None:
    prompt = list(request.prompt_token_ids)
    hashes = prefix_hashes(prompt)
    assert logprobs[0] is None
    assert list(logprobs[1:]) == [
        prompt_score(before, token) for before, token in zip(hashes, prompt[1:], strict=False)
    ]


def random_sampling(rng: random.Random, *, beams: bool = True) -> SamplingParams:
    """Sampling parameters that use everything the scheduler decides on."""
    max_tokens = rng.choice([1, 2, 5, 9, 20, None])
    beam_width = None
    n = rng.choice([1, 1, 1, 1, 2, 3, 5])
    if beams and rng.random() < 0.1:
        beam_width = rng.randint(n, 5)
        max_tokens = rng.choice([1, 3, 8])
    return SamplingParams(
        n=n,
        keep=rng.randint(1, n) if beam_width is None and rng.random() < 0.3 else None,
        temperature=1.0,
        seed=rng.randrange(1000),
        max_tokens=max_tokens,
        min_tokens=min(rng.choice([0, 0, 3]), max_tokens or 3),
        stop_token_ids=rng.choice([(), (5,)]),
        ignore_eos=rng.random() < 0.5,
        logprobs=rng.choice([None, None, 2]),
        prompt_logprobs=rng.choice([None, None, None, 1]),
        beam_width=beam_width,
        length_penalty=rng.choice([0.0, 1.0]),
    )


def random_prompt(rng: random.Random, longest: int) -> list[int]:
    """A prompt that often shares its start with others."""
    length = rng.randint(1, longest)
    kind = rng.randrange(3)
    return [(position * (kind + 1)) % VOCAB_SIZE for position in range(length - 1)] + [
        rng.randrange(VOCAB_SIZE)
    ]


def random_simulation(rng: random.Random) -> SchedulerSimulation:
    """A small machine of any shape."""
    block_size = rng.choice([1, 2, 4])
    windows = rng.choice(
        [(None,), (None,), (None, 5), (None, 3, 8), (6,), (1, None), (2, None, None)]
    )
    max_model_len = rng.choice([12, 24, 40])
    lone = len(windows) * -(-max_model_len // block_size)
    num_blocks = rng.choice([lone // 2 + 2 * len(windows), lone, 2 * lone, 4 * lone])
    max_num_seqs = rng.choice([1, 3, 8])
    return SchedulerSimulation(
        RunnerInfo(
            num_blocks=num_blocks,
            block_size=block_size,
            groups=tuple(KVGroup(1, window) for window in windows),
            block_bytes=1,
            max_model_len=max_model_len,
            vocab_size=VOCAB_SIZE,
            steps_in_flight=rng.choice([1, 2]),
        ),
        SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + rng.choice([0, 3, 20]),
            long_prefill_token_threshold=rng.choice([0, 0, 4]),
            scheduling_policy=rng.choice(["fcfs", "priority"]),
            ageing_seconds=1.0,
            max_preemptions=rng.choice([0, 2, 16]),
        ),
        prefix_caching=rng.random() < 0.75,
    )


def act(simulation: SchedulerSimulation, rng: random.Random) -> None:
    """One random action."""
    live = list(simulation.clients)
    roll = rng.random()
    if roll < 0.40:
        simulation.launch()
    elif roll < 0.75:
        simulation.collect()
    elif roll < 0.89 and len(live) < 12:
        submit_random(simulation, rng)
    elif roll < 0.93 and live:
        simulation.end(rng.choice(live))
    elif roll < 0.96 and live:
        stop_random(simulation, rng, simulation.clients[rng.choice(live)])
    elif roll < 0.965:
        for _ in range(rng.choice([1, 1, 2, 3])):  # several in a row isolate the suspects
            simulation.lose_runner()
            simulation.launch()
    elif roll < 0.97:
        simulation.scheduler.reset_prefix_cache()
    elif roll < 0.975 and simulation.runner.in_flight:
        batch = simulation.runner.in_flight[-1][0]
        simulation.runner.failing.add(rng.choice(batch.scheduled).sequence_id)


def submit_random(simulation: SchedulerSimulation, rng: random.Random) -> None:
    """A random request, sometimes a resume."""
    longest = simulation.scheduler.max_model_len - 1
    sampling = random_sampling(rng)
    prompt = random_prompt(rng, longest)
    salt = rng.choice([None, None, "a"])
    prefix: tuple[int, ...] = ()
    if sampling.beam_width is None and rng.random() < 0.15:
        whole = reference(
            GenerationRequest(RequestId("whole"), tuple(prompt), sampling, 0.0),
            0,
            simulation.scheduler.max_model_len,
        )
        prefix = whole.tokens[: rng.randint(0, len(whole.tokens))]
    priority = rng.randint(-3, 3)
    simulation.submit(prompt, sampling, priority=priority, prefix=prefix, cache_salt=salt)


def stop_random(simulation: SchedulerSimulation, rng: random.Random, client: Client) -> None:
    """A stop string in tokens that one of the outputs has."""
    open_outputs = [
        index
        for index, tokens in client.outputs.items()
        if index not in client.endings
        and len(tokens) > (len(client.request.prefix) if index == 0 else 0)
    ]
    if open_outputs:
        index = rng.choice(open_outputs)
        count = rng.randint(1, len(client.outputs[index]))
        simulation.stop(client.request.request_id, index, count)
