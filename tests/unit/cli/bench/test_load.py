import trio
from trio.testing import MockClock

from triolet.cli.bench.load import closed_loop, open_loop
from triolet.cli.bench.records import RequestRecord
from triolet.cli.bench.workload import BenchRequest


class SlowTarget:
    """Answers after as many seconds as tokens are asked for."""

    def __init__(self) -> None:
        self.open = 0
        self.most = 0

    async def ask(self, request: BenchRequest) -> RequestRecord:
        start_s = trio.current_time()
        self.open += 1
        self.most = max(self.most, self.open)
        await trio.sleep(request.max_tokens)
        self.open -= 1
        return RequestRecord(
            start_s=start_s, end_s=trio.current_time(), wanted_tokens=request.max_tokens
        )


def requests(*lengths: int) -> list[BenchRequest]:
    return [BenchRequest("", None, length) for length in lengths]


async def test_closed_loop_keeps_so_many_open(autojump_clock: MockClock) -> None:
    target = SlowTarget()
    records = await closed_loop(target, requests(3, 1, 1, 1, 4), 2)
    assert target.most == 2
    assert [record.wanted_tokens for record in records] == [3, 1, 1, 1, 4]
    assert trio.current_time() - records[0].start_s == 7


async def test_closed_loop_of_nothing_returns(autojump_clock: MockClock) -> None:
    assert await closed_loop(SlowTarget(), [], 4) == []


async def test_open_loop_does_not_wait_for_answers(autojump_clock: MockClock) -> None:
    target = SlowTarget()
    records = await open_loop(target, requests(10, 10, 10), [0.0, 1.0, 2.0])
    assert target.most == 3
    assert [record.start_s - records[0].start_s for record in records] == [0, 1, 2]
    assert all(record.end_s - record.start_s == 10 for record in records)


async def test_wait_for_a_place_in_an_open_loop_counts(autojump_clock: MockClock) -> None:
    records = await open_loop(SlowTarget(), requests(10, 10), [0.0, 1.0], concurrency=1)
    assert records[1].start_s - records[0].start_s == 1
    assert records[1].end_s - records[1].start_s == 19
