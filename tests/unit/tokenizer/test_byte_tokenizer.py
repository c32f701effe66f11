import pytest
from hypothesis import given, strategies as st

from triolet.errors import InvalidRequest
from triolet.tokenizer.byte_tokenizer import SPECIAL_TOKENS, ByteTokenizer

TOKENIZER = ByteTokenizer()
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]))


@given(TEXTS)
def test_decoding_gives_the_text_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text), skip_special_tokens=False) == text


def test_special_tokens_are_one_id_each_and_can_be_skipped() -> None:
    token_ids = TOKENIZER.encode("a" + "b".join(SPECIAL_TOKENS))
    assert token_ids == [97, 256, 98, 257, 98, 258]
    assert TOKENIZER.decode(token_ids) == "abb"


def test_both_ends_of_text_and_of_turn_end_an_output() -> None:
    assert [TOKENIZER.token_text(i) for i in TOKENIZER.eos_token_ids] == [
        "<|endoftext|>",
        "<|im_end|>",
    ]


def test_bytes_of_a_token_may_be_half_a_character() -> None:
    assert TOKENIZER.token_bytes(0xC3) == b"\xc3"
    assert TOKENIZER.token_text(0xC3) == "\ufffd"


@pytest.mark.parametrize("token_id", [-1, 259, 2**40])
def test_id_outside_of_the_vocabulary_is_refused(token_id: int) -> None:
    with pytest.raises(InvalidRequest, match=f"{token_id} is outside of the vocabulary of 259"):
        TOKENIZER.decode([token_id])


def test_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="surrogates not allowed"):
        TOKENIZER.encode("\ud83d")


def test_chat_is_written_as_chatml() -> None:
    text = TOKENIZER.render([{"role": "user", "content": "hi"}])
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_without_a_template_a_chat_is_refused() -> None:
    tokenizer = ByteTokenizer(chat_template=None)
    assert not tokenizer.has_chat_template
    with pytest.raises(InvalidRequest, match="no chat template"):
        tokenizer.render([{"role": "user", "content": "hi"}])
