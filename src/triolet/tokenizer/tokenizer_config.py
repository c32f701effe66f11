"""What tokenizer_config.json adds to tokenizer.json, applied as transformers does.

Source: `TokenizersBackend` in `tokenization_utils_tokenizers.py` of transformers 5.24. As
there, `add_bos_token` and `add_eos_token` mean nothing beside a tokenizer.json, whose
post-processor says what is added to a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import attrs
from tokenizers import AddedToken, Tokenizer as Backend

from triolet.errors import ConfigError

NAMED_TOKENS = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)
TOOL_USE = "tool_use"


@attrs.frozen
class TokenizerConfig:
    """The parts of the tokenizer's small files that matter here.

    Attributes:
        special_tokens: Name ("eos_token", ...) -> text, for those that are set.
        extra_special_tokens: Texts of special tokens without a name.
        added_tokens: Id -> token, as `added_tokens_decoder` lists them.
        templates: Named chat templates, "default" and "tool_use" among them.
    """

    special_tokens: Mapping[str, str]
    extra_special_tokens: tuple[str, ...]
    added_tokens: Mapping[int, AddedToken]
    templates: Mapping[str, str]


def read_tokenizer_config(directory: Path) -> TokenizerConfig:
    """Read tokenizer_config.json and special_tokens_map.json; both may be absent.

    Raises:
        ConfigError: A file is no JSON object.
    """
    config = {
        **_read_object(directory / "special_tokens_map.json"),
        **_read_object(directory / "tokenizer_config.json"),
    }
    special = {name: _text(config[name]) for name in NAMED_TOKENS if config.get(name)}
    extra: list[str] = []
    for field in ("additional_special_tokens", "extra_special_tokens"):
        tokens = config.get(field)
        if isinstance(tokens, list):
            extra += map(_text, cast("list[object]", tokens))
        elif isinstance(tokens, dict):  # named by the model: {"image_token": "<image>"}
            named = cast("dict[str, object]", tokens)
            special |= {name: _text(token) for name, token in named.items()}
    added = cast("Mapping[str, Mapping[str, Any]]", config.get("added_tokens_decoder") or {})
    return TokenizerConfig(
        special_tokens=special,
        extra_special_tokens=tuple(extra),
        added_tokens={int(i): _added_token(fields) for i, fields in added.items()},
        templates=_templates(directory, config),
    )


def apply_tokenizer_config(backend: Backend, config: TokenizerConfig) -> None:
    """Make the tokenizer what its config says it is."""
    backend.no_truncation()
    backend.no_padding()
    known = set(backend.get_added_tokens_decoder())
    missing = [token for i, token in sorted(config.added_tokens.items()) if i not in known]
    if missing:
        backend.add_tokens(missing)
    present = {
        token.content for token in backend.get_added_tokens_decoder().values() if token.special
    }
    special = dict.fromkeys((*config.special_tokens.values(), *config.extra_special_tokens))
    backend.add_special_tokens(
        [AddedToken(s, special=True, normalized=False) for s in special if s not in present]
    )


def _templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name, from every place where transformers looks for them."""
    templates: dict[str, str] = {}
    template = config.get("chat_template")
    if isinstance(template, str):
        templates["default"] = template
    elif isinstance(template, list):
        for entry in cast("list[Mapping[str, str]]", template):
            templates[entry["name"]] = entry["template"]
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    path = directory / "chat_template.jinja"
    if path.is_file():
        templates["default"] = path.read_text(encoding="utf-8")
    return templates


def _added_token(fields: Mapping[str, Any]) -> AddedToken:
    flags = {
        name: bool(fields[name])
        for name in ("lstrip", "rstrip", "single_word", "normalized", "special")
        if name in fields
    }
    return AddedToken(_text(fields), **flags)


def _text(token: object) -> str:
    """Text of a token, written as a string or as an object with its flags."""
    if isinstance(token, Mapping):
        return str(cast("Mapping[str, object]", token)["content"])
    return str(token)


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}", param="model") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object", param="model")
    return cast("dict[str, Any]", content)
