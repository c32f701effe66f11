"""Three ways to stop a request: a deadline of its own, a scope around it, a break.

Run it: python examples/cancel_with_a_deadline.py
"""

import sys

import trio
import trio.lowlevel

import triolet

PROMPT = "Once upon a time"


async def main(model: str = "demo") -> dict[str, int]:
    """Returns how many KV blocks are still held after each way: none."""
    held: dict[str, int] = {}
    sampling = triolet.SamplingParams(max_tokens=1000, ignore_eos=True, seed=1)
    async with triolet.open_engine(model) as engine:
        # 1. The request's own deadline: its output ends there, as far as it got.
        async with engine.generate(PROMPT, sampling, deadline=1.5) as stream:
            pieces = [delta async for delta in stream]
        print(f"deadline: {pieces[-1].finish_reason}, {stream.usage.completion_tokens} tokens")
        held["deadline"] = await blocks_held(engine)

        # 2. Any cancel scope of trio around it.
        with trio.move_on_after(1.0) as scope:
            async with engine.generate(PROMPT, sampling) as stream:
                async for _ in stream:
                    pass
        print(f"scope: cancelled={scope.cancelled_caught}")
        held["scope"] = await blocks_held(engine)

        # 3. Leaving the block.
        async with engine.generate(PROMPT, sampling) as stream:
            async for _ in stream:
                if stream.usage.completion_tokens >= 5:
                    break
        held["break"] = await blocks_held(engine)
    print(f"KV blocks still held: {held}")
    return held


async def blocks_held(engine: triolet.Engine) -> int:
    """KV blocks that sequences hold, once the engine had its turn."""
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    return engine.statistics().blocks_used


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "demo")
