"""The bytes that each token of a `tokenizers` tokenizer stands for.

The decoder of a tokenizer joins tokens into text; a token alone may be part of a character,
and only bytes can say what it is. Three kinds of vocabulary are in use: byte-level (GPT-2:
each byte is written as a printable character), SentencePiece (a marker for spaces, `<0xE2>`
for single bytes) and WordPiece (`##` continues a word).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from tokenizers import Tokenizer as Backend

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Bytes of tokens, by the decoder of the tokenizer that has them.

    Args:
        backend: The tokenizer.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._added = {
            token_id: token.content.encode()
            for token_id, token in backend.get_added_tokens_decoder().items()
        }
        self._known: dict[int, bytes] = {}  # at most the vocabulary
        steps = list(_decoder_steps(backend))
        kinds = {str(step.get("type")) for step in steps}
        self._byte_level = _byte_level_alphabet() if "ByteLevel" in kinds else None
        self._byte_fallback = "ByteFallback" in kinds
        self._replacements = [pair for step in steps if (pair := _replacement(step))]
        self._continuation = next(
            (str(step["prefix"]) for step in steps if step.get("type") == "WordPiece"), None
        )

    def __call__(self, token_id: int) -> bytes | None:
        """Bytes of one token; None if the vocabulary has no such id."""
        known = self._known.get(token_id)
        if known is None:
            known = self._added.get(token_id)
            if known is None:
                token = self._backend.id_to_token(token_id)
                if token is None:
                    return None
                known = self._bytes_of(token)
            self._known[token_id] = known
        return known

    def _bytes_of(self, token: str) -> bytes:
        if self._byte_level is not None:
            alphabet = self._byte_level
            if all(char in alphabet for char in token):
                return bytes(alphabet[char] for char in token)
            return token.encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes((int(match[1], 16),))
        if self._continuation is not None:
            cut = token.removeprefix(self._continuation)
            return (cut if cut != token else f" {token}").encode()
        for old, new in self._replacements:
            token = token.replace(old, new)
        return token.encode()


def _decoder_steps(backend: Backend) -> Iterator[Mapping[str, Any]]:
    """The parts of the decoder, as tokenizer.json writes them."""
    if backend.decoder is None:
        return
    state = cast("dict[str, Any]", json.loads(backend.decoder.__getstate__()))
    yield from cast("list[dict[str, Any]]", state.get("decoders", [state]))


def _replacement(step: Mapping[str, Any]) -> tuple[str, str] | None:
    """What a decoder step writes in place of what, if that is what it does."""
    if step.get("type") == "Metaspace":
        return str(step["replacement"]), " "
    pattern = step.get("pattern")
    if step.get("type") == "Replace" and isinstance(pattern, dict) and "String" in pattern:
        return str(cast("dict[str, Any]", pattern)["String"]), str(step["content"])
    return None


def _byte_level_alphabet() -> dict[str, int]:
    """Printable character -> byte, as GPT-2 assigned them (`bytes_to_unicode`).

    Bytes that are printable in Latin-1 stand for themselves; the others get the characters
    from U+0100 on, in order.
    """
    alphabet = {
        chr(byte): byte for byte in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
    }
    others = [byte for byte in range(256) if byte not in alphabet.values()]
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}
