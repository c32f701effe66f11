"""The wire: request bodies in, OpenAI-shaped JSON and SSE out. Pure: no I/O, no clock, no trio.

Bytes -> `json_body` -> `converter` -> a request dataclass -> `sampling` -> SamplingParams;
OutputDelta -> `chat_answer` or `completion_answer` -> bytes.
"""
