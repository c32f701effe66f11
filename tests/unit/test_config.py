"""Settings: of the right type and within range, or refused by name."""

import math

import pytest

from triolet.config import EngineConfig, ModelConfig, ServerConfig, setting_owners
from triolet.errors import ConfigError


def test_defaults_are_valid_and_flat_names_reach_their_group() -> None:
    config = EngineConfig.of("demo", max_num_seqs=8, kv_cache_tokens=4096, runner="process")
    assert config.scheduler.max_num_seqs == 8
    assert config.cache.kv_cache_tokens == 4096
    assert config.runner.runner == "process"


def test_a_setting_that_does_not_exist_is_a_type_error_with_a_hint() -> None:
    with pytest.raises(TypeError, match="max_num_seqs"):
        EngineConfig.of("demo", max_num_seq=8)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_model_len", 0),
        ("max_model_len", 1),
        ("max_model_len", 2.5),
        ("threads", 0),
        ("kv_cache_tokens", 0),
        ("kv_cache_memory_bytes", -1),
        ("max_num_seqs", "4"),
        ("max_num_seqs", True),
        ("max_num_seqs", None),
        ("runner", "x"),
        ("dtype", "x"),
        ("kernels", ["native"]),
        ("batch_invariant", "yes"),
        ("batch_invariant", 1),
        ("step_timeout_s", math.inf),
        ("step_timeout_s", 0),
        ("timeout_max_s", -1.0),
        ("logits_processors", {"a": 1}),
        ("logits_processors", "a"),
        ("model", 5),
        ("max_num_batched_tokens", 1),
        ("max_queued_tokens", -1),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(name: str, value: object) -> None:
    settings = {"model": "demo", name: value}
    with pytest.raises(ConfigError, match=name) as caught:
        EngineConfig.of(**settings)  # type: ignore[arg-type] # that is the point
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [("step_timeout_s", 5), ("threads", None), ("logits_processors", {"a": "m:f"})],
)
def test_what_is_meant_is_taken(name: str, value: object) -> None:
    config = EngineConfig.of("demo", **{name: value})
    assert getattr(getattr(config, setting_owners()[name]), name) == value


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
