import pytest
from tokenizers import Tokenizer, decoders, models

from support.text import HARD_TEXT, byte_fallback_backend, byte_level_backend
from triolet.tokenizer.token_bytes import TokenBytes


@pytest.mark.parametrize(
    ("backend", "lead"),
    [(byte_level_backend(), b""), (byte_fallback_backend(), b" ")],
    ids=["byte level", "byte fallback"],
)
def test_bytes_of_the_tokens_of_a_text_are_its_utf8(backend: Tokenizer, lead: bytes) -> None:
    token_bytes = TokenBytes(backend)
    pieces = [token_bytes(i) for i in backend.encode(HARD_TEXT).ids]
    assert b"".join(piece or b"?" for piece in pieces) == lead + HARD_TEXT.encode()


def test_every_byte_has_one_token_of_byte_level() -> None:
    token_bytes = TokenBytes(byte_level_backend())
    assert {token_bytes(i) for i in range(256)} == {bytes((b,)) for b in range(256)}


def test_added_token_is_its_text() -> None:
    for backend in (byte_level_backend(), byte_fallback_backend()):
        token_id = backend.token_to_id("<|user|>")
        assert token_id is not None
        assert TokenBytes(backend)(token_id) == b"<|user|>"


def test_id_that_is_not_there_has_none() -> None:
    assert TokenBytes(byte_level_backend())(10_000) is None


def test_word_piece_marks_continuations_instead_of_spaces() -> None:
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "tok": 1, "##en": 2}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    assert [TokenBytes(backend)(i) for i in (1, 2)] == [b" tok", b"en"]


def test_metaspace_is_a_space() -> None:
    backend = Tokenizer(models.BPE({"▁a": 0, "b": 1}, []))
    backend.decoder = decoders.Metaspace()
    assert [TokenBytes(backend)(i) for i in (0, 1)] == [b" a", b"b"]
