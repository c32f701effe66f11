"""Grammars of forced calls, as llguidance follows them with a tokenizer made in code."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from support.chat_models import hermes
from triolet.errors import InvalidRequest
from triolet.grammar.compile import check_grammar, compile_grammar
from triolet.protocol.parsers.formats import FORMATS
from triolet.protocol.parsers.output_parser import (
    OutputParser,
    ParserSettings,
    ReasoningMarks,
    join_pieces,
)
from triolet.protocol.tool_grammar import (
    begun_call_grammar,
    call_grammar,
    forced_format,
    grammar_after_reasoning,
    quoted,
)
from triolet.protocol.tools import FunctionSpec
from triolet.sampling_params import StructuredOutputs

EOS = "<eos>"
MARKERS = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>"),
    *("<start_function_call>", "<end_function_call>", "<escape>"),
)
SPECIAL = ("[TOOL_CALLS]", "[THINK]", "[/THINK]", EOS)
THINK = ReasoningMarks("<think>", "</think>")
SCHEMA = {
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS = (FunctionSpec(name="f", parameters=SCHEMA), FunctionSpec(name="g.h"))
CALL = hermes("f", a="x")


@functools.cache
def backend(plain: bool = False) -> Tokenizer:
    """A byte-level tokenizer; its markers are tokens, as those of real models are, or text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if not plain:
        tokenizer.add_tokens([AddedToken(text, special=False) for text in MARKERS])
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return tokenizer


def marker(text: str) -> str:
    token_id = backend().token_to_id(text)
    return quoted(text) if token_id is None else f"<[{token_id}]>"


