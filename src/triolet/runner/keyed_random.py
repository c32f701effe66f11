"""Random numbers that are looked up, not drawn.

The uniform number behind a token is a pure function of the request's seed, of which of its n
outputs the token belongs to, and of the token's position. So the same seed gives the same
output alone, in a crowd, after preemption, after a restart and on another device.

The function is a chain of three finalisers of SplitMix64 (Steele, Lea, Flood: "Fast splittable
pseudorandom number generators", OOPSLA 2014), with the multipliers "Mix13" of David Stafford
(https://zimbry.blogspot.com/2011/09/better-bit-mixing-improving-on.html).
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_UNIT = 2.0**-53


def _mix(state: int) -> int:
    """A bijection of 64-bit words in which every input bit flips each output bit evenly."""
    state = (state + _GOLDEN_GAMMA) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def stream_key(seed: int, sample_index: int) -> int:
    """The key of one output of a request, constant for its life.

    Args:
        seed: Any 64-bit integer, signed or not.
        sample_index: Which of the n outputs.

    Returns:
        A 64-bit word for `uniform`.
    """
    return _mix(_mix(seed & _MASK) ^ (sample_index & _MASK))


def uniform(key: int, position: int) -> float:
    """The number of one token.

    Args:
        key: From `stream_key`.
        position: Index of the token in its sequence, prompt included.

    Returns:
        A multiple of 2**-53 in [0, 1).
    """
    return (_mix(key ^ (position & _MASK)) >> 11) * _UNIT
