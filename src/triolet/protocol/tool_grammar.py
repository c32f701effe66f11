"""Grammars for answers that must be calls, and for structured answers of models that reason.

Lark, as llguidance reads it. The spelling is the one that the family's training data has
(white space included): a model forced into another spelling gives worse arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from triolet.errors import InvalidRequest
from triolet.protocol.gemma_grammar import gemma_rules
from triolet.protocol.parsers.output_parser import ReasoningMarks
from triolet.protocol.tools import FunctionSpec, parameters_of
from triolet.sampling_params import StructuredOutputs

CALLS_MAX = 16
"""Parallel calls a forced answer may hold: a model that does not stop is stopped here."""

_UNESCAPED_SLASH = re.compile(r"\\.|/|\n", re.DOTALL)
"""A slash or a line's end would end a regex in Lark; what is escaped already is left alone."""

Marker = Callable[[str], str]
"""A marker of the text -> the Lark term for it, which differs for special tokens."""


def quoted(text: str) -> str:
    """The Lark term of a literal text."""
    return json.dumps(text, ensure_ascii=False)


def forced_format(call_format: str, tools: Sequence[FunctionSpec]) -> str:
    """The notation in which calls are forced: the model's own if it has a grammar.

    Hermes' stands in for others, and where a strict schema needs a notation that is JSON.
    """
    if call_format == "functiongemma" and not any(tool.strict for tool in tools):
        return call_format
    return call_format if call_format in _SPELLINGS else "hermes"


def call_grammar(
    call_format: str,
    tools: Sequence[FunctionSpec],
    *,
    parallel: bool,
    marker: Marker = quoted,
    reasoning: ReasoningMarks | None = None,
    reasoning_open: bool = False,
    otherwise: StructuredOutputs | None = None,
) -> StructuredOutputs:
    """A grammar whose sentences are calls of these tools, after reasoning if there is any.

    Args:
        call_format: One that `forced_format` returns.
        tools: Those that may be called.
        parallel: Up to `CALLS_MAX` calls, else one.
        marker: How to write a marker.
        reasoning: Marks of the model's reasoning.
        reasoning_open: The prompt ends inside of reasoning.
        otherwise: What an answer without a call must follow, if there may be one.

    Raises:
        InvalidRequest: `otherwise` is a grammar of the client's own.
    """
    if call_format == "functiongemma":
        spelling = _Spelling(separator="")
        lines = gemma_rules(tools, marker)
    else:
        spelling = _SPELLINGS[call_format]
        lines = [f"tool_{i}: {_call(spelling, tool, marker)}" for i, tool in enumerate(tools)]
    lines.append("call: " + " | ".join(f"tool_{i}" for i in range(len(tools))))
    body = "call"
    if parallel:
        separator = quoted(spelling.separator) if spelling.separator else ""
        body += f" ({separator} call){{0,{CALLS_MAX - 1}}}"
    body = _join(_terms(spelling.opening, marker), body, _terms(spelling.closing, marker))
    if otherwise is not None:
        body = f"({body} | answer)"
        lines.append(f"answer: {_term(otherwise)}")
    start, rules = _after_reasoning(body, marker, reasoning, reasoning_open=reasoning_open)
    return StructuredOutputs(grammar="\n".join([start, *rules, *lines]) + "\n")


def begun_call_grammar(
    call_format: str,
    tools: Sequence[FunctionSpec],
    *,
    parallel: bool,
    marker: Marker = quoted,
    reasoning: ReasoningMarks | None = None,
    reasoning_open: bool = False,
) -> StructuredOutputs | None:
    """A grammar of any text in which a call, once its marker is written, must be well-formed.

    Args:
        call_format: Name in `parsers.formats.FORMATS`.
        tools: Those that may be called.
        parallel: Up to `CALLS_MAX` calls, else one.
        marker: How to write a marker.
        reasoning: Marks of the model's reasoning.
        reasoning_open: The prompt ends inside of reasoning.

    Returns:
        The grammar; None where nothing but JSON marks a call, or where it is written in a
        notation without a grammar.
    """
    spelling = _SPELLINGS.get(call_format)
    if spelling is None or not (spelling.opening or spelling.begin):
        return None
    # The marker ends the text before it, so it stands before the rule of a call.
    one_list = bool(spelling.opening)
    begin, *head = spelling.opening or spelling.begin
    assert isinstance(begin, _Mark), "a call with a marker begins with it"
    term = marker(begin.text)
    lines = [
        f"tool_{i}: {_call(spelling, tool, marker, begun=not one_list)}"
        for i, tool in enumerate(tools)
    ]
    lines.append("one: " + " | ".join(f"tool_{i}" for i in range(len(tools))))
    calls = "one"
    if one_list:
        more = f" ({quoted(spelling.separator)} one){{0,{CALLS_MAX - 1}}}" if parallel else ""
        calls = _join(_terms(head, marker), f"one{more}", _terms(spelling.closing, marker))
    if term.startswith('"'):  # a lazy lexeme ends with the first marker
        lines.append(f"before[lazy]: /(.|\\n)*/ {term}")
    else:
        lines.append(f"before: TEXT? {term}")
    lines += [f"call: before {calls}", "TEXT: /(.|\\n)+/"]
    count = f"{{0,{CALLS_MAX}}}" if parallel and not one_list else "?"
    start, rules = _after_reasoning(
        f"call{count} TEXT?", marker, reasoning, reasoning_open=reasoning_open
    )
    return StructuredOutputs(grammar="\n".join([start, *rules, *lines]) + "\n")