def allows(structured: StructuredOutputs, text: str, *, plain: bool = False) -> bool:
    """Whether a text is a whole sentence of a grammar."""
    check_grammar(structured)
    tokenizer = backend(plain)
    eos = tokenizer.token_to_id(EOS)
    assert eos is not None
    guide = LLTokenizer(tokenizer.to_str(), n_vocab=tokenizer.get_vocab_size(), eos_token=[eos])
    matcher = LLMatcher(guide, compile_grammar(structured), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    token_ids = tokenizer.encode(text, add_special_tokens=False).ids
    return all(matcher.consume_token(i) for i in token_ids) and bool(matcher.is_accepting())


@pytest.mark.parametrize(
    ("call_format", "options", "text", "allowed"),
    [
        ("hermes", {}, CALL, True),
        ("hermes", {}, f"{CALL}\n{hermes('g.h')}", True),
        ("hermes", {}, f"{CALL}\n", False),
        ("hermes", {}, "", False),
        ("hermes", {}, "Hi", False),
        ("hermes", {}, hermes("f"), False),
        ("hermes", {}, hermes("f", a=1), False),
        ("hermes", {}, hermes("other"), False),
        ("hermes", {}, "\n".join([CALL] * 17), False),
        ("hermes", {"parallel": False}, CALL, True),
        ("hermes", {"parallel": False}, f"{CALL}\n{CALL}", False),
        ("hermes", {"reasoning": THINK}, CALL, True),
        ("hermes", {"reasoning": THINK}, f"<think>\nhm <b>\n</think>\n\n{CALL}", True),
        ("hermes", {"reasoning": THINK}, f"<think>hm</think>{CALL}", True),
        ("hermes", {"reasoning": THINK}, "<think>hm</think>", False),
        ("hermes", {"reasoning": THINK}, f"hm{CALL}", False),
        ("hermes", {"reasoning": THINK, "reasoning_open": True}, f"hm</think>\n\n{CALL}", True),
        ("hermes", {"reasoning": THINK, "reasoning_open": True}, CALL, False),
        (
            "mistral",
            {},
            '[TOOL_CALLS][{"name": "f", "arguments": {"a": "x"}}, {"name": "g.h", "arguments": {}}]',
            True,
        ),
        ("mistral", {}, "[TOOL_CALLS][]", False),
        (
            "mistral",
            {"reasoning": ReasoningMarks("[THINK]", "[/THINK]")},
            '[THINK]hm[/THINK][TOOL_CALLS][{"name": "g.h", "arguments": {}}]',
            True,
        ),
        (
            "llama3_json",
            {},
            '{"name": "f", "parameters": {"a": "x"}}; {"name": "g.h", "parameters": {}}',
            True,
        ),
        ("hermes", {"otherwise": StructuredOutputs(json_object=True)}, '{"a":1}', True),
        ("hermes", {"otherwise": StructuredOutputs(json_object=True)}, CALL, True),
        ("hermes", {"otherwise": StructuredOutputs(json_object=True)}, "Hi", False),
    ],
)
def test_sentences_of_forced_calls(
    call_format: str, options: dict[str, Any], text: str, allowed: bool
) -> None:
    options = {"parallel": True, "marker": marker, **options}
    grammar = call_grammar(call_format, TOOLS, **options)
    assert allows(grammar, text) is allowed
    if allowed:
        reading = ParserSettings(
            reasoning=options.get("reasoning"),
            reasoning_open=options.get("reasoning_open", False),
            calls=FORMATS[call_format],
            tools={tool.name: {} for tool in TOOLS},
        )
        parser = OutputParser(reading)
        _, content, calls = join_pieces(parser.push(text) + parser.finish())
        assert (content == "") == bool(calls), "what is forced is read as calls and nothing else"


def test_markers_may_be_plain_text() -> None:
    assert call_grammar("hermes", TOOLS, parallel=False).grammar is not None
    text = call_grammar("hermes", TOOLS, parallel=False, reasoning=THINK).grammar or ""
    assert '"<tool_call>"' in text
    check_grammar(StructuredOutputs(grammar=text))


def test_notations_without_a_grammar_are_forced_as_hermes() -> None:
    assert {name: forced_format(name, TOOLS) for name in FORMATS} == {
        "hermes": "hermes",
        "qwen3_coder": "hermes",
        "llama3_json": "llama3_json",
        "mistral": "mistral",
        "functiongemma": "functiongemma",
    }
    strict = (FunctionSpec(name="f", parameters=SCHEMA, strict=True),)
    assert forced_format("functiongemma", strict) == "hermes"


def gemma(arguments: str) -> str:
    return f"<start_function_call>call:f{{{arguments}}}<end_function_call>"


GEMMA_SCHEMA: dict[str, Any] = {
    "properties": {
        "b": {"type": "string"},
        "a": {"enum": ["x", 1]},
        "c": {"type": ["integer", "null"]},
        "d": {"type": "array"},
        "e": {},
    },
    "required": ["b"],
}


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        ("b:<escape>hi, {you}<escape>", True),
        ("b:<escape><escape>", True),
        ("a:<escape>x<escape>,b:<escape>y<escape>,c:-3", True),
        ("a:1,b:<escape>y<escape>,c:null,d:[1,<escape>z<escape>,{k:true}],e:{}", True),
        ("b:<escape>y<escape>,e:1.5e3", True),
        ("", False),
        ("a:1", False),
        ("b:1", False),
        ("b:<escape>y<escape>,a:1", False),
        ("a:2,b:<escape>y<escape>", False),
        ("b:<escape>y<escape>,c:1.5", False),
        ("b:<escape>y<escape>,z:1", False),
        ("b:<escape>y<escape>,", False),
        (",b:<escape>y<escape>", False),
    ],
)
@pytest.mark.parametrize("as_tokens", [False, True])
def test_sentences_of_functiongemma(arguments: str, allowed: bool, as_tokens: bool) -> None:
    tools = (FunctionSpec(name="f", parameters=GEMMA_SCHEMA), FunctionSpec(name="g"))
    term = marker if as_tokens else quoted
    grammar = call_grammar("functiongemma", tools, parallel=True, marker=term)
    text = gemma(arguments)
    assert allows(grammar, text, plain=not as_tokens) is allowed
    if allowed:
        parser = OutputParser(ParserSettings(calls=FORMATS["functiongemma"]))
        _, content, calls = join_pieces(parser.push(text) + parser.finish())
        assert (content, [call.name for call in calls]) == ("", ["f"])
        two = text + "<start_function_call>call:g{}<end_function_call>"
        assert allows(grammar, two, plain=not as_tokens)


@pytest.mark.parametrize(
    ("structured", "answer"),
    [
        (StructuredOutputs(json_schema='{"type": "integer"}', any_whitespace=True), "7"),
        (StructuredOutputs(json_object=True), "{}"),
        (StructuredOutputs(regex="a/b+"), "a/bb"),
        (StructuredOutputs(choice=("yes", 'n"o')), 'n"o'),
    ],
)
def test_answers_after_reasoning(structured: StructuredOutputs, answer: str) -> None:
    closed = grammar_after_reasoning(structured, THINK, reasoning_open=False, marker=marker)
    assert allows(closed, answer)
    assert allows(closed, f"<think>hm</think>\n\n{answer}")
    assert not allows(closed, f"hm</think>{answer}")
    opened = grammar_after_reasoning(structured, THINK, reasoning_open=True, marker=marker)
    assert allows(opened, f"hm</think>{answer}")
    assert not allows(opened, answer)


