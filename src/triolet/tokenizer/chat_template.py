"""Messages to prompt text, by the Jinja template that a model brings.

A template is configuration of the operator, never of a client: it is compiled once, in
Jinja's immutable sandbox, with the globals, filters and options that transformers gives
templates (`utils/chat_template_utils.py` of transformers 5.24), so that a model renders
here as it does there. A client chooses messages, tools and a few scalar variables.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
from typing_extensions import override

from triolet.errors import ConfigError, InvalidRequest
from triolet.tokenizer.chat_messages import ContentForm, normalize_messages
from triolet.tokenizer.tokenizer import Message

RENDERED_CHARS_MAX = 1 << 24
"""Longest rendered prompt: a context of a million tokens holds about a quarter of it."""

RENDER_SECONDS_MAX = 10.0
"""A usual chat renders in 0.1 ms; a template that takes this long does not end."""

CLOCK_EVERY_PIECES = 256
"""Pieces of rendered text between two looks at the clock."""

TEMPLATE_KWARGS_MAX = 32
KWARG_CHARS_MAX = 4096
KWARG_ITEMS_MAX = 64
KWARG_INT_MAX = 2**31
ERROR_CHARS_MAX = 500

RESERVED_VARIABLES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
    | {
        "raise_exception",
        "strftime_now",
        "namespace",
        "dict",
        "range",
        "lipsum",
        "cycler",
        "joiner",
    }
    | {"self", "loop", "tokenize", "return_dict"}
)
CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
PROBE = "triolet-probe-2f6c"


class ChatTemplate:
    """One compiled chat template.

    Args:
        source: Jinja source.
        special_tokens: What `bos_token`, `eos_token`, ... are in the template.
        now: Clock behind `strftime_now`.
        clock: Monotonic seconds, for the limit of `RENDER_SECONDS_MAX`.

    Attributes:
        variables: Every variable the template reads that a caller could set.

    Raises:
        ConfigError: The source is no Jinja template.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._special_tokens = dict(special_tokens or {})
        self._clock = clock
        environment = _environment(now)
        try:
            self._template = environment.from_string(source)
            undeclared = jinja2.meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise ConfigError(
                f"the chat template cannot be compiled: {_clip(str(error))}", param="chat_template"
            ) from error
        self.variables = frozenset(undeclared) - RESERVED_VARIABLES - self._special_tokens.keys()
        self._form = self._probe_form(source)

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
        """The prompt text of a chat; special tokens (BOS too) are in the text.

        Args:
            messages: The chat, oldest first.
            tools: JSON schemas of the tools the model may call; an empty list is none.
            documents: Documents for templates that take them.
            add_generation_prompt: End with the header of the next assistant message.
            continue_final_message: Leave the last message open, for the model to go on.
            template_kwargs: Further variables of the template. One that the template does
                not read has no effect: compare with `variables`.

        Raises:
            InvalidRequest: The template refuses the messages (the message is its own), or
                an argument is out of its limits.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message cannot be combined with add_generation_prompt: the "
                "final message is either continued or followed by a new one; set "
                "add_generation_prompt to false",
                param="continue_final_message",
            )
        chat = normalize_messages(messages, self._form)
        final = _mark_final_message(chat) if continue_final_message else None
        text = self._run(
            {
                **self._special_tokens,
                **self._checked_kwargs(template_kwargs or {}),
                "messages": chat,
                "tools": list(tools) if tools else None,
                "documents": list(documents) if documents else None,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        return text if final is None else _cut_at_mark(text, final)

    def _checked_kwargs(self, kwargs: Mapping[str, object]) -> dict[str, object]:
        """The client's variables, each a scalar or a flat list of scalars, within limits."""
        if len(kwargs) > TEMPLATE_KWARGS_MAX:
            raise _bad_kwarg(None, f"at most {TEMPLATE_KWARGS_MAX} variables", f"{len(kwargs)}")
        for name, value in kwargs.items():
            if name == "chat_template":
                raise _bad_kwarg(name, "absent: the template is set by the server", "a template")
            if not name.isidentifier() or name.startswith("_"):
                raise _bad_kwarg(name, "named by an identifier without leading underscore", name)
            if name in RESERVED_VARIABLES or name in self._special_tokens:
                raise _bad_kwarg(name, "another name: this one is set by the server", name)
            items = cast("list[object]", value) if isinstance(value, list) else [value]
            if len(items) > KWARG_ITEMS_MAX or not all(map(_is_small_scalar, items)):
                raise _bad_kwarg(
                    name,
                    f"a string of up to {KWARG_CHARS_MAX} characters, a number, a boolean, null "
                    f"or a list of up to {KWARG_ITEMS_MAX} of these",
                    type(value).__name__,
                )
        return dict(kwargs)

    def _run(self, variables: Mapping[str, object]) -> str:
        """Render within the limits of size and time."""
        pieces: list[str] = []
        num_chars = 0
        deadline = self._clock() + RENDER_SECONDS_MAX
        try:
            for piece in self._template.generate(variables):
                pieces.append(piece)
                num_chars += len(piece)
                if num_chars > RENDERED_CHARS_MAX:
                    raise InvalidRequest(
                        f"the chat renders to more than {RENDERED_CHARS_MAX} characters",
                        param="messages",
                    )
                if len(pieces) % CLOCK_EVERY_PIECES == 0 and self._clock() > deadline:
                    raise InvalidRequest(
                        f"the chat takes more than {RENDER_SECONDS_MAX:g} s to render",
                        param="messages",
                    )
        except InvalidRequest:
            raise
        except jinja2.TemplateError as error:
            raise InvalidRequest(_clip(str(error)), param="messages") from error
        except Exception as error:
            # A template is a program: whatever it trips over, these messages made it.
            raise InvalidRequest(
                f"the chat template cannot render these messages: {_clip(str(error))}",
                param="messages",
            ) from error
        return "".join(pieces)

    def _probe_form(self, source: str) -> ContentForm:
        """Find out by rendering what shapes of content the template understands."""
        as_text = self._probe([{"role": "user", "content": PROBE}])
        as_parts = self._probe([{"role": "user", "content": [{"type": "text", "text": PROBE}]}])
        takes_parts = PROBE in as_parts and "'type'" not in as_parts and '"type"' not in as_parts
        arguments = {PROBE: PROBE}
        call_mapping = self._probe(_tool_call_chat(arguments))
        call_text = self._probe(_tool_call_chat(json.dumps(arguments)))
        return ContentForm(
            # A template that refuses the probe altogether gets what most take: text.
            takes_text=PROBE in as_text or not takes_parts,
            takes_parts=takes_parts,
            arguments_as_text=PROBE not in call_mapping and PROBE in call_text,
            knows_developer="developer" in source,
        )

    def _probe(self, messages: list[dict[str, object]]) -> str:
        variables = {**self._special_tokens, "messages": messages, "add_generation_prompt": False}
        try:
            return self._run(variables)
        except InvalidRequest:
            return ""


