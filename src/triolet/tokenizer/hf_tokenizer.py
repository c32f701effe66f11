"""The tokenizer of a Hugging Face model directory, without transformers and without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer as Backend

from triolet.errors import ConfigError, InvalidRequest
from triolet.tokenizer.chat_template import ChatTemplate
from triolet.tokenizer.detokenizer import IncrementalDetokenizer
from triolet.tokenizer.token_bytes import TokenBytes
from triolet.tokenizer.tokenizer import Message
from triolet.tokenizer.tokenizer_config import (
    TOOL_USE,
    TokenizerConfig,
    apply_tokenizer_config,
    read_tokenizer_config,
)


class TokenizerFacts(Protocol):
    """What is needed of `model_source.facts.ModelFacts`, which this room does not import."""

    @property
    def directory(self) -> Path:
        """Holds tokenizer.json."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end an output, by the model's configuration."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The model's chat template, or that of the operator."""
        ...


def load_tokenizer(facts: TokenizerFacts) -> HFTokenizer:
    """Load the tokenizer of a model. Takes up to seconds: call it in a thread.

    Raises:
        ConfigError: tokenizer.json is missing or broken, or the chat template is.
    """
    path = facts.directory / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(
            f"{facts.directory} has no tokenizer.json; save the model's tokenizer in the fast "
            "format, with AutoTokenizer.from_pretrained(...).save_pretrained(...)",
            param="model",
        )
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # tokenizers has no class of its own
        raise ConfigError(
            f"{path} cannot be read as a tokenizer: {error}", param="model"
        ) from error
    config = read_tokenizer_config(facts.directory)
    apply_tokenizer_config(backend, config)
    template, tool_template = _compile_templates(facts, config)
    return HFTokenizer(
        backend,
        eos_token_ids=_eos_token_ids(backend, facts, config),
        template=template,
        tool_template=tool_template,
    )


class HFTokenizer:
    """A `tokenizers` tokenizer behind triolet's seam.

    Args:
        backend: The tokenizer; not changed any more.
        eos_token_ids: Ids that end an output.
        template: How a chat is written, if the model can chat.
        tool_template: How a chat with tools is written, where that is another template.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        eos_token_ids: tuple[int, ...] = (),
        template: ChatTemplate | None = None,
        tool_template: ChatTemplate | None = None,
    ) -> None:
        self._backend = backend
        self._eos_token_ids = eos_token_ids
        self._template = template
        self._tool_template = tool_template
        self._bytes = TokenBytes(backend)
        ids = set(backend.get_vocab(with_added_tokens=True).values())
        self._vocab_size = max(ids) + 1
        self._holes = frozenset(range(self._vocab_size)) - ids
        self._silent = self._holes | {
            token_id
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.special
        }
        self._anchor = self.encode("a", add_special_tokens=False)

    @property
    def backend(self) -> Backend:
        """The `tokenizers` object, for grammars; do not change it."""
        return self._backend

    @property
    def vocab_size(self) -> int:
        """One more than the highest id there is."""
        return self._vocab_size

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end an output: those of the model, and the tokenizer's own."""
        return self._eos_token_ids

    @property
    def has_chat_template(self) -> bool:
        """Whether `render` works."""
        return self._template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Releases the GIL while it works, as `Backend.encode` does not.

        The first call in a process starts the thread pool of `tokenizers`, which lasts as
        long as the process, unless the environment has TOKENIZERS_PARALLELISM=false.

        Raises:
            InvalidRequest: The text holds a lone surrogate.
        """
        try:
            (encoding,) = self._backend.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidRequest(
                "the prompt is no valid Unicode text: it holds a lone surrogate", param="prompt"
            ) from error
        return encoding.ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids, with U+FFFD for bytes that are no UTF-8.

        Raises:
            InvalidRequest: An id is outside of the vocabulary.
        """
        for token_id in token_ids:
            if not 0 <= token_id < self._vocab_size:
                raise self._outside(token_id)
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """Text of one token by itself, its leading space included; U+FFFD for half characters.

        Raises:
            InvalidRequest: The id is outside of the vocabulary.
        """
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that one token stands for; b"" for an id that the vocabulary leaves out.

        Raises:
            InvalidRequest: The id is outside of the vocabulary.
        """
        if not 0 <= token_id < self._vocab_size:
            raise self._outside(token_id)
        return self._bytes(token_id) or b""

    def detokenizer(
        self, prompt_token_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> IncrementalDetokenizer:
        """A detokenizer for one output that follows this prompt."""
        return IncrementalDetokenizer(
            self._backend,
            prompt_token_ids,
            skip_special_tokens=skip_special_tokens,
            silent=self._silent if skip_special_tokens else self._holes,
            anchor=self._anchor,
        )

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
        """The prompt text of a chat; encode it without adding special tokens.

        Raises:
            InvalidRequest: The model has no chat template, or it refuses the messages.
        """
        if self._template is None:
            raise InvalidRequest(
                "this model has no chat template, so it cannot take messages: send a prompt, or "
                "start the server with a chat template",
                param="messages",
            )
        template = self._tool_template if tools and self._tool_template else self._template
        return template.render(
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
        )

    def _outside(self, token_id: int) -> InvalidRequest:
        return InvalidRequest(
            f"token id {token_id} is outside of the vocabulary of {self._vocab_size}",
            param="token_ids",
        )


def _compile_templates(
    facts: TokenizerFacts, config: TokenizerConfig
) -> tuple[ChatTemplate | None, ChatTemplate | None]:
    """The template, and the one for tools if the model (not the operator) has another."""
    own = config.templates
    source = own.get("default") if facts.chat_template is None else facts.chat_template
    if source is None:
        return None, None
    tool_source = own.get(TOOL_USE) if source == own.get("default") else None
    tokens = config.special_tokens
    return (
        ChatTemplate(source, special_tokens=tokens),
        None if tool_source is None else ChatTemplate(tool_source, special_tokens=tokens),
    )


def _eos_token_ids(
    backend: Backend, facts: TokenizerFacts, config: TokenizerConfig
) -> tuple[int, ...]:
    """The model's and the tokenizer's own: fine-tuned chat models often update only one."""
    own = config.special_tokens.get("eos_token")
    own_id = None if own is None else backend.token_to_id(own)
    ids = facts.eos_token_ids if own_id is None else (*facts.eos_token_ids, own_id)
    return tuple(dict.fromkeys(ids))
