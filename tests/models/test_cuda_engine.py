"""A whole engine on a device with a queue: the scheduler's side of two steps in flight."""

import random
from pathlib import Path

import pytest
import torch
import trio

from support import queued_backend
from triolet.config import EngineConfig
from triolet.engine.engine import Engine
from triolet.engine.offload import ThreadOffload
from triolet.engine.open_engine import EngineParts, open_engine_from_parts
from triolet.model_source.facts import ModelFacts
from triolet.runner.transport import ThreadTransport
from triolet.runner.worker import WorkerSpec
from triolet.sampling_params import SamplingParams
from triolet.tokenizer.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
FACTS = ModelFacts(
    name="tiny",
    directory=Path("nowhere"),
    architecture="TinyCausalLM",
    config={},
    vocab_size=TOKENIZER.vocab_size,
    context_len=128,
    eos_token_ids=TOKENIZER.eos_token_ids,
    generation={},
)


def work(count: int) -> list[tuple[str, SamplingParams]]:
    rng = random.Random(0)
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 0.0, "frequency_penalty": 0.7},
        {"temperature": 1.0, "min_tokens": 6},
    ]
    return [
        (
            "".join(rng.choice("abcdef ") for _ in range(rng.randrange(1, 70))),
            SamplingParams(seed=i, max_tokens=rng.randrange(6, 25), **rng.choice(kinds)),  # type: ignore[arg-type]  # by name
        )
        for i in range(count)
    ]


async def texts(*, queued: bool, count: int = 12) -> list[str]:
    """What the engine answers to all at once; some leave early on the way."""
    config = EngineConfig.of(
        "tiny", device="cpu", dtype="float32", kernels="reference", threads=1, block_size=8,
        kv_cache_tokens=512, max_num_seqs=6, max_num_batched_tokens=24, max_model_len=100,
    )  # fmt: skip
    spec = WorkerSpec(
        config, FACTS, backend="support.queued_backend:make", options={"queued": queued}
    )
    parts = EngineParts(
        facts=FACTS, tokenizer=TOKENIZER, transport=ThreadTransport(spec),
        offload=ThreadOffload(1), rng=random.Random(0), id_prefix="test", secret=b"test",
    )  # fmt: skip
    out = [""] * count

    async def one(engine: Engine, index: int, prompt: str, sampling: SamplingParams) -> None:
        async with engine.generate(prompt, sampling) as stream:
            out[index] = await stream.text()

    async def leave(engine: Engine) -> None:
        with trio.move_on_after(0.03):
            async with engine.generate("to leave " * 4, SamplingParams(max_tokens=60)) as stream:
                await stream.text()

    async with open_engine_from_parts(config, parts) as engine:
        assert engine.info.steps_in_flight == (2 if queued else 1)
        async with trio.open_nursery() as nursery:
            for index, (prompt, sampling) in enumerate(work(count)):
                nursery.start_soon(one, engine, index, prompt, sampling)
                if index % 4 == 0:
                    nursery.start_soon(leave, engine)
        with trio.fail_after(5):
            while engine.statistics().blocks_used:
                await trio.sleep(0.005)
    return out


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.set_num_threads(1)
    queued_backend.reset()


@pytest.mark.slow
async def test_answers_are_those_of_the_cpu() -> None:
    expected = await texts(queued=False)
    assert await texts(queued=True) == expected
    (queue,) = queued_backend.QUEUES
    assert queue.replays > 10


@pytest.mark.slow
async def test_memory_that_runs_out_in_a_step_costs_a_pause_and_no_request() -> None:
    """The runner dies and comes back with as many blocks, without measuring memory again."""
    expected = await texts(queued=False)
    queued_backend.reset(40)
    assert await texts(queued=True) == expected
    first, second = queued_backend.QUEUES
    assert first.closed
    assert (first.measured, second.measured) == (1, 0)
