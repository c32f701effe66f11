"""Token ids to text, token by token: complete characters only, and nothing lost at the end.

`tokenizers.decoders.DecodeStream` does the work. Three things it does not do are added here:

* It has no flush: an output that ends within a character is compared with a full decode.
* It holds a run of tokens that never becomes valid text for ever, and decodes all of it again
  for each token; here the certain part of such a run is released after `HELD_TOKENS_MAX`.
* A byte-fallback decoder turns a whole run of bytes into U+FFFD when a later one is invalid,
  text that was streamed already included; the stream then raises for every further token.
  Here it begins afresh behind what was streamed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream

REPLACEMENT = "\ufffd"

CHANGED_TEXT = "Invalid prefix encountered"
"""How DecodeStream says that text it gave out is not the beginning of the text any more."""

HELD_TOKENS_MAX = 32
"""Tokens that may wait for the end of a character. One has at most 4 bytes, so 4 tokens."""

CHARACTER_TOKENS_MAX = 4

CONTEXT_TOKENS_MIN = 4
CONTEXT_TOKENS_MAX = 24
"""How much of the prompt's end is looked at, to know how its last word goes on (as vLLM)."""


class IncrementalDetokenizer:
    """Text of one output.

    Args:
        backend: The tokenizer.
        prompt_token_ids: The prompt it follows; only its end matters.
        skip_special_tokens: Leave special tokens out.
        silent: Ids without any text: those left out, and those the vocabulary does not have.
        anchor: Tokens of some plain text. Behind them a decoder that strips the first space
            of a text leaves that of the tokens alone.
    """

    __slots__ = (
        "_anchor",
        "_backend",
        "_context",
        "_held",
        "_silent",
        "_skip_special_tokens",
        "_step",
    )

    def __init__(
        self,
        backend: Backend,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        silent: frozenset[int],
        anchor: Sequence[int],
    ) -> None:
        self._backend = backend
        self._skip_special_tokens = skip_special_tokens
        self._silent = silent
        self._anchor = list(anchor)
        self._held: list[int] = []  # pushed, without text so far
        self._begin(self._prompt_end(prompt_token_ids))

    @property
    def unfinished(self) -> bool:
        """Whether tokens were pushed whose text is still to come."""
        return bool(self._held)

    def push(self, token_id: int) -> str:
        """Add a token; return the text it completes, "" while a character is unfinished."""
        if token_id in self._silent:
            return ""
        self._held.append(token_id)
        try:
            text = self._step(self._backend, token_id)
        except Exception as error:  # it has no class of its own
            if not str(error).startswith(CHANGED_TEXT):
                raise
            return self._restart()
        if text is not None:
            self._context, self._held = self._held, []
            return text
        return self._release_certain() if len(self._held) > HELD_TOKENS_MAX else ""

    def flush(self) -> str:
        """The text of an unfinished tail, with U+FFFD for what will not come any more."""
        text = self._text_after(self._context, self._held)
        self._held = []
        return text

    def _begin(self, context: list[int]) -> None:
        """Start a stream whose next text follows that of `context`."""
        self._context = context
        stream = DecodeStream(ids=context, skip_special_tokens=self._skip_special_tokens)
        self._step: Callable[[Backend, int], str | None] = stream.step

    def _decode(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=self._skip_special_tokens)

    def _text_after(self, context: list[int], token_ids: list[int]) -> str:
        """Text that tokens add to that of their context."""
        if not token_ids:
            return ""
        before, whole = self._decode(context), self._decode(context + token_ids)
        if whole.startswith(before):
            return whole[len(before) :]
        # The tokens spoil bytes of the context, whose text is out already.
        return self._text_after(self._anchor, token_ids)

    def _restart(self) -> str:
        """Give out what is held and begin afresh behind it."""
        held, self._held = self._held, []
        text = self._text_after(self._context, held)
        self._begin(self._anchor if text.endswith(REPLACEMENT) else held)
        return text

    def _release_certain(self) -> str:
        """Give out the part of a long invalid run that no later token can change.

        It can be cut where the texts of both sides, decoded apart, make up the whole, far
        enough from the end that a character begun there stays on the right side.
        """
        held = self._held
        whole = self._text_after(self._context, held)
        for num_kept in range(CHARACTER_TOKENS_MAX, len(held)):
            first, rest = held[:-num_kept], held[-num_kept:]
            text = self._text_after(self._context, first)
            if text + self._text_after(self._anchor, rest) == whole:
                break
        else:
            return self._restart()
        self._held = []
        self._begin(self._anchor)
        return text + "".join(self.push(token_id) for token_id in rest)

    def _prompt_end(self, prompt_token_ids: Sequence[int]) -> list[int]:
        """The last few tokens of the prompt, as many as decode to whole characters.

        A stream that begins with half a character would give out the prompt's text as its
        own; if the prompt ends with one, the output is decoded as if behind plain text.
        """
        for num in range(CONTEXT_TOKENS_MIN, CONTEXT_TOKENS_MAX + 1):
            end = list(prompt_token_ids[-num:])
            if not self._decode(end).endswith(REPLACEMENT):
                return end
            if num >= len(prompt_token_ids):
                break
        return self._anchor
