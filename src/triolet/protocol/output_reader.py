"""Deltas of one output to reasoning, content and identified calls, for every protocol."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from triolet.output import OutputDelta
from triolet.protocol.finish import chat_finish
from triolet.protocol.parsers.call import Call, Content, Piece, Reasoning
from triolet.protocol.parsers.output_parser import OutputParser, ParserSettings

MISTRAL_ID_CHARS = 9
"""Mistral's templates refuse an id that has not nine letters or digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the outputs of one request are read.

    Attributes:
        parser: What to look for.
        named: The client chose the function itself.
        include_reasoning: The client gets the reasoning.
        reasoning_end_id: The token that ends reasoning, where it is one token.
        short_ids: Ids of calls as Mistral's templates want them.
    """

    parser: ParserSettings = field(default_factory=ParserSettings)
    named: bool = False
    include_reasoning: bool = True
    reasoning_end_id: int | None = None
    short_ids: bool = False

    @property
    def reasons(self) -> bool:
        """Whether the model reasons, as far as its template tells."""
        return self.parser.reasoning is not None

    @property
    def hides_reasoning(self) -> bool:
        """Whether there may be reasoning that the client does not want."""
        return self.reasons and not self.include_reasoning


PLAIN = Reading()
"""The text is the content."""


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call with its place and its id.

    Attributes:
        index: Among the calls of the output.
        id: By which its result refers to it.
        call: What is called.
    """

    index: int
    id: str
    call: Call


OutputPiece = Reasoning | Content | MadeCall


class OutputReader:
    """Reads the deltas of one output.

    Args:
        reading: How.
        seed: The answer's id: ids of calls follow from it.
        index: The output's.

    Attributes:
        reasoning_tokens: Tokens of the reasoning so far, its marks included.
        num_calls: Calls so far.
    """

    def __init__(self, reading: Reading, seed: str, index: int = 0) -> None:
        self._reading = reading
        self._seed = f"{seed}/{index}"
        self._parser = OutputParser(reading.parser)
        self._finish: tuple[str | None, str | int | None] = (None, None)
        self._undecided_tokens = 0
        self.reasoning_tokens = 0
        self.num_calls = 0

    def put(self, delta: OutputDelta) -> list[OutputPiece]:
        """What a delta adds. After it, `finish` is known if the delta is the last."""
        was_decided = self._parser.reasoning_decided
        pieces = self._parser.push(delta.text)
        if not was_decided:
            self._count_reasoning(delta)
        if delta.finish_reason is not None:
            pieces += self._parser.finish()
        out = [self._identified(piece) for piece in pieces]
        if delta.finish_reason is not None:
            self._finish = chat_finish(
                delta, made_calls=self.num_calls > 0, named=self._reading.named
            )
        if self._reading.include_reasoning:
            return out
        return [piece for piece in out if not isinstance(piece, Reasoning)]

    @property
    def finish(self) -> tuple[str | None, str | int | None]:
        """(`finish_reason`, `stop_reason`), (None, None) while the output goes on."""
        return self._finish

    def _identified(self, piece: Piece) -> OutputPiece:
        if not isinstance(piece, Call):
            return piece
        made = MadeCall(self.num_calls, self._call_id(self.num_calls), piece)
        self.num_calls += 1
        return made

    def _call_id(self, index: int) -> str:
        digest = hashlib.sha256(f"{self._seed}/{index}".encode()).hexdigest()
        return digest[:MISTRAL_ID_CHARS] if self._reading.short_ids else f"call_{digest[:24]}"

    def _count_reasoning(self, delta: OutputDelta) -> None:
        """Count tokens until reasoning has ended, or it is clear that there is none.

        A delta may hold its end and what follows; where the end is one token, it tells where.
        """
        self._undecided_tokens += len(delta.token_ids)
        if not self._parser.reasoning_decided:
            if self._parser.is_reasoning:
                self.reasoning_tokens = self._undecided_tokens
            return
        if not self._parser.has_reasoned:
            return
        behind = 0
        end_id = self._reading.reasoning_end_id
        if end_id is not None and end_id in delta.token_ids:
            behind = len(delta.token_ids) - delta.token_ids.index(end_id) - 1
        self.reasoning_tokens = self._undecided_tokens - behind
