"""The lookup behaves like a random source in every direction, and never changes."""

import math

import pytest
from hypothesis import given, strategies as st

from triolet.runner.keyed_random import stream_key, uniform

DRAWS = 4096
BINS = 32


def chi_square(values: list[float]) -> float:
    """Statistic of equal bins; BINS - 1 degrees of freedom, so mean 31 and deviation 7.9."""
    counts = [0] * BINS
    for value in values:
        counts[int(value * BINS)] += 1
    expected = len(values) / BINS
    return sum((count - expected) ** 2 / expected for count in counts)


@pytest.mark.parametrize(
    "values",
    [
        [uniform(stream_key(7, 0), position) for position in range(DRAWS)],
        [uniform(stream_key(seed, 0), 100) for seed in range(DRAWS)],
        [uniform(stream_key(7, sample), 100) for sample in range(DRAWS)],
        [uniform(stream_key(seed << 32, 0), 100) for seed in range(DRAWS)],
        # the product of neighbours, mapped back to uniform: p - p * ln(p) is its distribution
        [
            product * (1 - math.log(product))
            for position in range(DRAWS)
            if (
                product := uniform(stream_key(1, 0), position) * uniform(stream_key(2, 0), position)
            )
        ],
    ],
    ids=["positions", "seeds", "samples", "high-bits", "neighbouring-seeds"],
)
def test_numbers_are_uniform_along_every_axis(values: list[float]) -> None:
    assert 9 < chi_square(values) < 75  # four deviations, more above: the tail is long there


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 127), st.integers(0, 1 << 20))
def test_numbers_are_in_range_and_repeat(seed: int, sample: int, position: int) -> None:
    value = uniform(stream_key(seed, sample), position)
    assert 0.0 <= value < 1.0
    assert value == uniform(stream_key(seed, sample), position)
    assert value * 2**53 == int(value * 2**53)


def test_numbers_are_those_of_earlier_versions() -> None:
    """A request that resumes on another replica may meet another version of this code."""
    assert [uniform(stream_key(0, 0), p) for p in range(2)] == [
        0.13870941014555427,
        0.18436667429957676,
    ]
    assert uniform(stream_key(-1, 3), 1000) == 0.9234643141878413
