"""StructuredOutputs -> a grammar that llguidance reads, or an error that says what is wrong.

`check_grammar` is what proves a grammar: first limits in Python, then llguidance's own
validation. The second runs native code on a stranger's input, so the engine calls it in a
process that it can kill (`check.py`).
"""

from __future__ import annotations

import json

from llguidance import LLMatcher

from triolet.errors import InvalidRequest
from triolet.grammar.json_schema import check_json_schema
from triolet.sampling_params import StructuredOutputs

WHITESPACE_RUN_MAX = 32
"""Characters of white space between two JSON tokens, where any is allowed: enough to indent a
deep document, and a model that has nothing to say cannot go on with blanks until max_tokens."""

REGEX_CHARS_MAX = 16 * 1024
GRAMMAR_CHARS_MAX = 64 * 1024
CHOICES_MAX = 4096
CHOICE_CHARS_MAX = 64 * 1024
NESTING_MAX = 128
"""Brackets within brackets in a regex or grammar: native parsers recurse on them."""

MESSAGE_CHARS_MAX = 400


def field_name(structured: StructuredOutputs) -> str:
    """Path of the request field that carries the constraint."""
    for name in ("regex", "choice", "grammar"):
        if getattr(structured, name) is not None:
            return f"structured_outputs.{name}"
    return "structured_outputs.json"


def check_limits(structured: StructuredOutputs) -> None:
    """What can be refused without native code; linear in the size of the text.

    Raises:
        InvalidRequest: It is too large, too deep, or goes in circles.
    """
    param = field_name(structured)
    if structured.json_schema is not None:
        check_json_schema(structured.json_schema, param)
    if structured.regex is not None:
        _check_text(structured.regex, REGEX_CHARS_MAX, param)
    if structured.grammar is not None:
        _check_text(structured.grammar, GRAMMAR_CHARS_MAX, param)
    if structured.choice is not None:
        if len(structured.choice) > CHOICES_MAX:
            raise InvalidRequest(f"{param} may list at most {CHOICES_MAX} strings", param=param)
        if sum(map(len, structured.choice)) > CHOICE_CHARS_MAX:
            raise InvalidRequest(
                f"{param} may have at most {CHOICE_CHARS_MAX} characters in all", param=param
            )


def _check_text(text: str, chars_max: int, param: str) -> None:
    if len(text) > chars_max:
        raise InvalidRequest(
            f"{param} has {len(text)} characters; at most {chars_max} are allowed", param=param
        )
    depth = 0
    for character in text:
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if depth > NESTING_MAX:
            raise InvalidRequest(f"{param} is nested more than {NESTING_MAX} deep", param=param)


def compile_grammar(structured: StructuredOutputs) -> str:
    """The grammar as llguidance reads it. It may still be wrong: see `check_grammar`.

    JSON objects are written compactly, in the order of their properties, unless
    `any_whitespace` is set.
    """
    if structured.regex is not None:
        return LLMatcher.grammar_from_regex(structured.regex)
    if structured.grammar is not None:
        return LLMatcher.grammar_from_lark(structured.grammar)
    if structured.choice is not None:
        # A Lark string is written like a JSON string.
        strings = (json.dumps(text, ensure_ascii=False) for text in structured.choice)
        return LLMatcher.grammar_from_lark("start: " + " | ".join(strings))
    schema = '{"type": "object"}' if structured.json_schema is None else structured.json_schema
    # Overrides win over "x-guidance" in the schema: a caller cannot lift the bounds.
    return LLMatcher.grammar_from_json_schema(
        "{}" if schema.strip() == "true" else schema,  # options need an object to lie in
        overrides={
            "lenient": not structured.strict,
            "whitespace_flexible": structured.any_whitespace,
            "whitespace_pattern": (
                rf"[\x20\x0A\x0D\x09]{{1,{WHITESPACE_RUN_MAX}}}"
                if structured.any_whitespace
                else None
            ),
            "item_separator": ",",
            "key_separator": ":",
        },
    )


def check_grammar(structured: StructuredOutputs) -> tuple[str, ...]:
    """Prove that a constraint can be followed.

    Returns:
        Warnings: keywords that are ignored, if not `strict`.

    Raises:
        InvalidRequest: It cannot; the message names the keyword or the place.
    """
    check_limits(structured)
    failed, messages = LLMatcher.validate_grammar_with_warnings(compile_grammar(structured))
    if failed:
        param = field_name(structured)
        raise InvalidRequest(f"{param}: {clip(messages[0])}", param=param)
    # Markers that are tokens have nothing that could be relaxed: they match or they do not.
    return tuple(clip(m) for m in messages if not m.startswith("no tokenizer"))


def clip(message: str) -> str:
    """The first lines of a native message: later ones may repeat the whole grammar."""
    text = message.split("\n<state>", 1)[0].strip()
    return text if len(text) <= MESSAGE_CHARS_MAX else text[:MESSAGE_CHARS_MAX] + "..."
