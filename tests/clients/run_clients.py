"""Client libraries, unmodified, against a running server with any model.

make clients URL=http://127.0.0.1:8000

Not collected by pytest: the libraries live in an environment of their own. What they ask is
forced by a grammar, so that a model with random weights answers as well as any.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network

import instructor
import litellm
import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

BASE = sys.argv[1].rstrip("/") + "/v1"
KEY = "none"
CLIENT = openai.OpenAI(base_url=BASE, api_key=KEY)
MODEL = CLIENT.models.list().data[0].id
ASK: list[dict[str, Any]] = [{"role": "user", "content": "Which letter, which number?"}]


class Answer(BaseModel):
    """A letter and a number; without more fields, of which random weights would make many."""

    model_config = ConfigDict(extra="forbid")
    letter: Literal["a", "b"]
    number: int = Field(ge=1, le=9)


def langchain() -> None:
    model: Any = ChatOpenAI(base_url=BASE, api_key=KEY, model=MODEL, max_tokens=400, seed=1)
    whole = model.invoke("hi")
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(str(chunk.content) for chunk in model.stream("hi")) == whole.content
    for method in ("json_schema", "function_calling"):
        answer = model.with_structured_output(Answer, method=method).invoke("Which?")
        assert isinstance(answer, Answer)
    called = model.bind_tools([Answer], tool_choice="required").invoke("Which?")
    Answer(**called.tool_calls[0]["args"])


def litellm_clients() -> None:
    litellm.telemetry = False
    for provider in ("openai", "hosted_vllm"):
        common: dict[str, Any] = {
            "model": f"{provider}/{MODEL}", "api_base": BASE, "api_key": KEY, "max_tokens": 16,
            "messages": ASK, "seed": 1,
        }  # fmt: skip
        whole: Any = litellm.completion(**common)
        text = ""
        for chunk in litellm.completion(**common, stream=True):
            text += chunk.choices[0].delta.content or ""
        assert text == whole.choices[0].message.content
    response: Any = litellm.responses(
        model=f"openai/{MODEL}", input="hi", api_base=BASE, api_key=KEY, max_output_tokens=16
    )
    assert response.usage.output_tokens > 0


def instructor_modes() -> None:
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client: Any = instructor.from_openai(CLIENT, mode=mode)
        answer = client.chat.completions.create(
            model=MODEL, messages=ASK, response_model=Answer, max_retries=0, max_tokens=400
        )
        assert isinstance(answer, Answer)


def pydantic_ai() -> None:
    provider = OpenAIProvider(base_url=BASE, api_key=KEY)
    for model in (OpenAIChatModel, OpenAIResponsesModel):
        agent: Any = Agent(
            model(MODEL, provider=provider),
            output_type=Answer,
            model_settings={"max_tokens": 400},
            retries=0,
        )
        assert isinstance(agent.run_sync("Which?").output, Answer)


def llm_command() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = f"- model_id: own\n  model_name: {MODEL}\n  api_base: {BASE}\n"
        (Path(folder) / "extra-openai-models.yaml").write_text(settings)
        program = str(Path(sys.executable).parent / "llm")
        command = [program, "-m", "own", "hi", "-o", "max_tokens", "8"]
        environment = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": KEY}
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
        assert done.stdout.strip()


CLIENTS: dict[str, Callable[[], None]] = {
    "langchain-openai": langchain,
    "litellm": litellm_clients,
    "instructor": instructor_modes,
    "pydantic-ai-slim": pydantic_ai,
    "llm": llm_command,
}


def main() -> int:
    """Run each and say how it went."""
    failed = 0
    for name, run in CLIENTS.items():
        try:
            run()
            outcome = "ok"
        except Exception as error:  # the next one is run, too
            outcome = f"FAILED: {type(error).__name__}: {str(error)[:300]}"
            failed += 1
        sys.stdout.write(f"{name} {version(name)}: {outcome}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
