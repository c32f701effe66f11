"""Stop strings matched over a stream of text.

Rules: the match that is completed first wins, at the same character the one listed first.
Text is held back only as long as its end can still become a stop string.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs


@attrs.frozen
class StopMatch:
    """A stop string in the text.

    Attributes:
        stop: The stop string.
        num_chars_after: Characters of the last piece of text that come after it.
    """

    stop: str
    num_chars_after: int


class StopMatcher:
    """Watches the text of one output.

    Every stop string runs its own Knuth-Morris-Pratt automaton (SIAM J. Comput. 6(2), 1977):
    time is linear in the text, and a failure table is built only as far as its string was
    ever matched, so that a long stop string costs nothing before it begins to appear.

    Args:
        stops: The stop strings in order of rank, none empty.
    """

    __slots__ = ("_automata", "_find_first", "num_chars_held")

    def __init__(self, stops: Sequence[str]) -> None:
        assert stops, "an output without stop strings needs no matcher"
        assert all(stops), "an empty stop string matches everywhere"
        self._automata = [_Automaton(stop) for stop in stops]
        first = "".join(sorted({stop[0] for stop in stops}))
        self._find_first = re.compile(f"[{re.escape(first)}]").search
        self.num_chars_held = 0
        """Length of the longest end of the text that is the beginning of a stop string."""

    def feed(self, text: str, *, armed: bool = True) -> StopMatch | None:
        """Go on with more text.

        Args:
            text: The next piece; may be empty.
            armed: Whether a stop string completed in this piece counts. One that began in
                an earlier, unarmed piece counts.

        Returns:
            The match that ended the output, after which nothing may be fed.
        """
        start = 0
        if not self.num_chars_held:
            first = self._find_first(text)
            if first is None:
                return None
            start = first.start()
        best: StopMatch | None = None
        end = len(text)
        held = 0
        for automaton in self._automata:
            # A later match than the best so far cannot win: stop looking one short of it.
            position = automaton.feed(text, start, end, armed)
            if position is not None:
                best = StopMatch(automaton.stop, len(text) - position)
                end = position - 1
            held = max(held, automaton.num_matched)
        self.num_chars_held = held
        return best


class _Automaton:
    """How much of one stop string the text ends with."""

    __slots__ = ("_failure", "num_matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        # _failure[k]: length of the longest proper border of stop[:k]; [0] is never read.
        self._failure = [0, 0]

    def feed(self, text: str, start: int, end: int, armed: bool) -> int | None:
        """Read `text[start:end]`; return the position just behind a match, if one counts."""
        stop, matched = self.stop, self.num_matched
        for position in range(start, end):
            char = text[position]
            while matched and stop[matched] != char:
                matched = self._border(matched)
            if stop[matched] == char:
                matched += 1
                if matched == len(stop):
                    if armed:
                        self.num_matched = matched
                        return position + 1
                    matched = self._border(matched)
        self.num_matched = matched
        return None

    def _border(self, length: int) -> int:
        """Length of the longest proper border of `stop[:length]`, 1 <= length."""
        stop, failure = self.stop, self._failure
        while len(failure) <= length:
            last = len(failure) - 1
            border = failure[last]
            while border and stop[border] != stop[last]:
                border = failure[border]
            failure.append(border + 1 if stop[border] == stop[last] else 0)
        return failure[length]
