"""A model's directory on disk -> `ModelFacts`, read from its small files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from triolet.config import ModelConfig
from triolet.errors import ConfigError, InvalidRequest
from triolet.model_source.context_length import context_length
from triolet.model_source.facts import ModelFacts
from triolet.model_source.json_file import read_json_object
from triolet.model_source.weights import check_weights
from triolet.sampling_params import SamplingParams

GENERATION_DEFAULTS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Key of generation_config.json -> field of `SamplingParams`: the ones that vLLM takes over
(vllm/config/model.py, get_diff_sampling_param)."""


def describe(
    directory: Path, *, name: str, model: ModelConfig, random_seed: int | None = None
) -> ModelFacts:
    """The facts of the model in a directory.

    Args:
        directory: Holds config.json, tokenizer.json and, without a seed, safetensors.
        name: What the model is called in answers.
        model: The operator's settings: template, generation_config, max_model_len.
        random_seed: The weights are drawn from this seed; none are looked for.

    Raises:
        ConfigError: A file is missing or broken, or says what cannot be served.
    """
    if not (directory / "config.json").is_file():
        raise ConfigError(
            f"{directory} has no config.json: it is not a model directory of Hugging Face's "
            "layout; name one that is, or a GGUF file",
            param="model",
        )
    raw = read_json_object(directory / "config.json")
    architecture = _architecture(raw, directory)
    _check_quantization(raw, directory)
    text_part: Any = raw.get("text_config")
    config = cast("dict[str, Any]", text_part) if isinstance(text_part, dict) else raw
    tokenizer_config = _optional(directory / "tokenizer_config.json")
    generation_config = _optional(directory / "generation_config.json")
    known_ids = _tokenizer_ids(directory)
    vocab_size = min(_rows(config, directory), 1 + max(known_ids.values()))
    eos_token_ids = _eos_token_ids(generation_config, raw, config, tokenizer_config, known_ids)
    if random_seed is None:
        check_weights(directory)
    return ModelFacts(
        name=name,
        directory=directory,
        architecture=architecture,
        config=config,
        vocab_size=vocab_size,
        context_len=_context(config, tokenizer_config, model, directory),
        eos_token_ids=tuple(i for i in eos_token_ids if i < vocab_size),
        generation=_generation(generation_config, model, directory),
        chat_template=_chat_template(directory, tokenizer_config, model),
        random_seed=random_seed,
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _architecture(config: Mapping[str, Any], directory: Path) -> str:
    names: Any = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ConfigError(
            f"{directory / 'config.json'} names no architecture; "
            'a causal language model has one, such as "architectures": ["LlamaForCausalLM"]',
            param="model",
        )
    if config.get("is_encoder_decoder"):
        raise ConfigError(
            f"{names[0]} in {directory} is an encoder-decoder model; "
            "triolet serves decoder-only language models",
            param="model",
        )
    return names[0]


def _check_quantization(config: Mapping[str, Any], directory: Path) -> None:
    quantization: Any = config.get("quantization_config")
    if quantization:
        method = cast("Mapping[str, Any]", quantization).get("quant_method", "an unknown method")
        raise ConfigError(
            f"the weights in {directory} are quantized with {method}, which triolet does not "
            "read; take the unquantized model, with --quantization if it has to be small",
            param="model",
        )


def _rows(config: Mapping[str, Any], directory: Path) -> int:
    rows: Any = config.get("vocab_size")
    if not isinstance(rows, int) or rows < 1:
        raise ConfigError(f"{directory / 'config.json'} gives no vocab_size", param="model")
    return rows


def _tokenizer_ids(directory: Path) -> dict[str, int]:
    """Token -> id, added tokens included, from tokenizer.json."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(
            f"{directory} has no tokenizer.json; make one with transformers: "
            "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
            param="model",
        )
    content = read_json_object(path)
    ids: dict[str, int] = {}
    try:
        vocab: Any = content["model"]["vocab"]
        if isinstance(vocab, dict):
            ids.update(cast("dict[str, int]", vocab))
        else:  # Unigram: a list of (token, score)
            ids.update({token: index for index, (token, _score) in enumerate(vocab)})
        ids.update({added["content"]: added["id"] for added in content.get("added_tokens") or ()})
        if not ids or min(ids.values()) < 0:
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} is not a tokenizer of the tokenizers library; fetch the model again",
            param="model",
        ) from error
    return ids


def _eos_token_ids(
    generation_config: Mapping[str, Any],
    raw: Mapping[str, Any],
    config: Mapping[str, Any],
    tokenizer_config: Mapping[str, Any],
    known_ids: Mapping[str, int],
) -> tuple[int, ...]:
    """Union of what the files name, in order; the tokenizer is asked if they name none."""
    found: dict[int, None] = {}
    for source in (generation_config, raw, config):
        value: Any = source.get("eos_token_id")
        token_ids: list[Any] = value if isinstance(value, list) else [value]
        for token_id in token_ids:
            if isinstance(token_id, int) and token_id >= 0:
                found[token_id] = None
    if not found:
        token: Any = tokenizer_config.get("eos_token")
        content: Any = (
            cast("dict[str, Any]", token).get("content") if isinstance(token, dict) else token
        )
        if content in known_ids:
            found[known_ids[content]] = None
    return tuple(found)


def _context(
    config: Mapping[str, Any],
    tokenizer_config: Mapping[str, Any],
    model: ModelConfig,
    directory: Path,
) -> int:
    length = context_length(config, tokenizer_config)
    if length is None and model.max_model_len is None:
        raise ConfigError(
            f"{directory / 'config.json'} does not say how long a context the model has; "
            "say it with max_model_len",
            param="max_model_len",
        )
    if length is not None and (model.max_model_len or 1) > length:
        raise ConfigError(
            f"max_model_len {model.max_model_len} is more than the {length} tokens of context "
            "that the model was made for",
            param="max_model_len",
        )
    return length or cast("int", model.max_model_len)


def _generation(
    generation_config: Mapping[str, Any], model: ModelConfig, directory: Path
) -> dict[str, Any]:
    """Sampling defaults by the names of `SamplingParams`, checked."""
    if model.generation_config == "none":
        return {}
    defaults = {
        field: generation_config[key]
        for key, field in GENERATION_DEFAULTS.items()
        if generation_config.get(key) is not None
    }
    try:
        SamplingParams(**defaults)
    except InvalidRequest as error:
        raise ConfigError(
            f"{directory / 'generation_config.json'}: {error.message}; correct it, or ignore "
            "the file with generation_config=none",
            param="generation_config",
        ) from error
    return defaults


def _chat_template(
    directory: Path, tokenizer_config: Mapping[str, Any], model: ModelConfig
) -> str | None:
    """The operator's template, else chat_template.jinja, else that of the tokenizer's config."""
    if model.chat_template is not None:
        return _given_template(model.chat_template)
    path = directory / "chat_template.jinja"
    if path.is_file():
        return _read_text(path)
    template: Any = tokenizer_config.get("chat_template")
    if isinstance(template, list):  # several by name, as transformers wrote them until 4.51
        named = {
            str(entry["name"]): entry["template"]
            for entry in cast("list[dict[str, Any]]", template)
        }
        template = named.get("default") or next(iter(named.values()), None)
    return template if isinstance(template, str) else None


def _given_template(template: str) -> str:
    if "{%" in template or "{{" in template:
        return template
    path = Path(template).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"chat_template {template!r} is neither a file nor a Jinja template",
            param="chat_template",
        )
    return _read_text(path)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", param="chat_template") from error
