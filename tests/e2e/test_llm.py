"""`LLM`: synchronous, in a script, a thread, a running loop; and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import trio

import triolet
from triolet.errors import ConfigError, InvalidRequest, NotServing

pytestmark = pytest.mark.slow

GREEDY = triolet.SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[triolet.LLM]:
    with triolet.LLM("tiny-random") as llm:
        yield llm


def test_outputs_are_in_the_order_of_the_prompts(llm: triolet.LLM) -> None:
    prompts = [[40 + i, 50, 60] for i in range(20)]
    together = llm.generate(prompts, GREEDY, progress=False)
    assert [list(output.prompt_token_ids) for output in together] == prompts
    assert all(output.usage.completion_tokens == 8 for output in together)
    alone = llm.generate(prompts[7], GREEDY, progress=False)
    assert alone[0].outputs[0].token_ids == together[7].outputs[0].token_ids


def test_parameters_can_be_given_for_each_prompt(llm: triolet.LLM) -> None:
    each = [triolet.SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (1, 5)]
    outputs = llm.generate(["a", "b"], each, priority=[0, 0], progress=False)
    assert [output.usage.completion_tokens for output in outputs] == [1, 5]
    with pytest.raises(InvalidRequest, match="2 prompts"):
        llm.generate(["a", "b"], [GREEDY], progress=False)


def test_chat_and_several_outputs(llm: triolet.LLM) -> None:
    sampling = triolet.SamplingParams(n=3, seed=1, max_tokens=6, ignore_eos=True)
    (output,) = llm.chat([{"role": "user", "content": "hi"}], sampling, progress=False)
    assert [o.index for o in output.outputs] == [0, 1, 2]
    assert len({o.token_ids for o in output.outputs}) == 3


def test_beams_come_best_first(llm: triolet.LLM) -> None:
    (output,) = llm.beam_search("hello", beam_width=3, max_tokens=5, progress=False)
    assert len(output.outputs) == 3
    assert len({o.token_ids for o in output.outputs}) == 3


def test_enqueued_requests_are_collected(llm: triolet.LLM) -> None:
    ids = llm.enqueue(["a", "b", "c"], GREEDY)
    outputs = llm.wait(ids[1:])
    assert [output.prompt for output in outputs] == ["b", "c"]
    assert [output.prompt for output in llm.wait()] == ["a"]
    with pytest.raises(KeyError):
        llm.wait(ids)


def test_waiting_loses_no_result(llm: triolet.LLM) -> None:
    mixed: list[str | list[int]] = ["a", [10**6], "b"]
    ids = llm.enqueue(mixed, GREEDY)
    with pytest.raises(KeyError):
        llm.wait([ids[0], 12345])
    with pytest.raises(InvalidRequest):
        llm.wait()
    assert [output.prompt for output in llm.wait()] == ["a", "b"]
    assert llm.wait() == []


def test_more_requests_than_the_engine_admits_wait_for_room() -> None:
    with triolet.LLM("tiny-random", max_live_requests=4, kv_cache_tokens=4096) as small:
        one = triolet.SamplingParams(max_tokens=1)
        assert len(small.generate(["a"] * 20, one, progress=False)) == 20
        assert len(small.wait(small.enqueue(["a"] * 20, one))) == 20


def test_one_bad_prompt_fails_the_call_and_the_next_call_works(llm: triolet.LLM) -> None:
    with pytest.raises(InvalidRequest, match="vocabulary"):
        llm.generate([[40], [10**7], [41]], GREEDY, progress=False)
    assert llm.statistics().requests_live == 0
    assert len(llm.generate("x", GREEDY, progress=False)) == 1


def test_it_works_inside_running_loops_and_threads(llm: triolet.LLM) -> None:
    async def in_asyncio() -> int:
        return len(llm.generate("x", GREEDY, progress=False))

    async def in_trio() -> int:
        return len(llm.generate("x", GREEDY, progress=False))

    assert asyncio.run(in_asyncio()) == 1
    assert trio.run(in_trio) == 1
    results: list[int] = []
    thread = threading.Thread(
        target=lambda: results.append(len(llm.generate("x", GREEDY, progress=False)))
    )
    thread.start()
    thread.join()
    assert results == [1]


FORK = """
import os, sys, triolet
llm = triolet.LLM("tiny-random", kv_cache_tokens=4096)
pid = os.fork()
if pid == 0:
    try:
        llm.generate("x", progress=False)
    except triolet.NotServing as error:
        print("child:", error, flush=True)
    sys.exit(0)
os.waitpid(pid, 0)
print("parent:", len(llm.generate("x", triolet.SamplingParams(max_tokens=2), progress=False)))
llm.close()
"""


def test_a_forked_child_is_told_and_its_parent_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", FORK],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "child: this LLM was opened by the process that forked" in done.stdout
    assert done.stdout.endswith("parent: 1\n")


def test_a_closed_llm_says_so_and_closing_twice_is_fine() -> None:
    llm = triolet.LLM("tiny-random")
    llm.close()
    llm.close()
    with pytest.raises(NotServing):
        llm.generate("x", GREEDY, progress=False)


def test_errors_of_opening_come_out_as_they_are() -> None:
    with pytest.raises(ConfigError):
        triolet.LLM("/no/such/model")
    with pytest.raises(TypeError, match="max_num_seqs"):
        triolet.LLM("tiny-random", max_num_seq=3)


def test_a_dropped_one_is_closed_with_a_warning() -> None:
    def ours() -> int:
        return sum(t.name.startswith("triolet") for t in threading.enumerate())

    before = ours()
    llm = triolet.LLM("tiny-random")
    assert ours() == before + 2
    with pytest.warns(ResourceWarning, match="close"):
        del llm
    assert ours() == before


def test_ten_rounds_leave_threads_files_and_memory_flat() -> None:
    def resident_kib() -> int:
        with open("/proc/self/status") as status:
            return next(int(row.split()[1]) for row in status if row.startswith("VmRSS"))

    rows = []
    for _ in range(10):
        with triolet.LLM("tiny-random", kv_cache_tokens=4096) as llm:
            llm.generate("hello", GREEDY, progress=False)
        rows.append((threading.active_count(), len(os.listdir("/proc/self/fd")), resident_kib()))
    threads, fds, memory = zip(*rows[2:], strict=True)
    assert threads[-1] <= threads[0]  # trio's own idle threads end some time later
    assert len(set(fds)) == 1
    assert memory[-1] - memory[0] < 16 << 10


SCRIPT = """
import triolet
llm = triolet.LLM("tiny-random")
print(len(llm.generate("x", triolet.SamplingParams(max_tokens=2), progress=False)))
"""


def test_a_script_that_forgets_to_close_ends_well() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"
    assert "ResourceWarning" in done.stderr
