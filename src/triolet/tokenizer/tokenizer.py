"""The tokenizer seam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

Message = Mapping[str, object]
"""One chat message as it came over the wire: role, content, tool_calls, ..."""


class Detokenizer(Protocol):
    """Turns the tokens of one output into text, complete characters only."""

    @property
    def unfinished(self) -> bool:
        """Whether tokens were pushed whose text is still to come.

        False after a token that has no text at all, such as a skipped special token.
        """
        ...

    def push(self, token_id: int) -> str:
        """Add a token; return the text it completes, "" while a character is unfinished."""
        ...

    def flush(self) -> str:
        """The text of an unfinished tail, with U+FFFD for what will not come any more.

        Nothing may be pushed after it.
        """
        ...


class Tokenizer(Protocol):
    """Text to token ids and back. Thread-safe; every method may take long."""

    @property
    def vocab_size(self) -> int:
        """Every id the tokenizer knows is below this."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end an output."""
        ...

    @property
    def has_chat_template(self) -> bool:
        """Whether `render` works."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Releases the GIL while it works."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        ...

    def token_text(self, token_id: int) -> str:
        """Text of one token by itself (special tokens included), for logprobs."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that one token stands for; a fragment of a character is possible."""
        ...

    def detokenizer(
        self, prompt_token_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> Detokenizer:
        """A detokenizer for one output that follows this prompt."""
        ...

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
        """The prompt text of a chat, by the model's own template.

        Raises:
            InvalidRequest: The template refuses the messages; the message is the template's.
        """
        ...
