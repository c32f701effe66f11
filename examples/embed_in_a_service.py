"""The engine inside another trio program: a line-based TCP service that answers prompts.

Run it:      python examples/embed_in_a_service.py
Talk to it:  printf 'The capital of France is\n' | nc 127.0.0.1 7000

Every connection is a task, every prompt a scope in it: a peer that hangs up takes its request
with it, and leaving the program leaves nothing behind.
"""

import sys
from functools import partial

import trio

import triolet


async def answer(engine: triolet.Engine, connection: trio.SocketStream) -> None:
    """Serve one connection: a prompt per line, its continuation streamed back."""
    rest = b""
    async for data in connection:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            sampling = triolet.SamplingParams(temperature=0.0, max_tokens=24)
            try:
                async with engine.generate(line.decode(), sampling, deadline=60) as stream:
                    async for delta in stream:
                        await connection.send_all(delta.text.encode())
            except triolet.TrioletError as error:
                await connection.send_all(f"error: {error}".encode())
            await connection.send_all(b"\n")


async def serve(
    model: str = "demo",
    port: int = 7000,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Open the engine and serve until cancelled; reports the port once it listens."""
    async with triolet.open_engine(model) as engine, trio.open_nursery() as nursery:
        listeners = await nursery.start(
            partial(trio.serve_tcp, partial(answer, engine), port, host="127.0.0.1")
        )
        bound = listeners[0].socket.getsockname()[1]
        print(f"answering on 127.0.0.1:{bound}")
        task_status.started(bound)


if __name__ == "__main__":
    trio.run(serve, sys.argv[1] if len(sys.argv) > 1 else "demo")
