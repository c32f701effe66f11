"""Settings: what is out of range is refused by name, and what the groups derive."""

from __future__ import annotations

import pytest

from triolet.config import EngineConfig, ModelConfig, ServerConfig
from triolet.errors import ConfigError

GENERATION = {"temperature": 0.6, "top_k": 20, "eos_token_id": 2, "top_p": None}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ModelConfig(), {"temperature": 0.6, "top_k": 20}),
        (ModelConfig(generation_config="none"), {}),
        (
            ModelConfig(override_generation_config={"temperature": 0.1, "min_p": 0.2}),
            {"temperature": 0.1, "top_k": 20, "min_p": 0.2},
        ),
        (
            ModelConfig(generation_config="none", override_generation_config={"top_p": 0.5}),
            {"top_p": 0.5},
        ),
    ],
)
def test_sampling_defaults_are_the_models_and_then_the_operators(
    model: ModelConfig, expected: dict[str, object]
) -> None:
    assert model.sampling_defaults(GENERATION) == expected


@pytest.mark.parametrize(
    ("override", "part"),
    [({"temprature": 0.1}, "a table of temperature"), ({"temperature": 9.0}, "temperature must")],
)
def test_a_default_that_no_request_could_have_is_refused_at_the_start(
    override: dict[str, float], part: str
) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        EngineConfig.of("demo", override_generation_config=override)
    assert caught.value.param == "override_generation_config"


@pytest.mark.parametrize(
    "settings",
    [
        {"root_path": "llm"},
        {"root_path": "/llm/"},
        {"root_path": "/"},
        {"allowed_hosts": ("http://localhost",)},
        {"allowed_hosts": ("",)},
        {"response_role": ""},
        {"log_prompt_chars": -1},
    ],
)
def test_server_settings_out_of_range_are_refused_by_name(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(**settings).check()  # type: ignore[arg-type]  # any setting
    assert caught.value.param == next(iter(settings))
    assert caught.value.param in caught.value.message


def test_settings_within_range_pass() -> None:
    ServerConfig(root_path="/llm", allowed_hosts=("localhost", "::1"), response_role="bot").check()
    EngineConfig.of("demo", override_generation_config={"temperature": 0.0, "top_k": 5.0})
