"""Clients that leave at random moments: what they were doing, and how soon their blocks are free.

    python tests/bench/bench_leaving.py [MODEL] [--clients 500]

Starts `triolet serve` on loopback, lets clients close their sockets (FIN or RST, streaming or
not, n of 1 or 3) at random moments, and asks /debug/tree what each was doing just before and when
it is gone. In the end the gauges must be exactly 0, and a request that needs most of the pool must
be served.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import re
import socket
import statistics
import struct
import subprocess
import sys

import trio

POOL_TOKENS = 4096


def head(method: str, path: str, body: bytes, label: str) -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: {label}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


class Asker:
    """One kept connection that asks for JSON or text."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stream: trio.SocketStream | None = None
        self._lock = trio.Lock()

    async def get(self, path: str) -> bytes:
        async with self._lock:
            if self._stream is None:
                self._stream = await trio.open_tcp_stream("127.0.0.1", self._port)
            await self._stream.send_all(head("GET", path, b"", "asker"))
            data = b""
            while b"\r\n\r\n" not in data:
                data += await self._stream.receive_some()
            header, body = data.split(b"\r\n\r\n", 1)
            match = re.search(rb"content-length: (\d+)", header.lower())
            assert match, header
            while len(body) < int(match[1]):
                body += await self._stream.receive_some()
            return body

    async def requests(self) -> dict[str, dict[str, object]]:
        tree = json.loads(await self.get("/debug/tree"))
        return {r["label"]: r for r in tree["engine"]["tree"]["requests"]}

    async def steps(self) -> int:
        return int(json.loads(await self.get("/debug/tree"))["engine"]["steps"])


async def client(
    port: int, asker: Asker, number: int, rng: random.Random, seen: collections.Counter[str],
    waits: list[float], steps: list[int],
) -> None:  # fmt: skip
    label = f"leaver-{number}"
    stream, n = rng.random() < 0.6, rng.choice([1, 1, 1, 3])
    body = json.dumps(
        {
            "prompt": " ".join(rng.choices(["alpha", "beta", "gamma", "delta"], k=rng.randint(5, 250))),
            "max_tokens": rng.randint(50, 400), "stream": stream, "n": n, "ignore_eos": True,
            "temperature": rng.choice([0.0, 1.0]),
        }
    ).encode()  # fmt: skip
    sock = trio.socket.socket()
    await sock.connect(("127.0.0.1", port))
    await sock.send(head("POST", "/v1/completions", body, label))
    await trio.sleep(rng.expovariate(1 / 1.0))
    before = (await asker.requests()).get(label)
    state = "gone" if before is None else str(before["phase"])
    seen[f"{state}, {'stream' if stream else 'whole'}, n={n}"] += 1
    if rng.random() < 0.5:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    step, start = await asker.steps(), trio.current_time()
    sock.close()
    if before is None:
        return
    while label in await asker.requests():
        await trio.sleep(0.001)
    waits.append(trio.current_time() - start)
    steps.append(await asker.steps() - step)


async def main(arguments: argparse.Namespace) -> None:
    command = [
        sys.executable, "-m", "triolet", "serve", arguments.model, "--port", "0",
        "--kv-cache-tokens", str(POOL_TOKENS), "--max-model-len", str(POOL_TOKENS // 2),
        "--max-num-seqs", "16",
    ]  # fmt: skip
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        port = 0
        while not port:
            line = await trio.to_thread.run_sync(server.stdout.readline)
            assert line, "the server did not start"
            if match := re.search(r"serves .* on http://127.0.0.1:(\d+)", line):
                port = int(match[1])
        await measure(port, arguments)
    finally:
        server.terminate()
        print("exit status", server.wait(), flush=True)


async def measure(port: int, arguments: argparse.Namespace) -> None:
    asker, rng = Asker(port), random.Random(arguments.seed)
    seen: collections.Counter[str] = collections.Counter()
    waits: list[float] = []
    steps: list[int] = []
    highest = 0
    async with trio.open_nursery() as nursery:
        for number in range(arguments.clients):
            nursery.start_soon(
                client, port, asker, number, random.Random(rng.random()), seen, waits, steps
            )
            await trio.sleep(rng.expovariate(arguments.rate))
            if number % 20 == 0:
                text = (await asker.get("/metrics")).decode()
                running = re.search(r"num_requests_running\{.*\} (\S+)", text)
                assert running
                highest = max(highest, int(float(running[1])))
    print("left while:")
    for state, count in sorted(seen.items()):
        print(f"  {count:4}  {state}")
    waits.sort()
    steps.sort()
    p99 = int(len(waits) * 0.99)
    print(
        f"close to gone: p50 {statistics.median(waits) * 1e3:.1f} ms, "
        f"p99 {waits[p99] * 1e3:.1f} ms; steps ended meanwhile: "
        f"p50 {statistics.median(steps):.0f}, p99 {steps[p99]}, max {steps[-1]}"
    )
    tree = json.loads(await asker.get("/debug/tree"))["engine"]
    print(
        f"running at most {highest}; now running {tree['requests_running']}, waiting "
        f"{tree['requests_waiting']}, live {tree['requests_live']}, blocks {tree['blocks_used']}"
    )
    assert highest > 0
    left = [
        tree[k] for k in ("requests_running", "requests_waiting", "requests_live", "blocks_used")
    ]
    assert left == [0, 0, 0, 0], left
    body = json.dumps({"prompt": [5] * (POOL_TOKENS // 2 - 40), "max_tokens": 8, "n": 1}).encode()
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    await stream.send_all(head("POST", "/v1/completions", body, "last"))
    reply = await stream.receive_some()
    print("a request for half the pool:", reply.split(b"\r\n")[0].decode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="tiny-random")
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--rate", type=float, default=20.0, help="clients per second")
    parser.add_argument("--seed", type=int, default=1)
    trio.run(main, parser.parse_args())
