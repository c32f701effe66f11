"""How the served model writes reasoning and calls: found out once, from its chat template."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import attrs

from triolet.config import ServerConfig
from triolet.errors import InvalidRequest
from triolet.protocol.parsers.dialect import MARKS, PROBES, TOOL, Dialect, Probe, dialect_of
from triolet.protocol.parsers.formats import FORMATS
from triolet.protocol.tool_grammar import quoted
from triolet.tokenizer.tokenizer import Tokenizer

TAIL_TOKENS = 16
"""Tokens at the end of a prompt that are looked at for open reasoning."""

OPEN_FROM_THE_START = "deepseek_r1"
"""The reasoning parser of models that begin in their reasoning without saying so."""


@attrs.frozen
class ModelDialect:
    """A dialect, and the tokens that its markers are.

    Attributes:
        dialect: Found in the template, or chosen by the operator.
        marker_ids: Marker -> its token id, for markers that are one token.
        special: Markers that a detokenizer leaves out with other special tokens.
        opens_reasoning: Every output begins inside of reasoning.
    """

    dialect: Dialect
    marker_ids: Mapping[str, int] = attrs.field(factory=dict[str, int])
    special: frozenset[str] = frozenset()
    opens_reasoning: bool = False

    def marker(self, text: str) -> str:
        """The Lark term of a marker: the token, which no text can stand for, or its text."""
        token_id = self.marker_ids.get(text)
        return quoted(text) if token_id is None else f"<[{token_id}]>"

    def reasoning_open(self, tokenizer: Tokenizer, prompt_token_ids: tuple[int, ...]) -> bool:
        """Whether a prompt ends inside of reasoning."""
        marks = self.dialect.reasoning
        if marks is None:
            return False
        tail = tokenizer.decode(prompt_token_ids[-TAIL_TOKENS:], skip_special_tokens=False)
        if tail.rstrip().endswith(marks.begin):
            return True
        return self.opens_reasoning and not tail.rstrip().endswith(marks.end)


def model_dialect(tokenizer: Tokenizer, config: ServerConfig) -> ModelDialect:
    """Find out how a model writes. Renders a few chats: call it in a worker thread."""
    dialect = Dialect()
    if tokenizer.has_chat_template:
        dialect = dialect_of({name: _render(tokenizer, probe) for name, probe in PROBES.items()})
    if config.tool_call_parser != "auto":
        dialect = dataclasses.replace(dialect, call_format=config.tool_call_parser)
    opens = config.reasoning_parser == OPEN_FROM_THE_START
    if config.reasoning_parser != "auto":
        marks = MARKS["think"] if opens else MARKS.get(config.reasoning_parser)
        dialect = dataclasses.replace(dialect, reasoning=marks)
    ids: dict[str, int] = {}
    special: set[str] = set()
    for marker in _markers():
        token_ids = tokenizer.encode(marker, add_special_tokens=False)
        if len(token_ids) == 1:
            ids[marker] = token_ids[0]
            if not tokenizer.decode(token_ids, skip_special_tokens=True):
                special.add(marker)
    return ModelDialect(dialect, ids, frozenset(special), opens)


def _render(tokenizer: Tokenizer, probe: Probe) -> str:
    try:
        return tokenizer.render(
            probe.messages,
            tools=[TOOL] if probe.tools else None,
            template_kwargs=probe.template_kwargs,
            add_generation_prompt=True,
        )
    except InvalidRequest:
        return ""


def _markers() -> list[str]:
    marks = [text for pair in MARKS.values() for text in (pair.begin, pair.end)]
    ends = ["</tool_call>", "<end_function_call>", "[ARGS]", "[CALL_ID]", "<escape>"]
    return [*marks, *ends, *dict.fromkeys(b for form in FORMATS.values() for b in form.BEGINS)]
