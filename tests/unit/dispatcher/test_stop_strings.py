"""The matcher against a naive search over the whole text."""

import time

import pytest
from hypothesis import example, given, settings, strategies as st

from triolet.dispatcher.stop_strings import StopMatch, StopMatcher

STOPS = st.lists(st.text(alphabet="ab", min_size=2, max_size=7), min_size=1, max_size=3)
PIECES = st.lists(st.tuples(st.text(alphabet="ab", max_size=5), st.booleans()), max_size=12)


def naive(pieces: list[tuple[str, bool]], stops: list[str]) -> tuple[str, int] | None:
    """(stop, position behind it) of the match that is completed first in an armed piece."""
    text, position = "".join(piece for piece, _ in pieces), 0
    for piece, armed in pieces:
        for end in range(position + 1, position + len(piece) + 1):
            for stop in stops:
                if armed and text[:end].endswith(stop):
                    return stop, end
        position += len(piece)
    return None


def naive_held(text: str, stops: list[str]) -> int:
    lengths = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max(lengths, default=0)


@given(PIECES, STOPS)
@example([("aab", True)], ["b", "ab", "aab"])
@example([("abab", False), ("ab", True)], ["ababab"])
@example([("aaab", True)], ["aab"])
@example([("abab", False), ("ab", True)], ["abab"])
@settings(max_examples=40, deadline=None)
def test_match_is_the_first_completed_one(pieces: list[tuple[str, bool]], stops: list[str]) -> None:
    check_match(pieces, stops)


@pytest.mark.slow
@given(PIECES, STOPS)
@settings(max_examples=1000, deadline=None)
def test_match_is_the_first_of_many_more(pieces: list[tuple[str, bool]], stops: list[str]) -> None:
    check_match(pieces, stops)


def check_match(pieces: list[tuple[str, bool]], stops: list[str]) -> None:
    """Assert that the matcher does what the naive search does, piece by piece."""
    matcher = StopMatcher(stops)
    text, expected = "", naive(pieces, stops)
    for piece, armed in pieces:
        text += piece
        match = matcher.feed(piece, armed=armed)
        if match is not None:
            assert (match.stop, len(text) - match.num_chars_after) == expected
            return
        assert matcher.num_chars_held == naive_held(text, stops)
    assert expected is None


def test_stop_listed_first_wins_where_two_end() -> None:
    assert StopMatcher(["ab", "b"]).feed("xab") == StopMatch("ab", 0)
    assert StopMatcher(["b", "ab"]).feed("xab") == StopMatch("b", 0)


def test_stop_shorter_than_a_piece_leaves_text_behind_it() -> None:
    assert StopMatcher(["\n"]).feed("one\ntwo") == StopMatch("\n", 3)


def test_stop_completed_while_unarmed_does_not_count_again() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed("END", armed=False) is None
    assert matcher.feed(" and on") is None
    assert matcher.num_chars_held == 0


def test_stop_begun_while_unarmed_counts() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed("xEN", armed=False) is None
    assert matcher.num_chars_held == 2
    assert matcher.feed("D.") == StopMatch("END", 1)


def test_characters_of_regular_expressions_are_plain() -> None:
    for stop in ("^", "]", "\\", "-z", "[", "^-]"):
        assert StopMatcher(["]^", stop]).feed(f"a{stop}b") == StopMatch(stop, 1)


def test_stops_and_text_need_no_case_folding_or_normal_form() -> None:
    assert StopMatcher(["é"]).feed("e\u0301 É") is None
    assert StopMatcher(["👩‍👩‍👧"]).feed("👩‍👩‍👧‍👦") == StopMatch("👩‍👩‍👧", 2)


@pytest.mark.slow
def test_time_is_linear_for_the_worst_text() -> None:
    """Text that is all but a match everywhere: a search from each position would take 10^10."""
    matcher = StopMatcher(["a" * 1023 + "b"] * 4)
    begun = time.perf_counter()
    for _ in range(1000):
        assert matcher.feed("a" * 100) is None
    assert time.perf_counter() - begun < 5
    assert matcher.num_chars_held == 1023
