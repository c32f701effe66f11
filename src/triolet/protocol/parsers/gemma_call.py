"""FunctionGemma's own notation of a call: `call:f{a:<escape>x<escape>,b:{c:[1,true]}}`.

Source: the chat template of google/functiongemma-270m-it (macro `format_argument`): strings
stand between two `<escape>`, keys are bare, everything else is as in JSON.
"""

from __future__ import annotations

from triolet.protocol.parsers.scan import load_json

_ESCAPE = "<escape>"
_SPACE = " \t\r\n"
DEPTH_MAX = 64
"""As deep as JSON may nest in a request."""


def read_gemma_call(text: str) -> tuple[str, dict[str, object]]:
    """Name and arguments of a call, in one pass.

    Raises:
        ValueError: The text is no call.
    """
    if not text.startswith("call:"):
        raise ValueError("no call")
    name, found, _ = text.removeprefix("call:").partition("{")
    if not found:
        raise ValueError("no arguments")
    reader = _Reader(text, len("call:") + len(name))
    value = reader.value(0)
    reader.skip_space()
    if not isinstance(value, dict) or reader.at != len(text):
        raise ValueError("text after the arguments")
    return name.strip(_SPACE), value


class _Reader:
    """A reader of values that only moves forward."""

    def __init__(self, text: str, at: int) -> None:
        self.at = at
        self._text = text

    def skip_space(self) -> None:
        """Move to the next character that is no white space."""
        while self.at < len(self._text) and self._text[self.at] in _SPACE:
            self.at += 1

    def value(self, depth: int) -> object:
        """The value here."""
        if depth > DEPTH_MAX:
            raise ValueError("nested too deep")
        self.skip_space()
        if self._text.startswith(_ESCAPE, self.at):
            return self._until(_ESCAPE, self.at + len(_ESCAPE))
        match self._text[self.at : self.at + 1]:
            case "{":
                return self._object(depth)
            case "[":
                return self._array(depth)
            case _:
                return self._scalar()

    def _object(self, depth: int) -> dict[str, object]:
        out: dict[str, object] = {}
        self.at += 1
        while not self._closed("}", first=not out):
            self.skip_space()
            if self._text.startswith(_ESCAPE, self.at):
                key = self._until(_ESCAPE, self.at + len(_ESCAPE))
                self._until(":", self.at)
            else:
                key = self._until(":", self.at).strip(_SPACE).strip('"')
            out[key] = self.value(depth + 1)
        return out

    def _array(self, depth: int) -> list[object]:
        out: list[object] = []
        self.at += 1
        while not self._closed("]", first=not out):
            out.append(self.value(depth + 1))
        return out

    def _closed(self, bracket: str, *, first: bool) -> bool:
        """Whether the container ends here; otherwise move behind the comma, if one is due."""
        self.skip_space()
        character = self._text[self.at : self.at + 1]
        if character == bracket:
            self.at += 1
            return True
        if not first:
            if character != ",":
                raise ValueError("no comma")
            self.at += 1
        return False

    def _until(self, marker: str, start: int) -> str:
        end = self._text.find(marker, start)
        if end < 0:
            raise ValueError(f"no {marker}")
        self.at = end + len(marker)
        return self._text[start:end]

    def _scalar(self) -> object:
        start = self.at
        if self._text[start : start + 1] == '"':
            self.at = start + 1
            while self._text[self.at : self.at + 1] not in ("", '"'):
                self.at += 2 if self._text[self.at] == "\\" else 1
            self.at += 1
        else:
            while self.at < len(self._text) and self._text[self.at] not in ",]}":
                self.at += 1
        return load_json(self._text[start : self.at])
