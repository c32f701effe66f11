"""Find the k-th largest logit of a row, or the one that completes a nucleus, without sorting.

A histogram of 16 bins is taken of one 4-bit digit after another, from the best value down; the
bin in which the target is reached becomes the prefix of the next digit. The first two digits are
of the distance from the row's best logit, where the interesting values are spread out; the few
that share them are copied to scratch memory, and eight digits of their bits settle the rest
exactly. (The same selection as the native CPU sampler's, with digits instead of 1024 bins.)

Sums are taken tile by tile in a fixed order, with no atomics: equal rows get equal results.
"""

from __future__ import annotations

import triton.language as tl

from triolet_kernels.triton.functions import LOG2E
from triolet_kernels.triton.jit import Value, jit

COARSE_SPAN = tl.constexpr(32.0)
"""Distance from the best logit, in temperatures, that the coarse digits resolve: e^-32 of the
best token's mass is less than float32 resolves. Everything further shares the last bin."""


@jit
def order_key(x: Value) -> Value:
    """int64 in [0, 2^32) with the order of float32 x; -0.0 is 0.0, NaN must not be there."""
    x = tl.where(x == 0.0, 0.0, x)
    bits = x.to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(bits >= 0, bits + 2147483648, -1 - bits)


@jit
def key_value(key: Value) -> Value:
    """float32 of an order key."""
    bits = tl.where(key >= 2147483648, key - 2147483648, -1 - key)
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@jit
def mass_of(x: Value, best: Value, sharpness: Value) -> Value:
    """exp((x - best) / temperature) in float32; sharpness is log2(e) / temperature."""
    return tl.exp2((x - best) * sharpness)


@jit
def _coarse(x: Value, best: Value, rate: Value) -> Value:
    """int32 in 0..255: 255 for the best values, falling with the distance."""
    return 255 - tl.minimum((best - x) * rate, 255.0).to(tl.int32)


@jit
def _histogram(digit: Value, weight: Value) -> Value:
    """float32 [16], weight by digit."""
    bins = tl.arange(0, 16)
    return tl.sum(tl.where(digit[:, None] == bins[None, :], weight[:, None], 0.0), 0)


@jit
def _pick(histogram: Value, above: Value, target: Value) -> Value:
    """The bin in which the target is reached, from the best bin down.

    Rounding may keep the target out of reach: then the last bin with anything in it.
    """
    bins = tl.arange(0, 16)
    from_here_up = bins[None, :] >= bins[:, None]
    reached = above + tl.sum(tl.where(from_here_up, histogram[None, :], 0.0), 1)
    chosen = tl.max(tl.where((reached >= target) & (histogram > 0.0), bins, -1), 0)
    lowest = tl.min(tl.where(histogram > 0.0, bins, 15), 0)
    return tl.where(chosen < 0, lowest, chosen)


@jit
def _weight(x: Value, best: Value, sharpness: Value, BY_MASS: tl.constexpr) -> Value:
    """What a value counts: its mass, or 1."""
    weight = tl.full(x.shape, 1.0, tl.float32)
    if BY_MASS:
        weight = mass_of(x, best, sharpness)
    return weight


@jit
def select(
    logits_ptr: Value,
    scratch_ptr: Value,
    width: Value,
    best: Value,
    sharpness: Value,
    floor: Value,
    target: Value,
    BY_MASS: tl.constexpr,
    TILE: tl.constexpr,
) -> Value:
    """Order key of the largest value v such that the values >= v weigh at least the target.

    Args:
        logits_ptr: float32 [width], one row without NaN.
        scratch_ptr: float32 [width].
        width: V.
        best: Largest logit, finite.
        sharpness: log2(e) / temperature.
        floor: Values whose order key is below it do not count.
        target: float32; a number of values, or a mass.
        BY_MASS: A value weighs its mass; otherwise 1.
        TILE: Values at a time.

    Returns:
        The order key, int64, and the weight of all values above it, float32.
    """
    rate = 256.0 / COARSE_SPAN
    if BY_MASS:
        rate = sharpness * (256.0 / (COARSE_SPAN * LOG2E))
    lane = tl.arange(0, TILE)
    bins = tl.arange(0, 16)
    above = target * 0.0
    prefix = width * 0
    for level in range(2):
        histogram = tl.zeros([16], tl.float32)
        for begin in range(0, width, TILE):
            valid = begin + lane < width
            x = tl.load(logits_ptr + begin + lane, mask=valid, other=float("-inf"))
            fine = _coarse(x, best, rate)
            counts = valid & (order_key(x) >= floor) & ((level == 0) | ((fine >> 4) == prefix))
            weight = tl.where(counts, _weight(x, best, sharpness, BY_MASS), 0.0)
            histogram += _histogram((fine >> (4 - 4 * level)) & 15, weight)
        chosen = _pick(histogram, above, target)
        above += tl.sum(tl.where(bins > chosen, histogram, 0.0), 0)
        prefix = prefix * 16 + chosen

    size = width * 0
    for begin in range(0, width, TILE):
        valid = begin + lane < width
        x = tl.load(logits_ptr + begin + lane, mask=valid, other=float("-inf"))
        hit = valid & (order_key(x) >= floor) & (_coarse(x, best, rate) == prefix)
        place = size + tl.cumsum(hit.to(tl.int32), 0) - 1
        tl.store(scratch_ptr + place, x, mask=hit)
        size += tl.sum(hit.to(tl.int32), 0)
    tl.debug_barrier()  # other threads read what this one has written

    key = floor * 0
    for level in range(8):
        histogram = tl.zeros([16], tl.float32)
        for begin in range(0, size, TILE):
            valid = begin + lane < size
            x = tl.load(scratch_ptr + begin + lane, mask=valid, other=float("-inf"))
            own = order_key(x)
            counts = valid & ((own >> (32 - 4 * level)) == key)
            weight = tl.where(counts, _weight(x, best, sharpness, BY_MASS), 0.0)
            histogram += _histogram(((own >> (28 - 4 * level)) & 15).to(tl.int32), weight)
        chosen = _pick(histogram, above, target)
        above += tl.sum(tl.where(bins > chosen, histogram, 0.0), 0)
        key = key * 16 + chosen
    tl.debug_barrier()  # the next selection writes the scratch memory again
    return key, above
