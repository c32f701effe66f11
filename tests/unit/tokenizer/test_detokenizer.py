"""Stream equals whole: what comes out token by token is the text of all tokens."""

import re

import pytest
from hypothesis import example, given, settings, strategies as st

from support.text import (
    HARD_TEXT,
    byte_fallback_tokenizer,
    byte_level_tokenizer,
)
from triolet.tokenizer.byte_tokenizer import ByteTokenizer
from triolet.tokenizer.detokenizer import HELD_TOKENS_MAX
from triolet.tokenizer.hf_tokenizer import HFTokenizer
from triolet.tokenizer.tokenizer import Tokenizer

BYTES = ByteTokenizer()
BYTE_LEVEL = byte_level_tokenizer()
BYTE_FALLBACK = byte_fallback_tokenizer()
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40) | st.text(
    alphabet="aé日😀\u0301 \ufffd\n", max_size=20
)


def streamed(
    tokenizer: Tokenizer,
    token_ids: list[int],
    prompt: list[int] | None = None,
    *,
    skip_special_tokens: bool = True,
) -> str:
    detokenizer = tokenizer.detokenizer(prompt or (), skip_special_tokens=skip_special_tokens)
    text = "".join([detokenizer.push(token_id) for token_id in token_ids]) + detokenizer.flush()
    assert not detokenizer.unfinished
    return text


def one_replacement(text: str) -> str:
    """A run of U+FFFD as one: decoders differ in how many stand for invalid bytes."""
    return re.sub("\ufffd+", "\ufffd", text)


@pytest.mark.parametrize("tokenizer", [BYTES, BYTE_LEVEL, BYTE_FALLBACK])
@given(text=TEXTS)
@example(HARD_TEXT)
@example("  leading spaces")
@example("\ufffd" * 100)
@settings(deadline=None)
def test_stream_of_a_text_is_the_text(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text)
    assert streamed(tokenizer, token_ids, skip_special_tokens=False) == text
    assert streamed(tokenizer, token_ids) == tokenizer.decode(token_ids)


@pytest.mark.parametrize("tokenizer", [BYTES, BYTE_LEVEL])
@given(data=st.data())
@settings(deadline=None)
def test_stream_of_any_tokens_is_their_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=100))
    skip = data.draw(st.booleans())
    whole = tokenizer.decode(token_ids, skip_special_tokens=skip)
    assert streamed(tokenizer, token_ids, skip_special_tokens=skip) == whole


@pytest.mark.parametrize("tokenizer", [BYTES, BYTE_LEVEL, BYTE_FALLBACK])
def test_stream_cut_at_every_length_is_the_text_of_the_bytes(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode(HARD_TEXT)
    for length in range(len(token_ids) + 1):
        cut = token_ids[:length]
        data = b"".join(tokenizer.token_bytes(token_id) for token_id in cut)
        whole = data.decode(errors="replace")
        if tokenizer is BYTE_FALLBACK:
            whole = whole.removeprefix(" ")
        assert one_replacement(streamed(tokenizer, cut)) == one_replacement(whole)


@given(st.lists(st.integers(0, BYTE_FALLBACK.vocab_size - 1), max_size=100))
@settings(deadline=None)
def test_byte_fallback_of_any_tokens_keeps_the_text_that_is_sure(token_ids: list[int]) -> None:
    """Its decoder spoils whole runs; what must hold is that words between them survive."""
    text = streamed(BYTE_FALLBACK, token_ids)
    words = [
        BYTE_FALLBACK.token_bytes(i).decode().strip()
        for i in token_ids
        if i > 256 and BYTE_FALLBACK.backend.id_to_token(i) not in ("<s>", "</s>", "<|user|>")
    ]
    position = 0
    for word in words:
        position = text.index(word, position) + len(word)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK])
@given(prompt=TEXTS, text=TEXTS)
@settings(deadline=None)
def test_output_after_a_prompt_is_what_it_adds_to_the_prompt(
    tokenizer: HFTokenizer, prompt: str, text: str
) -> None:
    prompt_ids = tokenizer.encode(prompt + "x")
    token_ids = tokenizer.encode(text)
    whole = tokenizer.decode(prompt_ids + token_ids)
    assert prompt + "x" + streamed(tokenizer, token_ids, prompt_ids) == whole


