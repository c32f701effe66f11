"""How families of models write a call. One class per family, one instance per call.

A call begins at one of `BEGINS`; from there the format is fed until it says where the call
ends. `read` then makes calls of the whole text, or says that it is none: the text is shown to
the client as it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, cast

from triolet.protocol.parsers.call import Call, call_of, call_of_object
from triolet.protocol.parsers.gemma_call import read_gemma_call
from triolet.protocol.parsers.scan import JsonEnd, LiteralEnd, load_json, load_object

SPACE = " \t\r\n"

ToolSchemas = Mapping[str, Mapping[str, object]]
"""Name of a declared tool -> JSON schema of its parameters."""


class CallText(Protocol):
    """The text of one call, from its marker to its end."""

    BEGINS: ClassVar[tuple[str, ...]]
    BARE: ClassVar[bool]
    """Whether a call may also begin with "{" where an answer begins, without a marker."""

    def find_end(self, text: str, at: int) -> int:
        """Index behind the call, which goes on at `at`; -1 if it did not end in `text`."""
        ...

    def read(self, body: str, tools: ToolSchemas) -> list[Call]:
        """The calls in a text, marker included, that ended or was cut off.

        Raises:
            ValueError: It holds no well-formed call.
        """
        ...


class HermesCall:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3."""

    BEGINS: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    BARE: ClassVar[bool] = False
    _END = "</tool_call>"

    def __init__(self) -> None:
        self._json: JsonEnd | None = None
        self._end: LiteralEnd | None = None

    def find_end(self, text: str, at: int) -> int:
        """See `CallText`: the end marker inside of a JSON string is no end."""
        if self._json is None and self._end is None:
            at = _skip_space(text, at)
            if at == len(text):
                return -1
            if text[at] in "{[":
                self._json = JsonEnd()
            else:
                self._end = LiteralEnd(self._END)
        if self._json is not None:
            at = self._json.find(text, at)
            if at < 0:
                return -1
            self._json = None
            self._end = LiteralEnd(self._END)
        assert self._end is not None, "one of the two is at work"
        return self._end.find(text, at)

    def read(self, body: str, tools: ToolSchemas) -> list[Call]:
        """See `CallText`; the end marker may be missing, as some models forget it."""
        del tools
        return [call_of_object(load_object(_inside(body, self.BEGINS[0], self._END)))]


class QwenCoderCall:
    """`<tool_call><function=f><parameter=a>1</parameter></function></tool_call>`: Qwen3-Coder."""

    BEGINS: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    BARE: ClassVar[bool] = False
    _END = "</tool_call>"

    def __init__(self) -> None:
        self._end = LiteralEnd(self._END)

    def find_end(self, text: str, at: int) -> int:
        """See `CallText`."""
        return self._end.find(text, at)

    def read(self, body: str, tools: ToolSchemas) -> list[Call]:
        """See `CallText`; a value is text where the tool's schema says so, else JSON."""
        text = _inside(body, self.BEGINS[0], self._END)
        if not text.startswith("<function="):
            raise ValueError("no function")
        name, found, rest = text.removeprefix("<function=").partition(">")
        if not found:
            raise ValueError("no name")
        rest, found, after = rest.partition("</function>")
        if not found or after.strip(SPACE):
            raise ValueError("no end of the function")
        properties = _properties(tools.get(name.strip(SPACE), {}))
        arguments: dict[str, object] = {}
        while rest := rest.lstrip(SPACE):
            if not rest.startswith("<parameter="):
                raise ValueError("no parameter")
            key, named, rest = rest.removeprefix("<parameter=").partition(">")
            value, ended, rest = rest.partition("</parameter>")
            if not named or not ended:
                raise ValueError("no end of the parameter")
            arguments[key.strip(SPACE)] = _typed(
                value.removeprefix("\n").removesuffix("\n"), properties.get(key.strip(SPACE))
            )
        return [call_of(name.strip(SPACE), arguments)]


