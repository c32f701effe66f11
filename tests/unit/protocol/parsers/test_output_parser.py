"""Reading outputs: known texts, any chunking, hostile texts in linear time."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable

import pytest
from hypothesis import given, strategies as st

from triolet.protocol.parsers.call import Call
from triolet.protocol.parsers.formats import FORMATS
from triolet.protocol.parsers.output_parser import (
    OutputParser,
    ParserSettings,
    ReasoningMarks,
    join_pieces,
)

THINK = ReasoningMarks("<think>", "</think>")
TOOLS = {
    "f": {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}},
    "g": {},
}
Result = tuple[str, str, list[Call]]


def settings(name: str | None, *, is_open: bool = False, parallel: bool = True) -> ParserSettings:
    return ParserSettings(
        reasoning=THINK,
        reasoning_open=is_open,
        calls=None if name is None else FORMATS[name],
        tools=TOOLS,
        parallel=parallel,
    )


def read(how: ParserSettings, texts: Iterable[str]) -> Result:
    parser = OutputParser(how)
    pieces = [piece for text in texts for piece in parser.push(text)]
    pieces += parser.finish()
    result = join_pieces(pieces)
    assert parser.num_calls == len(result[2])
    return result


def call(name: str, **arguments: object) -> Call:
    return Call(name, json.dumps(arguments, ensure_ascii=False))


HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'
GEMMA = "<start_function_call>call:f{a:<escape>x, {y}<escape>,n:1}<end_function_call>"
GEMMA_NESTED = (
    "<start_function_call>call:g{b:{c:[1,true,<escape>z<escape>],d:null}}<end_function_call>"
    "<start_function_call>call:g{}<end_function_call>"
)
CODER = (
    "<tool_call>\n<function=f>\n<parameter=a>\n12\n</parameter>\n<parameter=n>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (None, "Hello \n", ("", "Hello \n", [])),
        (None, "<think>\nhm\n</think>\n\nHi ", ("hm", "Hi ", [])),
        (None, " <think>a</think>b<think>c</think>", ("a", "b<think>c</think>", [])),
        (None, "<think> never ended \n", ("never ended", "", [])),
        (None, "a <think>b", ("", "a <think>b", [])),
        (None, "<thinker>", ("", "<thinker>", [])),
        ("hermes", HERMES, ("", "", [call("f", a="x")])),
        ("hermes", f"Let me see.\n{HERMES}\n{HERMES}", ("", "Let me see.", [call("f", a="x")] * 2)),
        ("hermes", f"<think>hm</think>\n{HERMES}", ("hm", "", [call("f", a="x")])),
        ("hermes", f"{HERMES}\nDone. ", ("", "Done. ", [call("f", a="x")])),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>\\"}"}}</tool_call>',
            ("", "", [call("f", a='</tool_call>"}')]),
        ),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
            ("", "", [call("f", a=1)]),
        ),
        ("hermes", HERMES.removesuffix("\n</tool_call>"), ("", "", [call("f", a="x")])),
        ("hermes", "<tool_call>{oops}</tool_call> x", ("", "<tool_call>{oops}</tool_call> x", [])),
        ("hermes", '<tool_call>{"name": "f", "arg', ("", '<tool_call>{"name": "f", "arg', [])),
        ("hermes", "5 < 6 and <tool", ("", "5 < 6 and <tool", [])),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
            ("", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', []),
        ),
        ("qwen3_coder", CODER, ("", "", [call("f", a="12", n=3)])),
        (
            "qwen3_coder",
            "<tool_call><function=g></function></tool_call>",
            ("", "", [call("g")]),
        ),
        ("qwen3_coder", "<tool_call><function=g>", ("", "<tool_call><function=g>", [])),
        (
            "llama3_json",
            '{"name": "f", "parameters": {"n": 1}}; {"name": "g", "parameters": {}}',
            ("", "", [call("f", n=1), call("g")]),
        ),
        (
            "llama3_json",
            '<|python_tag|>{"name": "f", "parameters": {"n": 1}}',
            ("", "", [call("f", n=1)]),
        ),
        ("llama3_json", '{"name": "Bob"}', ("", '{"name": "Bob"}', [])),
        ("llama3_json", "<|python_tag|>print(1)", ("", "<|python_tag|>print(1)", [])),
        ("llama3_json", 'So: {"name": "f"}', ("", 'So: {"name": "f"}', [])),
        (
            "mistral",
            '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}}, {"name": "g", "arguments": {}}]',
            ("", "", [call("f", a="]"), call("g")]),
        ),
        (
            "mistral",
            'Well.[TOOL_CALLS]f[ARGS]{"n": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}',
            ("", "Well.", [call("f", n=1), call("g")]),
        ),
        ("mistral", "[TOOL_CALLS] [1]", ("", "[TOOL_CALLS] [1]", [])),
        ("functiongemma", GEMMA, ("", "", [call("f", a="x, {y}", n=1)])),
        (
            "functiongemma",
            GEMMA_NESTED,
            ("", "", [call("g", b={"c": [1, True, "z"], "d": None}), call("g")]),
        ),
        (
            "functiongemma",
            "<start_function_call>call:f{a:<escape>x}<end_function_call>",
            ("", "<start_function_call>call:f{a:<escape>x}<end_function_call>", []),
        ),
    ],
)
def test_known_texts(name: str | None, text: str, expected: Result) -> None:
    assert read(settings(name), [text]) == expected
    assert read(settings(name), text) == expected  # character by character


def test_a_prompt_that_ends_in_reasoning_opens_it() -> None:
    assert read(settings("hermes", is_open=True), ["\nhm\n</think>\n\nHi"]) == ("hm", "Hi", [])
    assert read(settings("hermes", is_open=True), [f"hm</think>{HERMES}"])[2] == [call("f", a="x")]


@pytest.mark.parametrize("name", FORMATS)
def test_only_the_first_of_parallel_calls_is_kept_when_one_is_wanted(name: str) -> None:
    texts = {
        "hermes": f"{HERMES}{HERMES}",
        "qwen3_coder": f"{CODER}{CODER}",
        "llama3_json": '{"name": "f", "parameters": {}};{"name": "g", "parameters": {}}',
        "mistral": '[TOOL_CALLS][{"name": "f"}, {"name": "g"}]',
        "functiongemma": f"{GEMMA}{GEMMA}",
    }
    _, content, calls = read(settings(name, parallel=False), [texts[name]])
    assert (content, [c.name for c in calls]) == ("", ["f"])


FRAGMENTS = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]"),
        *("<|python_tag|>", "<start_function_call>", "<end_function_call>", "call:f", "<escape>"),
        *('{"name": "f", "arguments": {"a": "x"}}', '{"name": "g"}', "[", "]", "{", "}", '"', "\\"),
        *("<function=f>", "</function>", "<parameter=a>", "</parameter>", ";", ",", ":", "<", ">"),
        *(" ", "\n", "\t ", " " * 70, "word", "1", HERMES, GEMMA, CODER, "é"),
    ]
)


@pytest.mark.slow
@given(
    st.sampled_from([None, *FORMATS]),
    st.booleans(),
    st.booleans(),
    st.lists(FRAGMENTS, max_size=12).map("".join),
    st.data(),
)
def test_the_result_does_not_depend_on_the_chunking(
    name: str | None, is_open: bool, parallel: bool, text: str, data: st.DataObject
) -> None:
    how = settings(name, is_open=is_open, parallel=parallel)
    whole = read(how, [text])
    assert read(how, text) == whole
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)) | {0, len(text)})
    assert read(how, [text[a:b] for a, b in itertools.pairwise(cuts)]) == whole
    for found in whole[2]:
        assert isinstance(json.loads(found.arguments), dict)
    if not whole[2] and not is_open and "<think>" not in text:
        assert whole[0] == ""
        assert whole[1] == text


HOSTILE = [
    "<" * 100_000,
    "<tool_call>" * 9_000,
    "<tool_call>x</tool_call>" * 4_000,
    '<tool_call>{"a": "' + "\\" * 100_000,
    "<tool_call>" + "[" * 100_000,
    "<tool_call>" + '{"a":' * 20_000 + "}" * 20_000 + "</tool_call>",
    "[TOOL_CALLS]" + "[" * 100_000,
    "[TOOL_CALLS][f(" + "a0=1, " * 16_000,
    "[TOOL_CALLS]" + "[ARGS" * 20_000,
    '{"name": "f", ' * 7_000,
    "{}" * 50_000,
    '{"name": "f"};' * 7_000,
    "<start_function_call>call:f{" + "a:{" * 30_000 + "<end_function_call>",
    "<start_function_call>call:f{" + "a:1," * 25_000 + "<end_function_call>",
    "<start_function_call>call:f{" + "<escape>" * 12_000 + "<end_function_call>",
    "<tool_call><function=f>" + "<parameter=a>" * 7_000 + "</tool_call>",
    "<think>" + "</think" * 14_000,
    " \n" * 50_000,
    "a " * 50_000,
]


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("name", FORMATS)
def test_hostile_texts_are_read_in_linear_time(name: str, text: str) -> None:
    """100 KB take well under a second, in one piece and in small ones; quadratic takes minutes."""
    start = time.process_time()
    whole = read(settings(name), [text])
    assert time.process_time() - start < 0.5
    start = time.process_time()
    assert read(settings(name), [text[i : i + 7] for i in range(0, len(text), 7)]) == whole
    assert time.process_time() - start < 1.5
