"""A matcher allows exactly what the grammar allows, from tokens alone."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from support.byte_level_tokenizer import EOS, byte_level_tokenizer
from triolet.errors import InvalidRequest, RequestFailed
from triolet.grammar.compile import WHITESPACE_RUN_MAX
from triolet.grammar.matcher import CACHED_GRAMMARS_MAX, GrammarCompiler, Matcher
from triolet.sampling_params import StructuredOutputs

TOKENIZER = byte_level_tokenizer()
VOCAB = TOKENIZER.get_vocab_size()
COMPILER = GrammarCompiler(TOKENIZER.to_str(), VOCAB, [EOS])
PERSON = StructuredOutputs(
    json_schema=json.dumps(
        {
            "type": "object",
            "properties": {"age": {"type": "integer"}, "ok": {"type": "boolean"}},
            "required": ["age", "ok"],
            "additionalProperties": False,
        }
    )
)


def tokens(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def allowed(matcher: Matcher) -> set[int]:
    mask = matcher.mask()
    return {i for i in range(VOCAB) if mask[i // 8] >> (i % 8) & 1}


def accepts(structured: StructuredOutputs, text: str) -> bool:
    """Whether a text is a whole output: each token allowed in turn, then EOS."""
    matcher = COMPILER.matcher(structured, [])
    for token in tokens(text):
        if token not in allowed(matcher):
            return False
        matcher.accept([token])
    assert (EOS in allowed(matcher)) == matcher.is_accepting
    return matcher.is_accepting


@pytest.mark.parametrize(
    ("structured", "good", "bad"),
    [
        (PERSON, ['{"age":3,"ok":true}'], ['{"age":3}', '{"ok":true,"age":3}', '{"age": 3', "x"]),
        (StructuredOutputs(json_object=True), ["{}", '{"a":[1,{"b":null}]}'], ["[]", "1", "{"]),
        (StructuredOutputs(regex="[ab]{2,3}"), ["ab", "bba"], ["a", "abab", "ac"]),
        (StructuredOutputs(choice=("ab", "true", '"é\n')), ["ab", "true", '"é\n'], ["a", "tru"]),
        (StructuredOutputs(grammar='start: "a" start "b" | "c"'), ["c", "aacbb"], ["acbb", "aac"]),
    ],
)
def test_outputs_follow_the_grammar(
    structured: StructuredOutputs, good: list[str], bad: list[str]
) -> None:
    for text in good:
        assert accepts(structured, text), text
    for text in bad:
        assert not accepts(structured, text), text


def test_white_space_is_free_but_bounded_where_it_is_asked_for() -> None:
    loose = StructuredOutputs(json_schema=PERSON.json_schema, any_whitespace=True)
    assert accepts(loose, '{\n    "age": 3,\n    "ok": true\n}')
    assert accepts(loose, '{"age":3,"ok":true}')
    blanks = " " * WHITESPACE_RUN_MAX
    assert accepts(loose, f'{{{blanks}"age":3,"ok":true}}')
    assert not accepts(loose, f'{{{blanks} "age":3,"ok":true}}')


def test_eos_is_allowed_exactly_where_the_grammar_accepts() -> None:
    matcher = COMPILER.matcher(StructuredOutputs(regex="a+"), [])
    assert EOS not in allowed(matcher)
    matcher.accept(tokens("a"))
    assert matcher.is_accepting
    assert not matcher.is_finished
    assert EOS in allowed(matcher)
    whole = COMPILER.matcher(PERSON, tokens('{"age":3,"ok":true}'))
    assert whole.is_finished
    assert allowed(whole) == {EOS}
    whole.accept([EOS, EOS])  # under ignore_eos nothing but EOS follows
    assert allowed(whole) == {EOS}


@settings(max_examples=25)
@given(st.integers(0, 40), st.data())
def test_replay_equals_going_on(steps: int, data: st.DataObject) -> None:
    """A matcher rebuilt from the output at any point allows what the first one does."""
    matcher = COMPILER.matcher(StructuredOutputs(json_object=True), [])
    output: list[int] = []
    for _ in range(steps):
        choices = sorted(allowed(matcher) - {EOS})
        if not choices:
            break
        token = data.draw(st.sampled_from(choices))
        matcher.accept([token])
        output.append(token)
    again = COMPILER.matcher(StructuredOutputs(json_object=True), output)
    assert allowed(again) == allowed(matcher)
    assert again.is_finished == matcher.is_finished


def test_matchers_of_one_grammar_are_independent() -> None:
    first, second = COMPILER.matcher(PERSON, []), COMPILER.matcher(PERSON, [])
    first.accept(tokens('{"age":'))
    assert allowed(second) == allowed(COMPILER.matcher(PERSON, []))
    assert allowed(first) != allowed(second)


def test_a_token_that_is_not_allowed_fails_and_stays_failed() -> None:
    matcher = COMPILER.matcher(PERSON, [])
    with pytest.raises(RequestFailed, match="grammar") as caught:
        matcher.accept(tokens("x"))
    assert len(caught.value.message) < 600
    assert not matcher.is_finished
    with pytest.raises(RequestFailed, match="grammar"):
        matcher.mask()


def test_an_output_that_does_not_fit_fails_the_resume() -> None:
    with pytest.raises(RequestFailed, match="grammar"):
        COMPILER.matcher(PERSON, tokens("nonsense"))


def test_a_grammar_that_never_was_proved_fails_closed() -> None:
    with pytest.raises(InvalidRequest, match="cannot be followed"):
        COMPILER.matcher(StructuredOutputs(regex="("), [])
    with pytest.raises(InvalidRequest, match="deep"):
        COMPILER.matcher(StructuredOutputs(regex="(" * 1000), [])


def test_compiled_grammars_are_kept_but_not_without_bound() -> None:
    for i in range(2 * CACHED_GRAMMARS_MAX):
        COMPILER.matcher(StructuredOutputs(regex=f"a{{{i + 1}}}"), [])
        COMPILER.matcher(PERSON, [])
    assert len(COMPILER._compiled) == CACHED_GRAMMARS_MAX
    assert PERSON in COMPILER._compiled


@pytest.fixture
def model_directory(tmp_path: Path) -> Path:
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_compiler_is_read_from_a_model_directory(model_directory: Path) -> None:
    compiler = GrammarCompiler.from_directory(model_directory, VOCAB, [EOS])
    assert compiler is not None
    assert allowed(compiler.matcher(PERSON, [])) == allowed(COMPILER.matcher(PERSON, []))


def test_without_tokenizer_or_eos_there_is_no_compiler(
    tmp_path: Path, model_directory: Path
) -> None:
    assert GrammarCompiler.from_directory(tmp_path / "nowhere", VOCAB, [EOS]) is None
    assert GrammarCompiler.from_directory(model_directory, VOCAB, []) is None


def test_what_fails_at_its_first_token_is_the_callers_fault_and_costs_once() -> None:
    structured = StructuredOutputs(grammar="start: start")
    with pytest.raises(InvalidRequest, match="cannot be followed") as first:
        COMPILER.matcher(structured, ())
    with pytest.raises(InvalidRequest) as second:
        COMPILER.matcher(structured, ())
    assert first.value.message == second.value.message
    assert str(first.value.param).startswith("structured_outputs.")
