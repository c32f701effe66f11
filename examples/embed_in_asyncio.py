"""The engine inside an asyncio program, by trio's guest mode.

asyncio stays in charge of the thread; trio runs as its guest, and the two talk through a
queue. Run it: python examples/embed_in_asyncio.py
"""

import asyncio
import sys

import trio

import triolet


async def produce(model: str, prompt: str, texts: "asyncio.Queue[str | None]") -> None:
    """In trio: open the engine, put pieces of text into the queue, then None."""
    try:
        async with triolet.open_engine(model) as engine:
            sampling = triolet.SamplingParams(temperature=0.0, max_tokens=16)
            async with engine.generate(prompt, sampling) as stream:
                async for delta in stream:
                    texts.put_nowait(delta.text)  # same thread: no lock is needed
    finally:
        texts.put_nowait(None)


async def main(model: str = "demo") -> str:
    """In asyncio: start trio as a guest and read what it produces."""
    loop = asyncio.get_running_loop()
    texts: asyncio.Queue[str | None] = asyncio.Queue()
    ended: asyncio.Future[None] = loop.create_future()

    def on_end(outcome: object) -> None:
        ended.set_result(None)

    trio.lowlevel.start_guest_run(
        produce,
        model,
        "The capital of France is",
        texts,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        done_callback=on_end,
        host_uses_signal_set_wakeup_fd=True,
    )
    pieces: list[str] = []
    while (text := await texts.get()) is not None:
        pieces.append(text)
        print(text, end="", flush=True)
    await ended
    print()
    return "".join(pieces)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