def _environment(now: Callable[[], datetime]) -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    names: Any = environment.globals  # the checkers read jinja2's annotation differently
    names["raise_exception"] = _raise_exception
    names["strftime_now"] = _strftime(now)
    return environment


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's tokens for training; here it only groups."""

    tags = {"generation"}  # noqa: RUF012  (declared so by jinja2)

    @override
    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller: jinja2.runtime.Macro) -> str:
        return caller()


def _strftime(now: Callable[[], datetime]) -> Callable[[str], str]:
    def strftime_now(layout: str) -> str:
        return now().strftime(layout)

    return strftime_now


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _is_small_scalar(value: object) -> bool:
    match value:
        case None | bool() | float():
            return True
        case int():
            return abs(value) <= KWARG_INT_MAX
        case str():
            return len(value) <= KWARG_CHARS_MAX
        case _:
            return False


def _bad_kwarg(name: str | None, wanted: str, got: str) -> InvalidRequest:
    param = "chat_template_kwargs" + (f".{name[:64]}" if name is not None else "")
    return InvalidRequest(f"{param} must be {wanted}, got {_clip(got)}", param=param)


def _tool_call_chat(arguments: object) -> list[dict[str, object]]:
    # Mistral's templates refuse a call id that has not nine characters.
    function = {"name": "probe", "arguments": arguments}
    call = {"id": "call00000", "type": "function", "function": function}
    return [
        {"role": "user", "content": "probe"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]


def _mark_final_message(chat: list[dict[str, Any]]) -> str:
    """Append the mark to the text of the last message; return that text.

    Raises:
        InvalidRequest: The last message has no text to go on with.
    """
    content = chat[-1].get("content")
    if isinstance(content, str):
        chat[-1]["content"] = content + CONTINUE_MARK
        return content
    for part in reversed(cast("list[dict[str, Any]]", content or [])):
        text: str = part["text"]
        part["text"] = text + CONTINUE_MARK
        return text
    raise InvalidRequest(
        "continue_final_message needs text in the last message, and it has none",
        param=f"messages[{len(chat) - 1}].content",
    )


def _cut_at_mark(text: str, final: str) -> str:
    """Everything before the mark; white space too where the template trimmed the message."""
    mark = CONTINUE_MARK.strip()
    at = text.rfind(mark)
    if at < 0 or final.strip() not in text:
        raise InvalidRequest(
            "continue_final_message cannot be used: the chat template does not render the "
            "final message as it is",
            param="continue_final_message",
        )
    trimmed = text[at : at + len(CONTINUE_MARK)] != CONTINUE_MARK
    return text[:at].rstrip() if trimmed else text[:at]


def _clip(text: str) -> str:
    return text if len(text) <= ERROR_CHARS_MAX else text[:ERROR_CHARS_MAX] + "..."