class LlamaCall:
    """`{"name": ..., "parameters": {...}}` as the whole answer: Llama 3.1 and later."""

    BEGINS: ClassVar[tuple[str, ...]] = ("<|python_tag|>",)
    BARE: ClassVar[bool] = True

    def __init__(self) -> None:
        self._json: JsonEnd | None = None

    def find_end(self, text: str, at: int) -> int:
        """See `CallText`."""
        if self._json is None:
            at = _skip_space(text, at)
            if at == len(text):
                return -1
            if text[at] != "{":
                return at  # the tag of something else than a call
            self._json = JsonEnd()
        return self._json.find(text, at)

    def read(self, body: str, tools: ToolSchemas) -> list[Call]:
        """See `CallText`; an answer that is JSON is a call only if it names a declared tool."""
        call = call_of_object(load_object(body.strip(SPACE).removeprefix(self.BEGINS[0])))
        if call.name not in tools:
            raise ValueError("no tool of that name")
        return [call]


class MistralCall:
    """`[TOOL_CALLS][{...}, ...]`, and since Mistral Small 3.1 `[TOOL_CALLS]f[ARGS]{...}`."""

    BEGINS: ClassVar[tuple[str, ...]] = ("[TOOL_CALLS]",)
    BARE: ClassVar[bool] = False
    _ARGS = "[ARGS]"
    _ID = "[CALL_ID]"

    def __init__(self) -> None:
        self._json: JsonEnd | None = None
        self._args: LiteralEnd | None = None

    def find_end(self, text: str, at: int) -> int:
        """See `CallText`."""
        if self._json is None and self._args is None:
            at = _skip_space(text, at)
            if at == len(text):
                return -1
            if text[at] == "[":
                self._json = JsonEnd()
            else:
                self._args = LiteralEnd(self._ARGS)
        if self._args is not None:
            at = self._args.find(text, at)
            if at < 0:
                return -1
            self._args = None
            self._json = JsonEnd()
        assert self._json is not None, "one of the two is at work"
        return self._json.find(text, at)

    def read(self, body: str, tools: ToolSchemas) -> list[Call]:
        """See `CallText`."""
        del tools
        text = body.removeprefix(self.BEGINS[0]).strip(SPACE)
        name, found, arguments = text.partition(self._ARGS)
        if found and not text.startswith("["):
            return [call_of(name.partition(self._ID)[0].strip(SPACE), load_object(arguments))]
        calls = load_json(text)
        if not isinstance(calls, list) or not calls:
            raise ValueError("no list of calls")
        items = cast("list[object]", calls)
        if not all(isinstance(item, dict) for item in items):
            raise ValueError("a call is an object")
        return [call_of_object(cast("dict[str, object]", item)) for item in items]


class GemmaCall:
    """`<start_function_call>call:f{a:<escape>x<escape>}<end_function_call>`: FunctionGemma."""

    BEGINS: ClassVar[tuple[str, ...]] = ("<start_function_call>",)
    BARE: ClassVar[bool] = False
    _END = "<end_function_call>"

    def __init__(self) -> None:
        self._end = LiteralEnd(self._END)

    def find_end(self, text: str, at: int) -> int:
        """See `CallText`."""
        return self._end.find(text, at)

    def read(self, body: str, tools: ToolSchemas) -> list[Call]:
        """See `CallText`."""
        del tools
        return [call_of(*read_gemma_call(_inside(body, self.BEGINS[0], self._END)))]


FORMATS: Mapping[str, type[CallText]] = {
    "hermes": HermesCall,
    "qwen3_coder": QwenCoderCall,
    "llama3_json": LlamaCall,
    "mistral": MistralCall,
    "functiongemma": GemmaCall,
}
"""Names as vLLM's `--tool-call-parser` has them."""


def _inside(body: str, begin: str, end: str) -> str:
    return body.removeprefix(begin).removesuffix(end).strip(SPACE)


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at


def _properties(schema: Mapping[str, object]) -> Mapping[str, object]:
    properties = schema.get("properties")
    return cast("Mapping[str, object]", properties) if isinstance(properties, Mapping) else {}


def _typed(value: str, schema: object) -> object:
    kinds: Any = cast("Mapping[str, Any]", schema).get("type") if isinstance(schema, dict) else None
    names: Sequence[object] = kinds if isinstance(kinds, list) else [kinds]
    if "string" in names:
        return value
    try:
        return load_json(value)
    except ValueError:
        return value
