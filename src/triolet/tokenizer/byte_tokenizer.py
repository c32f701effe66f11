"""One token per byte of UTF-8 and a few special ones, for tests and examples."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence

from triolet.errors import InvalidRequest
from triolet.tokenizer.chat_template import ChatTemplate
from triolet.tokenizer.tokenizer import Message

NUM_BYTES = 256
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 256, 257 and 258; the first and the last end an output."""

CHATML_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


class ByteTokenizer:
    """The token of a byte is its value. Adds no special tokens of its own.

    Args:
        chat_template: Jinja source; ChatML by default, None for a tokenizer without one.
    """

    def __init__(self, chat_template: str | None = CHATML_TEMPLATE) -> None:
        self._special = {text: NUM_BYTES + i for i, text in enumerate(SPECIAL_TOKENS)}
        self._split = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")
        self._template = (
            None
            if chat_template is None
            else ChatTemplate(chat_template, special_tokens={"eos_token": SPECIAL_TOKENS[0]})
        )

    @property
    def vocab_size(self) -> int:
        """Bytes and special tokens."""
        return NUM_BYTES + len(SPECIAL_TOKENS)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """`<|endoftext|>` and `<|im_end|>`."""
        return (self._special["<|endoftext|>"], self._special["<|im_end|>"])

    @property
    def has_chat_template(self) -> bool:
        """Whether `render` works."""
        return self._template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; there are no special tokens to add, with or without asking.

        Raises:
            InvalidRequest: The text holds a lone surrogate.
        """
        del add_special_tokens
        token_ids: list[int] = []
        for piece in self._split.split(text):
            if piece in self._special:
                token_ids.append(self._special[piece])
            else:
                try:
                    token_ids.extend(piece.encode())
                except UnicodeEncodeError as error:
                    raise InvalidRequest(
                        f"the prompt is no valid Unicode text: {error.reason}", param="prompt"
                    ) from error
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids, with U+FFFD for bytes that are no UTF-8.

        Raises:
            InvalidRequest: An id is outside of the vocabulary.
        """
        pieces = [(token_id, self.token_bytes(token_id)) for token_id in token_ids]
        return b"".join(
            piece for token_id, piece in pieces if token_id < NUM_BYTES or not skip_special_tokens
        ).decode(errors="replace")

    def token_text(self, token_id: int) -> str:
        """Text of one token by itself; U+FFFD for part of a character."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The byte, or the bytes of a special token's text.

        Raises:
            InvalidRequest: The id is outside of the vocabulary.
        """
        if not 0 <= token_id < self.vocab_size:
            raise InvalidRequest(
                f"token id {token_id} is outside of the vocabulary of {self.vocab_size}",
                param="token_ids",
            )
        if token_id < NUM_BYTES:
            return bytes((token_id,))
        return SPECIAL_TOKENS[token_id - NUM_BYTES].encode()

    def detokenizer(
        self, prompt_token_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> ByteDetokenizer:
        """A detokenizer for one output; the text of bytes does not depend on the prompt."""
        del prompt_token_ids
        return ByteDetokenizer(self, skip_special_tokens=skip_special_tokens)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt text of a chat.

        Raises:
            InvalidRequest: There is no template, or it refuses the messages.
        """
        if self._template is None:
            raise InvalidRequest("this model has no chat template", param="messages")
        return self._template.render(
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
        )


class ByteDetokenizer:
    """Python's incremental UTF-8 decoder over the bytes of one output."""

    def __init__(self, tokenizer: ByteTokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def unfinished(self) -> bool:
        """Whether the last bytes are the beginning of a character."""
        return bool(self._decoder.getstate()[0])

    def push(self, token_id: int) -> str:
        """Add a token; return the text it completes."""
        piece = self._tokenizer.token_bytes(token_id)
        if token_id >= NUM_BYTES and self._skip_special_tokens:
            return ""
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """U+FFFD for a character that was begun and not ended."""
        return self._decoder.decode(b"", final=True)