def test_a_grammar_of_the_clients_own_cannot_be_wrapped() -> None:
    own = StructuredOutputs(grammar='start: "x"')
    with pytest.raises(InvalidRequest, match="reasons") as fault:
        grammar_after_reasoning(own, THINK, reasoning_open=False)
    assert fault.value.param == "structured_outputs.grammar"
    with pytest.raises(InvalidRequest):
        call_grammar("hermes", TOOLS, parallel=True, otherwise=own)


def test_a_schema_cannot_lift_its_bounds() -> None:
    schema = {"type": "object", "x-guidance": {"whitespace_flexible": True}}
    tool = FunctionSpec(name="f", parameters=schema)
    grammar = call_grammar("hermes", (tool,), parallel=False, marker=marker)
    assert allows(grammar, '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')
    assert not allows(grammar, '<tool_call>\n{"name": "f", "arguments": {   }}\n</tool_call>')


@pytest.mark.parametrize(("strict", "accepted"), [(True, False), (False, True)])
def test_strict_tools_refuse_what_cannot_be_enforced(strict: bool, accepted: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tool = FunctionSpec(name="f", parameters=schema, strict=strict)
    grammar = call_grammar("hermes", (tool,), parallel=False)
    if accepted:
        check_grammar(grammar)
    else:
        with pytest.raises(InvalidRequest, match="uniqueItems"):
            check_grammar(grammar)


@pytest.mark.parametrize(
    ("call_format", "options", "text", "allowed"),
    [
        ("hermes", {}, "", True),
        ("hermes", {}, "Hi <b> {", True),
        ("hermes", {}, CALL, True),
        ("hermes", {}, f"Let me see.\n{CALL}\n{hermes('g.h')}\nDone.", True),
        ("hermes", {}, hermes("other"), False),
        ("hermes", {}, hermes("f"), False),
        ("hermes", {}, "<tool_call>\n", False),
        ("hermes", {"parallel": False}, f"a{CALL}b", True),
        ("hermes", {"parallel": False}, f"{CALL}{CALL}", False),
        ("hermes", {"marker": quoted}, "Hi <b> {", True),
        ("hermes", {"reasoning": THINK}, f"<think>hm</think>\n\na{CALL}", True),
        ("hermes", {"reasoning": THINK}, "Hi", True),
        ("hermes", {"reasoning": THINK, "reasoning_open": True}, f"hm</think>{CALL}", True),
        (
            "mistral",
            {},
            'a[TOOL_CALLS][{"name": "g.h", "arguments": {}}, {"name": "g.h", "arguments": {}}]',
            True,
        ),
        ("mistral", {}, "[TOOL_CALLS][1]", False),
    ],
)
def test_a_call_that_has_begun_must_be_well_formed(
    call_format: str, options: dict[str, Any], text: str, allowed: bool
) -> None:
    options = {"parallel": True, "marker": marker, **options}
    grammar = begun_call_grammar(call_format, TOOLS, **options)
    assert grammar is not None
    assert allows(grammar, text) is allowed


@pytest.mark.parametrize(
    ("text", "allowed"),
    [("Hi <b> {", True), (CALL, True), (f"a{CALL}\nb", True), ("", True)],
)
def test_begun_calls_with_markers_that_are_plain_text(text: str, allowed: bool) -> None:
    grammar = begun_call_grammar("hermes", TOOLS, parallel=True)
    assert grammar is not None
    assert allows(grammar, text, plain=True) is allowed


def test_notations_without_a_marker_or_a_grammar_are_not_followed() -> None:
    for name in ("llama3_json", "functiongemma", "qwen3_coder"):
        assert begun_call_grammar(name, TOOLS, parallel=True) is None


@pytest.mark.parametrize("regex", ["a/b", r"a\/b", "a\\/b|\n/"])
def test_a_regex_keeps_its_slashes(regex: str) -> None:
    structured = grammar_after_reasoning(
        StructuredOutputs(regex=regex), THINK, reasoning_open=False, marker=marker
    )
    assert allows(structured, "a/b")
