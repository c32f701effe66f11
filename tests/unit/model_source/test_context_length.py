from collections.abc import Mapping
from typing import Any

import pytest

from triolet.model_source.context_length import context_length

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}
PER_LAYER = {
    "full_attention": {"rope_type": "linear", "factor": 8.0},
    "sliding_attention": {"rope_type": "default"},
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 100}, 100),
        ({"n_positions": 100}, 100),
        ({"max_position_embeddings": 100, "seq_length": 50}, 50),
        ({"max_position_embeddings": 100, "rope_scaling": {"type": "linear", "factor": 4.0}}, 400),
        ({"max_position_embeddings": 100, "rope_scaling": {"type": "dynamic", "factor": 2}}, 200),
        ({"max_position_embeddings": 100, "rope_scaling": YARN}, 400),
        ({"max_position_embeddings": 400, "rope_scaling": YARN}, 400),
        ({"max_position_embeddings": 400, "rope_parameters": YARN}, 400),
        ({"max_position_embeddings": 100, "rope_scaling": {"type": "yarn", "factor": 4}}, 400),
        (
            {"max_position_embeddings": 800, "rope_scaling": {"rope_type": "llama3", "factor": 8}},
            800,
        ),
        ({"max_position_embeddings": 800, "rope_scaling": {"type": "longrope", "factor": 8}}, 800),
        ({"max_position_embeddings": 100, "rope_parameters": {"rope_type": "default"}}, 100),
        ({"max_position_embeddings": 100, "rope_parameters": PER_LAYER}, 100),
        (
            {
                "max_position_embeddings": 100,
                "model_type": "gemma3_text",
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            100,
        ),
        ({"max_position_embeddings": 100, "rope_scaling": None}, 100),
        ({}, None),
    ],
)
def test_context_length(config: Mapping[str, Any], expected: int | None) -> None:
    assert context_length(config, {}) == expected


def test_tokenizer_answers_where_config_is_silent() -> None:
    assert context_length({}, {"model_max_length": 512}) == 512
    assert context_length({}, {"model_max_length": 10**30}) is None
    assert context_length({"max_position_embeddings": 100}, {"model_max_length": 50}) == 100
