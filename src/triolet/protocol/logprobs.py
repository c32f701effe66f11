"""Log-probabilities on the wire: OpenAI's two formats, and vLLM's for the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from triolet.output import OutputDelta, TokenLogprobs


class TokenNames(Protocol):
    """What the formats need of a tokenizer; both methods take microseconds."""

    def token_text(self, token_id: int) -> str:
        """Text of one token by itself."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token."""
        ...


class TokenIdNames:
    """Names that can be read back: "token_id:17" (`return_tokens_as_token_ids`).

    Args:
        names: Whose bytes stay.
    """

    def __init__(self, names: TokenNames) -> None:
        self._names = names

    def token_text(self, token_id: int) -> str:
        """The id, as vLLM writes it."""
        return f"token_id:{token_id}"

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token."""
        return self._names.token_bytes(token_id)


def chat_logprobs(delta: OutputDelta, names: TokenNames) -> list[dict[str, object]]:
    """Entries of `choices[].logprobs.content` for the tokens of a delta."""
    return [
        {
            **_chat_token(entry.token_id, entry.logprob, names),
            "top_logprobs": [_chat_token(i, p, names) for i, p in entry.top],
        }
        for entry in delta.logprobs or ()
    ]


def _chat_token(token_id: int, logprob: float, names: TokenNames) -> dict[str, object]:
    return {
        "token": names.token_text(token_id),
        "logprob": logprob,
        "bytes": list(names.token_bytes(token_id)),
    }


class CompletionLogprobs:
    """`choices[].logprobs` of a completion: four parallel arrays, offsets in characters.

    Args:
        names: Texts of tokens. The same text names a token in `tokens` and in
            `top_logprobs`, so that evaluators can compare the two.
    """

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._offset = 0

    def prompt(
        self,
        token_ids: Sequence[int],
        pieces: Sequence[str],
        logprobs: Sequence[TokenLogprobs | None],
    ) -> dict[str, list[object]]:
        """Arrays of an echoed prompt; the first position has no logprob."""
        out = _arrays()
        for i, token_id in enumerate(token_ids):
            entry = logprobs[i] if i < len(logprobs) else None
            self._append(out, token_id, pieces[i], entry)
        return out

    def delta(self, delta: OutputDelta) -> dict[str, list[object]]:
        """Arrays of the tokens of a delta; offsets go on where the last call stopped."""
        out = _arrays()
        entries = delta.logprobs or ()
        texts = delta.token_texts
        for i, entry in enumerate(entries):
            piece = texts[i] if texts is not None and i < len(texts) else None
            if piece is None:
                piece = self._names.token_text(entry.token_id)
            self._append(out, entry.token_id, piece, entry)
        return out

    def _append(
        self,
        out: dict[str, list[object]],
        token_id: int,
        piece: str,
        entry: TokenLogprobs | None,
    ) -> None:
        text = self._names.token_text(token_id)
        out["tokens"].append(text)
        out["text_offset"].append(self._offset)
        out["token_logprobs"].append(None if entry is None else entry.logprob)
        out["top_logprobs"].append(None if entry is None else self._top(text, entry))
        self._offset += len(piece)

    def _top(self, text: str, entry: TokenLogprobs) -> dict[str, float]:
        top: dict[str, float] = {}
        for token_id, logprob in entry.top:
            # Different fragments of a character share a text: the likeliest keeps it.
            top.setdefault(self._names.token_text(token_id), logprob)
        top.setdefault(text, entry.logprob)
        return top


def _arrays() -> dict[str, list[object]]:
    return {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}


def extend_arrays(into: dict[str, list[object]], more: dict[str, list[object]]) -> None:
    """Append parallel arrays to parallel arrays."""
    for name, values in more.items():
        into[name].extend(values)


def prompt_logprobs(
    logprobs: Sequence[TokenLogprobs | None], names: TokenNames
) -> list[dict[str, object] | None]:
    """vLLM's `prompt_logprobs`: per position, token id -> logprob, rank and text."""
    return [None if entry is None else _prompt_position(entry, names) for entry in logprobs]


def _prompt_position(entry: TokenLogprobs, names: TokenNames) -> dict[str, object]:
    ranked = {token_id: (p, rank) for rank, (token_id, p) in enumerate(entry.top, start=1)}
    ranked[entry.token_id] = (entry.logprob, entry.rank)
    return {
        str(token_id): {
            "logprob": logprob,
            "rank": rank,
            "decoded_token": names.token_text(token_id),
        }
        for token_id, (logprob, rank) in ranked.items()
    }