def grammar_after_reasoning(
    structured: StructuredOutputs,
    reasoning: ReasoningMarks,
    *,
    reasoning_open: bool,
    marker: Marker = quoted,
) -> StructuredOutputs:
    """The same constraint, on what comes after the reasoning.

    Raises:
        InvalidRequest: The constraint is a grammar of the client's own.
    """
    start, rules = _after_reasoning("answer", marker, reasoning, reasoning_open=reasoning_open)
    return StructuredOutputs(grammar="\n".join([start, *rules, f"answer: {_term(structured)}"]))


def _term(structured: StructuredOutputs) -> str:
    if structured.grammar is not None:
        raise InvalidRequest(
            "structured_outputs.grammar cannot be combined with tools or with a model that "
            "reasons: use json or regex, or leave the tools out",
            param="structured_outputs.grammar",
        )
    if structured.choice is not None:
        return " | ".join(map(quoted, structured.choice))
    if structured.regex is not None:
        return f"/{_UNESCAPED_SLASH.sub(_escaped, structured.regex)}/"
    schema = '{"type": "object"}' if structured.json_schema is None else structured.json_schema
    return _json_term(
        json.loads(schema),
        strict=structured.strict,
        any_whitespace=structured.any_whitespace,
        separators=(",", ":"),
    )


def _escaped(found: re.Match[str]) -> str:
    return {"/": "\\/", "\n": "\\n"}.get(found[0], found[0])


def _after_reasoning(
    body: str,
    marker: Marker,
    reasoning: ReasoningMarks | None,
    *,
    reasoning_open: bool,
) -> tuple[str, list[str]]:
    """The start rule and what it needs. A model that reasons may also not, unless it began."""
    if reasoning is None:
        return f"start: {body}", []
    end = marker(reasoning.end)
    rules = [f"thought[lazy]: /(.|\\n)*/ {end}", "SPACE: /[ \\n]{1,4}/"]
    if not end.startswith('"'):  # a token, which is no text that a lazy lexeme could end with
        rules[0] = f"thought: THOUGHT {end}\nTHOUGHT: /(.|\\n)*/"
    if reasoning_open:
        return f"start: thought SPACE? {body}", rules
    return f"start: ({marker(reasoning.begin)} thought SPACE?)? {body}", rules


@dataclass(frozen=True, slots=True)
class _Mark:
    """A marker, which may be one special token."""

    text: str


@dataclass(frozen=True, slots=True)
class _Spelling:
    """How a family writes calls around the JSON object of their arguments.

    Attributes:
        opening: Before the first call.
        begin: Before each.
        arguments: Key of the arguments.
        end: Behind each.
        separator: Between two.
        closing: Behind the last.
    """

    begin: tuple[str | _Mark, ...] = ()
    end: tuple[str | _Mark, ...] = ()
    separator: str = "\n"
    arguments: str = "arguments"
    opening: tuple[str | _Mark, ...] = ()
    closing: tuple[str | _Mark, ...] = ()


_SPELLINGS: Mapping[str, _Spelling] = {
    "hermes": _Spelling(
        begin=(_Mark("<tool_call>"), "\n"), end=("\n", _Mark("</tool_call>")), separator="\n"
    ),
    "llama3_json": _Spelling(separator="; ", arguments="parameters"),
    "mistral": _Spelling(separator=", ", opening=(_Mark("[TOOL_CALLS]"), "["), closing=("]",)),
}


def _call(spelling: _Spelling, tool: FunctionSpec, marker: Marker, *, begun: bool = False) -> str:
    """One call; with `begun` what comes after its first marker."""
    head = f'{{"name": {json.dumps(tool.name)}, "{spelling.arguments}": '
    arguments = _json_term(parameters_of(tool), strict=tool.strict, separators=(", ", ": "))
    return _join(
        _terms(spelling.begin[1:] if begun else spelling.begin, marker),
        quoted(head),
        arguments,
        _terms(("}", *spelling.end), marker),
    )


def _terms(pieces: Sequence[str | _Mark], marker: Marker) -> str:
    return _join(*(marker(p.text) if isinstance(p, _Mark) else quoted(p) for p in pieces))


def _join(*terms: str) -> str:
    return " ".join(filter(None, terms))


def _json_term(
    schema: object, *, strict: bool, any_whitespace: bool = False, separators: tuple[str, str]
) -> str:
    """`%json` of a schema, with options that the schema's own cannot lift.

    Args:
        schema: Parsed.
        strict: Refuse keywords that cannot be enforced.
        any_whitespace: Allow (bounded) white space between tokens.
        separators: Between items, and between key and value.
    """
    fields = {} if schema is True else dict(cast("Mapping[str, object]", schema))
    fields["x-guidance"] = {
        "lenient": not strict,
        "whitespace_flexible": any_whitespace,
        "whitespace_pattern": "[\\x20\\x0A\\x0D\\x09]{1,32}" if any_whitespace else None,
        "item_separator": separators[0],
        "key_separator": separators[1],
    }
    return "%json " + json.dumps(fields)
