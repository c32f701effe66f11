"""Loading is strict: what is on disk is what runs, or one sentence says why not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.packed_model import make_ops, prefill_at_once, run_packed
from support.tiny_models import SMALL, build, facts, random_sequences, save
from triolet.config import ModelConfig
from triolet.errors import ConfigError
from triolet.model_source.facts import ModelFacts
from triolet.models import registry
from triolet.models.describe import describe
from triolet.models.loader import load_model
from triolet.models.rope import angle_tables
from triolet.models.spec import DecoderSpec
from triolet_kernels.reference.reference_ops import ReferenceOps

OPS = ReferenceOps(torch.device("cpu"), torch.float32)
LENGTHS = [20, 9]


def load_logits(model: ModelFacts, config: ModelConfig | None = None) -> Tensor:
    loaded = load_model(model, OPS, config or ModelConfig(), lambda _: None)
    sequences = random_sequences(LENGTHS)
    return torch.cat(run_packed(loaded, OPS, sequences, prefill_at_once(LENGTHS)))


def rewritten(directory: Path, saved: ModelFacts, tensors: dict[str, Tensor]) -> ModelFacts:
    save_file(tensors, directory / "model.safetensors")
    return saved


@pytest.fixture
def llama(tmp_path: Path) -> ModelFacts:
    return save(build("llama"), tmp_path)


def test_shards_load_like_one_file(tmp_path: Path) -> None:
    model = build("llama")
    whole = load_logits(save(model, tmp_path / "one"))
    sharded = save(model, tmp_path / "many", max_shard_size="40KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    assert torch.equal(load_logits(sharded), whole)


def test_checkpoint_is_converted_to_the_dtype_of_the_kernels(
    llama: ModelFacts, tmp_path: Path
) -> None:
    wide = load_logits(llama)
    tensors = load_file(tmp_path / "model.safetensors")
    halves = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    converted = load_logits(rewritten(tmp_path, llama, halves))
    assert converted.dtype == torch.float32
    assert not torch.equal(converted, wide)
    torch.testing.assert_close(converted, wide, rtol=0.0, atol=0.1 * float(wide.std()))


def test_tied_head_in_the_checkpoint_is_passed_over(tmp_path: Path) -> None:
    saved = save(build("llama", tie_word_embeddings=True), tmp_path)
    expected = load_logits(saved)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    assert torch.equal(load_logits(rewritten(tmp_path, saved, tensors)), expected)


def test_text_model_of_a_multi_modal_checkpoint_loads(tmp_path: Path) -> None:
    saved = save(build("gemma3_text", head_dim=16, sliding_window=8), tmp_path)
    expected = load_logits(saved)
    tensors = {
        f"language_model.{name}": tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    tensors["vision_tower.patch.weight"] = torch.zeros(2, 2)
    tensors["multi_modal_projector.weight"] = torch.zeros(2, 2)
    config = {**saved.config, "architectures": ["Gemma3ForConditionalGeneration"]}
    assert torch.equal(load_logits(rewritten(tmp_path, facts(tmp_path, config), tensors)), expected)


def with_missing(tensors: dict[str, Tensor]) -> None:
    del tensors["model.layers.1.mlp.down_proj.weight"]


def with_wrong_shape(tensors: dict[str, Tensor]) -> None:
    tensors["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(16, 64)


def with_unused(tensors: dict[str, Tensor]) -> None:
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)


def with_extra_layer(tensors: dict[str, Tensor]) -> None:
    tensors["model.layers.3.input_layernorm.weight"] = torch.zeros(64)


def with_integers(tensors: dict[str, Tensor]) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(torch.int8)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (with_missing, r"no tensor model\.layers\.1\.mlp\.down_proj\.weight"),
        (with_wrong_shape, r"k_proj\.weight has shape \(16, 64\), .* \(32, 64\)"),
        (with_unused, r"does not use: model\.layers\.0\.self_attn\.q_proj\.bias"),
        (with_extra_layer, r"does not use: model\.layers\.3\.input_layernorm\.weight"),
        (with_integers, r"up_proj\.weight is torch\.int8: quantized"),
    ],
)
def test_checkpoint_that_does_not_fit_is_refused_by_tensor(
    damage: Callable[[dict[str, Tensor]], None], message: str, llama: ModelFacts, tmp_path: Path
) -> None:
    tensors = load_file(tmp_path / "model.safetensors")
    damage(tensors)
    with pytest.raises(ConfigError, match=message):
        load_logits(rewritten(tmp_path, llama, tensors))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers is '3'"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of .* 3"),
        ({"hidden_act": "relu2"}, "activation 'relu2' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is set"),
        ({"rope_parameters": {"rope_type": "axial"}}, "rope_type 'axial' is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_type 'linear' needs 'factor'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported for llama"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 3 layers"),
    ],
)
def test_config_that_cannot_be_run_is_refused_by_field(
    fields: dict[str, Any], message: str, llama: ModelFacts, tmp_path: Path
) -> None:
    config = {**llama.config, **fields}
    with pytest.raises(ConfigError, match=message):
        load_logits(facts(tmp_path, config))


def test_dynamic_rope_is_plain_within_the_trained_context(tmp_path: Path) -> None:
    saved = save(build("llama"), tmp_path)
    expected = load_logits(saved)
    config = {
        **saved.config,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    }
    assert torch.equal(load_logits(facts(tmp_path, config)), expected)
    longer = ModelFacts(
        name="longer", directory=tmp_path, architecture="LlamaForCausalLM", config=config,
        vocab_size=97, context_len=512, eos_token_ids=(2,), generation={},
    )  # fmt: skip
    with pytest.raises(ConfigError, match="'dynamic' beyond 256") as caught:
        load_logits(longer)
    assert caught.value.param == "max_model_len"


def test_longrope_takes_the_long_factors_only_for_long_contexts(tmp_path: Path) -> None:
    """max_model_len decides once, so that all cached keys are rotated alike."""
    ropes = {
        "rope_type": "longrope", "rope_theta": 1e4,
        "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
    }  # fmt: skip
    model = build("phi3", rope_parameters=ropes, original_max_position_embeddings=64)
    saved = save(model, tmp_path)
    short = load_logits(saved, ModelConfig(max_model_len=64))
    assert not torch.equal(load_logits(saved, ModelConfig(max_model_len=65)), short)
    oracle = torch.cat(
        [model(input_ids=ids[None], use_cache=False).logits[0] for ids in random_sequences(LENGTHS)]
    )
    torch.testing.assert_close(short, oracle, rtol=1e-4, atol=1e-4)


def test_context_beyond_the_model_is_refused(llama: ModelFacts) -> None:
    with pytest.raises(ConfigError, match=r"max_model_len 300 is beyond .* 256") as caught:
        load_logits(llama, ModelConfig(max_model_len=300))
    assert caught.value.param == "max_model_len"


def test_quantization_that_the_kernels_lack_is_refused(llama: ModelFacts) -> None:
    with pytest.raises(ConfigError, match="'w8a8' is not offered by the reference kernels"):
        load_logits(llama, ModelConfig(quantization="w8a8"))


def test_attention_that_the_kernels_cannot_do_is_refused_at_loading(tmp_path: Path) -> None:
    ops = make_ops("native", torch.float32)
    odd = facts(tmp_path, random_config("llama", "LlamaForCausalLM", head_dim=30), random_seed=0)
    with pytest.raises(ConfigError, match=r"head_dim .* 30; kernels='reference' runs it") as caught:
        load_model(odd, ops, ModelConfig(), lambda _: None)
    assert caught.value.param == "kernels"
    load_logits(odd)


def test_own_decoder_names_what_it_runs_and_the_way_out(tmp_path: Path) -> None:
    other = facts(tmp_path, {"architectures": ["GPTNeoXForCausalLM"]})
    with pytest.raises(ConfigError, match=r"Gemma3ForCausalLM.*transformers"):
        load_logits(other, ModelConfig(model_implementation="triolet"))
    assert "LlamaForCausalLM" in registry.supported()


# version 4 of transformers: what save_pretrained of version 5 wrote, in the older words
V4: dict[str, tuple[str, dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "theta": ("llama", {}, {"rope_theta": 5e3}, ()),
    "llama3": (
        "llama",
        {},
        {
            "rope_theta": 1e4,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            },
        },
        (),
    ),
    "linear by type": (
        "llama", {}, {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}}, ()
    ),
    "phi3 longrope": (
        "phi3",
        {"original_max_position_embeddings": 64},
        {
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            "rope_scaling": {
                "type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 3.0, 4.0]
            },
        },
        (),
    ),
    "gemma3 local base": (
        "gemma3_text",
        {"head_dim": 16, "sliding_window": 8, "num_hidden_layers": 7},
        {
            "rope_theta": 3e5,
            "rope_local_base_freq": 2e3,
            "sliding_window_pattern": 3,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        ("layer_types",),
    ),
    "qwen2 windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
        {"rope_theta": 1e4},
        ("layer_types",),
    ),
    "smollm3 layers": (
        "smollm3", {"num_hidden_layers": 4}, {"rope_theta": 2e6}, ("layer_types", "no_rope_layers")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", V4)
def test_config_of_transformers_4_means_the_same(name: str, tmp_path: Path) -> None:
    """transformers reads the old words itself; we must read them as it does."""
    model_type, fields, old_fields, dropped = V4[name]
    oracle = build(model_type, **fields, **old_fields)
    saved = save(oracle, tmp_path)
    config = {
        key: value
        for key, value in saved.config.items()
        if key not in ("rope_parameters", "dtype", *dropped)
    }
    config.update(torch_dtype="float32", transformers_version="4.50.0", **old_fields)
    (tmp_path / "config.json").write_text(json.dumps(config))
    sequences = random_sequences(LENGTHS)
    oracle_logits = torch.cat(
        [oracle(input_ids=ids[None], use_cache=False).logits[0] for ids in sequences]
    )
    # within the original context: longrope then has its short factors on both sides
    result = load_logits(facts(tmp_path, config), ModelConfig(max_model_len=64))
    torch.testing.assert_close(result, oracle_logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("old_name", ["su", "yarn"])
def test_old_names_of_longrope_mean_it_in_phi3(old_name: str) -> None:
    def spec(kind: str) -> DecoderSpec:
        ropes = {"rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
        config = {**SMALL, "rope_parameters": {"rope_type": kind, **ropes}}
        return describe(registry.need("Phi3ForCausalLM"), config)

    assert spec(old_name).ropes["full_attention"].kind == "longrope"
    assert angle_tables(spec(old_name).ropes["full_attention"], 8, OPS.device)[0].shape == (8, 8)


def random_config(model_type: str, architecture: str, **fields: object) -> dict[str, Any]:
    return {**SMALL, "architectures": [architecture], "model_type": model_type, **fields}


@pytest.mark.parametrize(
    ("model_type", "architecture", "fields"),
    [
        ("llama", "LlamaForCausalLM", {}),
        ("llama", "LlamaForCausalLM", {"tie_word_embeddings": True}),
        ("gemma3_text", "Gemma3ForCausalLM", {"head_dim": 16, "sliding_window": 8}),
        ("olmo2", "Olmo2ForCausalLM", {}),
    ],
)
def test_random_weights_depend_on_the_seed_and_spread_the_logits(
    model_type: str, architecture: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    config = random_config(model_type, architecture, **fields)
    first = load_logits(facts(tmp_path, config, random_seed=1))
    assert torch.equal(load_logits(facts(tmp_path, config, random_seed=1)), first)
    assert not torch.equal(load_logits(facts(tmp_path, config, random_seed=2)), first)
    assert 1.0 < first.std() < 10.0


def test_progress_tells_the_layers(llama: ModelFacts) -> None:
    told: list[str] = []
    load_model(llama, OPS, ModelConfig(), told.append)
    assert told == [f"loading layer {i} of 3" for i in (1, 2, 3)]
