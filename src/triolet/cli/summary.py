"""What was chosen at the start, in a few lines for people."""

from __future__ import annotations

import json
import shlex

from triolet.config import EngineConfig, ServerConfig
from triolet.engine.client import RunnerInfo
from triolet.model_source.facts import ModelFacts


def engine_summary(config: EngineConfig, facts: ModelFacts, info: RunnerInfo) -> list[str]:
    """Model, device, memory and limits of an engine that has been opened."""
    tokens = info.num_blocks * info.block_size // len(info.groups)
    scheduler = config.scheduler
    step = f"{scheduler.max_num_seqs} sequences and {scheduler.max_num_batched_tokens} tokens"
    return [
        f"model   {facts.name}, {facts.architecture}",
        f"runner  {info.description}",
        f"room    {tokens} tokens of context, in KV blocks of {info.block_size} tokens",
        f"limits  {step} in a step, {scheduler.max_live_requests} requests at once",
    ]


def ready_line(url: str, facts: ModelFacts) -> str:
    """The one line that says that requests are taken."""
    return f"triolet serves {facts.name} on {url}"


def curl_command(url: str, facts: ModelFacts, server: ServerConfig) -> str:
    """A request to paste into a shell; greedy, so that everybody sees the same answer."""
    model = server.served_model_name[0] if server.served_model_name else facts.name
    question = "What is the capital of France?"
    if facts.chat_template is not None:
        path = "/v1/chat/completions"
        body: dict[str, object] = {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": 32,
        }
    else:
        path = "/v1/completions"
        body = {"model": model, "prompt": "The capital of France is", "max_tokens": 16}
    words = ["curl"]
    if server.uds is not None:
        words += ["--unix-socket", str(server.uds)]
        url = "http://localhost"
    words += [url + path, "-H", "content-type: application/json"]
    if server.api_keys or server.api_keys_file is not None:
        words += ["-H", "authorization: Bearer YOUR_KEY"]
    return shlex.join([*words, "-d", json.dumps(body)])
