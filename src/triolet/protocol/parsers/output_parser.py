"""One output's text, in pieces as it comes, to reasoning, content and calls.

The result does not depend on where the text was cut: what could still become a marker, or is
white space that only separates, is held back until it is decided. Reasoning and content come
as they are written. A call comes whole, once it is known to be one: a client never gets
arguments that are no JSON, and text that only looked like a call is shown as text.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from triolet.protocol.parsers.call import Call, Content, Piece, Reasoning
from triolet.protocol.parsers.formats import SPACE, CallText, ToolSchemas
from triolet.protocol.parsers.scan import held_back

LEAD_CHARS_MAX = 64
"""White space that may stand before the first marker; more than that is content."""


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """What stands around reasoning, such as `<think>` and `</think>`."""

    begin: str
    end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserSettings:
    """How to read the outputs of one request.

    Attributes:
        reasoning: Marks of reasoning, None if the model does not reason.
        reasoning_open: The prompt ends inside of reasoning.
        calls: How the model writes calls, None to leave them in the text.
        tools: The declared tools.
        parallel: Whether an output may hold more than one call; others are dropped.
    """

    reasoning: ReasoningMarks | None = None
    reasoning_open: bool = False
    calls: type[CallText] | None = None
    tools: ToolSchemas = field(default_factory=dict[str, Mapping[str, object]])
    parallel: bool = True


class _State(enum.Enum):
    EDGE = enum.auto()
    """Where an answer begins, or goes on after a call: white space is not yet content."""
    REASONING = enum.auto()
    CONTENT = enum.auto()
    CALL = enum.auto()


class OutputParser:
    """Reads one output.

    Args:
        settings: How.

    Attributes:
        num_calls: Calls found so far.
        has_reasoned: Whether there was reasoning, and it has ended.
    """

    def __init__(self, settings: ParserSettings) -> None:
        self._settings = settings
        calls = settings.calls
        self._begins = () if calls is None else calls.BEGINS
        self._find_begin = re.compile("|".join(map(re.escape, self._begins))) if calls else None
        self._state = _State.REASONING if settings.reasoning_open else _State.EDGE
        self._may_reason = settings.reasoning is not None and not settings.reasoning_open
        self._held = ""
        self._space = _Space()
        if settings.reasoning_open:
            self._space.drop_next()
        self._call: CallText | None = None
        self._body: list[str] = []
        self._out: list[Piece] = []
        self.num_calls = 0
        self.has_reasoned = False

    @property
    def reasoning_decided(self) -> bool:
        """Whether reasoning has ended, or it is clear that there is none."""
        return self.has_reasoned or not (self._may_reason or self.is_reasoning)

    @property
    def is_reasoning(self) -> bool:
        """Whether the text so far ends inside of reasoning."""
        return self._state is _State.REASONING

    def push(self, text: str) -> list[Piece]:
        """More of the output; what is decided by it."""
        text, self._held = self._held + text, ""
        at = 0
        while at < len(text):
            match self._state:
                case _State.EDGE:
                    at = self._edge(text, at)
                case _State.REASONING:
                    at = self._reason(text, at)
                case _State.CONTENT:
                    at = self._content(text, at)
                case _State.CALL:
                    at = self._in_call(text, at)
        return self._taken()

    def finish(self) -> list[Piece]:
        """The output has ended: what was held back is what it looks like."""
        held, self._held = self._held, ""
        match self._state:
            case _State.REASONING:
                self._emit(Reasoning, self._space.add(held))
            case _State.CALL:
                self._end_call()
                self._emit(Content, self._space.rest())
            case _State.EDGE | _State.CONTENT:
                self._emit(Content, self._space.add(held))
                self._emit(Content, self._space.rest())
        return self._taken()

    def _taken(self) -> list[Piece]:
        out, self._out = self._out, []
        return out

    def _emit(self, kind: type[Reasoning | Content], text: str) -> None:
        if not text:
            return
        last = self._out[-1] if self._out else None
        if isinstance(last, kind):
            self._out[-1] = kind(last.text + text)
        else:
            self._out.append(kind(text))

    def _edge(self, text: str, at: int) -> int:
        """Decide between reasoning, a bare call and content; held while it is open."""
        settings = self._settings
        bare = settings.calls is not None and settings.calls.BARE
        separators = SPACE + ";" if bare and self.num_calls else SPACE
        start = at
        while at < len(text) and text[at] in separators:
            at += 1
        marks = settings.reasoning if self._may_reason else None
        if at - start <= LEAD_CHARS_MAX:
            if marks is not None and text.startswith(marks.begin, at):
                self._may_reason = False
                self._state = _State.REASONING
                self._space.drop_next()
                return at + len(marks.begin)
            if at == len(text) or (marks is not None and _is_begun(marks.begin, text, at)):
                self._held = text[start:]
                return len(text)
            if bare and text[at] == "{":
                self._may_reason = False
                self._begin_call()
                return at
        self._may_reason = False
        self._state = _State.CONTENT
        return start

    def _reason(self, text: str, at: int) -> int:
        marks = self._settings.reasoning
        assert marks is not None, "only a model with marks reasons"
        end = text.find(marks.end, at)
        if end < 0:
            keep = held_back(text, at, (marks.end,))
            self._held = text[len(text) - keep :]
            self._emit(Reasoning, self._space.add(text[at : len(text) - keep]))
            return len(text)
        self._emit(Reasoning, self._space.add(text[at:end]))
        self._space.drop_all()
        self._state = _State.EDGE
        self._space.drop_next()
        self.has_reasoned = True
        return end + len(marks.end)

    def _content(self, text: str, at: int) -> int:
        begin = None if self._find_begin is None else self._find_begin.search(text, at)
        if begin is not None:
            self._emit(Content, self._space.add(text[at : begin.start()]))
            self._begin_call()
            return begin.start()
        keep = held_back(text, at, self._begins)
        self._held = text[len(text) - keep :]
        self._emit(Content, self._space.add(text[at : len(text) - keep]))
        return len(text)

    def _begin_call(self) -> None:
        assert self._settings.calls is not None
        self._state = _State.CALL
        self._call = self._settings.calls()
        self._body = []

    def _in_call(self, text: str, at: int) -> int:
        assert self._call is not None
        start = at
        if not self._body:
            begin = next((b for b in self._begins if text.startswith(b, at)), "")
            at += len(begin)
        end = self._call.find_end(text, at)
        self._body.append(text[start : len(text) if end < 0 else end])
        if end < 0:
            return len(text)
        self._end_call()
        return end

    def _end_call(self) -> None:
        """The text of a call is complete, or the output was cut off in it."""
        assert self._call is not None
        body = "".join(self._body)
        try:
            calls = self._call.read(body, self._settings.tools)
        except ValueError:
            self._state = _State.CONTENT
            self._emit(Content, self._space.add(body))
            return
        self._state = _State.EDGE
        self._space.drop_all()
        self._space.drop_next()
        for call in calls:
            if self.num_calls == 0 or self._settings.parallel:
                self.num_calls += 1
                self._out.append(call)


class _Space:
    """White space at the end of what was read: text only if more text follows."""

    def __init__(self) -> None:
        self._pending: list[str] = []
        self._dropping = False

    def add(self, text: str) -> str:
        """More text; what is certain to be text now, without the white space at its end."""
        solid = text.rstrip(SPACE)
        if not solid:
            self._pending.append(text)
            return ""
        before = self.rest()
        self._pending.append(text[len(solid) :])
        if self._dropping:
            self._dropping = False
            return solid.lstrip(SPACE)
        return before + solid

    def rest(self) -> str:
        """The white space that was held back, unless it only separates."""
        pending, self._pending = self._pending, []
        return "" if self._dropping else "".join(pending)

    def drop_all(self) -> None:
        """What follows is no text: the white space before it separates."""
        self._pending = []

    def drop_next(self) -> None:
        """White space before the next text separates."""
        self._dropping = True


def _is_begun(marker: str, text: str, at: int) -> bool:
    """Whether the text from `at` on is the beginning of a marker."""
    return len(text) - at < len(marker) and marker.startswith(text[at:])


def join_pieces(pieces: list[Piece]) -> tuple[str, str, list[Call]]:
    """Reasoning, content and calls of an output that was read in pieces."""
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    return reasoning, content, [piece for piece in pieces if isinstance(piece, Call)]