def test_no_part_of_a_prompt_that_ends_within_a_character_comes_out() -> None:
    for tokenizer in (BYTE_LEVEL, BYTE_FALLBACK):
        *_, first, second, third = tokenizer.encode("x€")
        prompt = [*tokenizer.encode("secret"), first, second]
        assert streamed(tokenizer, [tokenizer.encode("in")[-1]], prompt) == "in"
        assert streamed(tokenizer, [third], prompt) == "\ufffd"


@pytest.mark.parametrize("tokenizer", [BYTES, BYTE_LEVEL, BYTE_FALLBACK])
def test_text_comes_with_the_token_that_completes_it(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("x👍y")
    detokenizer = tokenizer.detokenizer()
    pieces: list[str] = []
    for token_id in token_ids:
        pieces.append(detokenizer.push(token_id))
        assert detokenizer.unfinished == (pieces[-1] == "")
    assert "\ufffd" not in "".join(pieces)
    assert [piece for piece in pieces if piece.strip()] == ["x", "👍", "y"]


def test_skipped_special_token_is_not_unfinished() -> None:
    for tokenizer, special in ((BYTES, 256), (BYTE_LEVEL, BYTE_LEVEL.vocab_size - 1)):
        detokenizer = tokenizer.detokenizer()
        assert detokenizer.push(special) == ""
        assert not detokenizer.unfinished


def test_special_token_within_a_character_does_not_break_it() -> None:
    first, *rest = BYTE_LEVEL.encode("é")
    special = BYTE_LEVEL.vocab_size - 1
    assert streamed(BYTE_LEVEL, [first, special, *rest]) == "é"


def test_long_run_of_invalid_bytes_is_not_held_for_ever() -> None:
    for tokenizer in (BYTE_LEVEL, BYTE_FALLBACK):
        euro = tokenizer.encode("x€")[-3:]
        detokenizer = tokenizer.detokenizer()
        pieces = [detokenizer.push(euro[0]) for _ in range(1000)]
        assert len("".join(pieces)) >= 1000 - HELD_TOKENS_MAX
        assert "".join(pieces) + detokenizer.flush() == "\ufffd" * 1000


@pytest.mark.parametrize("num_invalid", range(HELD_TOKENS_MAX - 6, HELD_TOKENS_MAX + 6))
def test_character_at_the_end_of_a_long_invalid_run_stays_whole(num_invalid: int) -> None:
    first, second, third = BYTE_LEVEL.encode("€")
    for tail in ([first, second, third], [second, first, second, third], [first, second]):
        token_ids = [first] * num_invalid + tail
        assert streamed(BYTE_LEVEL, token_ids) == BYTE_LEVEL.decode(token_ids)
    token_ids = BYTE_FALLBACK.encode("a" + "\ufffd" * num_invalid + "€")
    assert streamed(BYTE_FALLBACK, token_ids) == "a" + "\ufffd" * num_invalid + "€"


def test_spaces_in_a_long_run_of_replacement_characters_are_kept() -> None:
    token_ids = [BYTE_FALLBACK.backend.token_to_id(t) or 0 for t in ("a", "▁\ufffd", "▁th")]
    token_ids[1:2] *= 100
    assert streamed(BYTE_FALLBACK, token_ids) == "a" + " \ufffd" * 100 + " th"


def test_invalid_byte_behind_streamed_bytes_does_not_stop_the_stream() -> None:
    """DecodeStream raises here for every further token."""
    tokens = ("<0xC3>", "<0xA9>", "<0xFF>", "a", "▁t", "<0xC3>", "b")
    token_ids = [BYTE_FALLBACK.backend.token_to_id(token) or 0 for token in tokens]
    assert streamed(BYTE_FALLBACK, token_ids) == "é\ufffda t\ufffdb"


def test_unknown_fault_of_the_stream_is_not_hidden() -> None:
    with pytest.raises(TypeError):
        BYTE_LEVEL.detokenizer().push(-1)
