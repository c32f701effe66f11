import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from triolet.cli.summary import curl_command, engine_summary, ready_line
from triolet.config import EngineConfig, ServerConfig
from triolet.messages.runner_to_scheduler import KVGroup, RunnerInfo
from triolet.model_source.facts import ModelFacts

URL = "http://127.0.0.1:8000"


def facts(chat_template: str | None = "{{ messages }}") -> ModelFacts:
    return ModelFacts(
        name="it's a model",
        directory=Path(),
        architecture="LlamaForCausalLM",
        config={},
        vocab_size=10,
        context_len=100,
        eos_token_ids=(),
        generation={},
        chat_template=chat_template,
    )


def request(command: str) -> tuple[list[str], dict[str, Any]]:
    """Words of a curl command, and its body."""
    words = shlex.split(command)
    return words, json.loads(words[words.index("-d") + 1])


def test_pasted_command_is_a_chat_request() -> None:
    words, body = request(curl_command(URL, facts(), ServerConfig()))
    assert words[:2] == ["curl", f"{URL}/v1/chat/completions"]
    assert body["model"] == "it's a model"
    assert body["messages"][0]["role"] == "user"
    assert "authorization" not in " ".join(words)


def test_model_without_template_is_asked_to_complete() -> None:
    words, body = request(curl_command(URL, facts(None), ServerConfig()))
    assert words[1] == f"{URL}/v1/completions"
    assert isinstance(body["prompt"], str)


@pytest.mark.parametrize(
    "server", [ServerConfig(api_keys=("k",)), ServerConfig(api_keys_file=Path("f"))]
)
def test_key_is_asked_for_and_not_printed(server: ServerConfig) -> None:
    words, _ = request(curl_command(URL, facts(), server))
    assert "authorization: Bearer YOUR_KEY" in words


def test_served_name_and_unix_socket() -> None:
    server = ServerConfig(served_model_name=("first", "second"), uds=Path("/run/a b.sock"))
    words, body = request(curl_command("unix:/run/a b.sock", facts(), server))
    assert body["model"] == "first"
    assert words[:4] == [
        "curl", "--unix-socket", "/run/a b.sock", "http://localhost/v1/chat/completions",
    ]  # fmt: skip


def test_summary_counts_the_room_for_context() -> None:
    """Two groups of layers need two blocks for the same 16 tokens."""
    groups = (KVGroup(num_layers=3, window=None), KVGroup(num_layers=3, window=512))
    info = RunnerInfo(
        num_blocks=100,
        block_size=16,
        groups=groups,
        block_bytes=1024,
        max_model_len=64,
        vocab_size=10,
        description="llama decoder, 2 threads",
    )
    text = "\n".join(engine_summary(EngineConfig(), facts(), info))
    assert "LlamaForCausalLM" in text
    assert "llama decoder, 2 threads" in text
    assert "800 tokens of context, in KV blocks of 16" in text
    assert "64 sequences and 1024 tokens in a step" in text


def test_ready_line_ends_with_the_url() -> None:
    assert ready_line(URL, facts()).endswith(f" {URL}")
