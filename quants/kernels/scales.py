"""The scale searches of the legacy and K formats: sixteen blocks at a time, in the operation order of llama.cpp.

Each works on `count` values a lane: value i of all lanes is at [at + 16 * i]. Searches return what gives the codes
(an inverse scale), and the scale; the codes themselves are computed once, when a search is over.
"""

from typing import Any

import numpy as np

from .blocks import Floats, Words
from .jit import inlined, inlined_once
from .lane_memory import load, store
from .lanes import (
    LANES,
    Lanes,
    absolute,
    any_lane,
    every,
    larger,
    nearest,
    round_even,
    smaller,
    to_float,
    to_int,
    where,
)
from .wide_lanes import every_wide, load_wide, store_wide

ZERO, ONE, TENTH = np.float32(0), np.float32(1), np.float32(0.1)
NOTHING = np.float32(1e-15)  # groups with no larger value are zero


@inlined
def extreme(x: Floats, at: int, count: int, apart: int | None = None) -> tuple[Lanes, Lanes]:
    """Return the first value of largest magnitude, with its sign, and that magnitude; of GROUPS groups if they are
    `apart`.
    """
    peak = every_wide(ZERO, apart)
    signed = peak
    for i in range(at, at + LANES * count, LANES):
        v = load_wide(x, i, apart)
        size = absolute(v)
        more = size > peak
        peak, signed = where(more, size, peak), where(more, v, signed)
    return signed, peak


@inlined
def span(x: Floats, at: int, count: int) -> Lanes:
    """Return the lowest and the highest value."""
    low = load(x, at)
    high = low
    for i in range(at + LANES, at + LANES * count, LANES):
        v = load(x, i)
        low, high = smaller(v, low), larger(v, high)
    return low, high


@inlined
def signed_codes(v: Lanes, inverse: Lanes, top: np.float32) -> Lanes:
    """Return integers -top … top - 1, as float."""
    return larger(smaller(round_even(inverse * v), top - ONE), -top)


@inlined
def signed_scale(
    x: Floats,
    weights: Floats,
    products: Floats,
    limited: Floats,
    at: int,
    count: int,
    top: np.float32,
    apart: int | None,
) -> tuple[Lanes, Lanes]:
    """Return the best scale for codes -top … top - 1 of 19 around extreme / -top, and its inverse, for groups `apart`.

    Both are 0 where all values are below 1e-15, the scale also where all weights are 0. products, limited: room as
    long as x.
    """
    peak = every_wide(ZERO, apart)
    signed = peak
    for i in range(at, at + LANES * count, LANES):
        v = load_wide(x, i, apart)
        store_wide(products, i, apart, load_wide(weights, i, apart) * v)
        size = absolute(v)
        more = size > peak
        peak, signed = where(more, size, peak), where(more, v, signed)
    inverse, following = -top / signed, tenths_off(signed, top, -9)
    limit_values(x, at, count, signed, ONE, middle(top - MORE, top - HALF, top - HALF, top + FEW), apart, limited)
    sum_lx, sum_ll = signed_sums(limited, weights, products, at, count, inverse, apart)
    scale = where(sum_ll == ZERO, ZERO, sum_lx / sum_ll)
    best, best_inverse = scale * sum_lx, inverse
    for step in range(-9, 10):
        if step == 0:
            continue
        if step == 5:
            below = middle(top - HALF, top + HALF, top + HALF, top + MANY)
            above = middle(top - MORE, top - HALF, top + HALF, top + MANY)
            limit_values(x, at, count, signed, below, above, apart, limited)
        inverse, following = following, tenths_off(signed, top, step + 1 if step != -1 else 1)
        sum_lx, sum_ll = signed_sums(x if step < -5 else limited, weights, products, at, count, inverse, apart)
        better = (sum_ll > ZERO) & (sum_lx * sum_lx > best * sum_ll)
        scale = where(better, sum_lx / sum_ll, scale)
        best, best_inverse = where(better, scale * sum_lx, best), where(better, inverse, best_inverse)
    empty = peak < NOTHING
    return where(empty, ZERO, scale), where(empty, ZERO, best_inverse)


# Codes must stay within -top … top - 1. The extreme has the code -(top + step / 10): with steps of -9 … -6 no value's
# code rounds to more than there is. For the others, instead of every code, the few values that are too large are
# limited beforehand, once for all steps from -5 to 4, once for those from 5 to 9: to a part of the extreme which at
# each of them rounds to the outermost code.
HALF, MORE, FEW, MANY = np.float32(0.5), np.float32(1.5), np.float32(0.4), np.float32(0.9)


@inlined
def middle(low: np.float32, high: np.float32, lowest: np.float32, highest: np.float32) -> Any:
    """Return a scale between low / lowest and high / highest: multiplied by anything from `lowest` to `highest`, it is
    between low and high.
    """
    return HALF * (low / lowest + high / highest)


@inlined
def limit_values(
    x: Floats,
    at: int,
    count: int,
    signed: Lanes,
    below: np.float32,
    above: np.float32,
    apart: int | None,
    limited: Floats,
) -> None:
    """Limit the values between `below` times the extreme, which has the lowest code, and -`above` times it."""
    one, other = signed * below, signed * -above
    low, high = smaller(one, other), larger(one, other)
    for i in range(at, at + LANES * count, LANES):
        store_wide(limited, i, apart, larger(smaller(load_wide(x, i, apart), high), low))


@inlined_once
def tenths_off(signed: Lanes, top: np.float32, step: int) -> Lanes:
    """Return the inverse scale that gives the extreme the code -top - step / 10."""
    return -(top + TENTH * np.float32(step)) / signed


@inlined
def signed_sums(
    x: Floats, weights: Floats, products: Floats, at: int, count: int, inverse: Lanes, apart: int | None
) -> tuple[Lanes, Lanes]:
    """Return sums of weight * value * code and weight * code * code; x may be limited, the products are not."""
    sum_lx, sum_ll = every_wide(ZERO, apart), every_wide(ZERO, apart)
    for i in range(at, at + LANES * count, LANES):
        code = round_even(inverse * load_wide(x, i, apart))
        sum_lx += load_wide(products, i, apart) * code
        sum_ll += load_wide(weights, i, apart) * code * code
    return sum_lx, sum_ll


@inlined_once
def offset_codes(v: Lanes, low: Lanes, inverse: Lanes, top: np.float32) -> Lanes:
    """Return integers 0 … top, as float.

    Where all weight is on values close to each other, v - low of another value can exceed the range that rounds
    properly.
    """
    return larger(smaller(nearest(inverse * (v - low)), top), ZERO)


@inlined
def _offset_sums(
    x: Floats, weights: Floats, at: int, far: int, minimum: Lanes, inverse: Lanes, top: np.float32, codes: Floats
) -> tuple[Lanes, Lanes, Lanes]:
    """Compute the codes at a scale with its minimum; return sums of weight * code, weight * code * code and weight *
    code * value. far: as in `scale_and_minimum`.
    """
    sum_l, sum_ll, sum_xl = every_wide(ZERO, far), every_wide(ZERO, far), every_wide(ZERO, far)
    for i in range(0, far, LANES):
        v, w = load_wide(x, at + i, far), load_wide(weights, at + i, far)
        code = offset_codes(v, minimum, inverse, top)
        store_wide(codes, i, far, code)
        weighted = w * code
        sum_l += weighted
        sum_ll += weighted * code
        sum_xl += weighted * v
    return sum_l, sum_ll, sum_xl


@inlined
def scale_and_minimum(
    x: Floats,
    weights: Floats,
    at: int,
    count: int,
    top: np.float32,
    first: np.float32,
    step: np.float32,
    steps: int,
    absolute_error: bool,
    scratch: Floats,
) -> tuple[Lanes, Lanes, Lanes, Lanes]:
    """Return the best of `steps` + 1 scales with its minimum: value = scale * code - minimum, codes 0 … top.

    For GROUPS groups in step, each following the one before. Tries inverse scales (first + step * k + top) / spread,
    each counting from the lowest value of the best so far. Returns scale, minimum, and for the codes that lowest value
    and the inverse scale; scale and inverse are 0 where all values are equal. Errors count squared, or as they are.
    scratch: as long as the values of the groups.
    """
    far = LANES * count  # from one group to the next
    low = load_wide(x, at, far)
    high, sum_w = low, load_wide(weights, at, far)
    sum_x = sum_w * low
    for i in range(LANES, far, LANES):
        v, w = load_wide(x, at + i, far), load_wide(weights, at + i, far)
        low, high = smaller(v, low), larger(v, high)
        sum_w += w
        sum_x += w * v
    low = where(low > ZERO, ZERO, low)
    empty = ~(high > low)
    inverse = top / (high - low)
    scale, minimum = ONE / inverse, low
    best = every_wide(ZERO, far)
    for i in range(0, far, LANES):
        v, w = load_wide(x, at + i, far), load_wide(weights, at + i, far)
        error = scale * offset_codes(v, low, inverse, top) + minimum - v
        best += w * (absolute(error) if absolute_error else error * error)
    best_inverse = inverse
    for k in range(steps + 1):
        inverse = (first + step * np.float32(k) + top) / (high - minimum)
        sum_l, sum_ll, sum_xl = _offset_sums(x, weights, at, far, minimum, inverse, top, scratch)
        determinant = sum_w * sum_ll - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_minimum = (sum_ll * sum_x - sum_l * sum_xl) / determinant
        positive = new_minimum > ZERO
        if any_lane(positive):
            new_scale, new_minimum = where(positive, sum_xl / sum_ll, new_scale), where(positive, ZERO, new_minimum)
        total = every_wide(ZERO, far)
        for i in range(0, far, LANES):
            v, w = load_wide(x, at + i, far), load_wide(weights, at + i, far)
            error = new_scale * load_wide(scratch, i, far) + new_minimum - v
            total += w * (absolute(error) if absolute_error else error * error)
        better = (determinant > ZERO) & (total < best)
        best = where(better, total, best)
        best_inverse, low = where(better, inverse, best_inverse), where(better, minimum, low)
        scale, minimum = where(better, new_scale, scale), where(better, new_minimum, minimum)
    return where(empty, ZERO, scale), -minimum, low, where(empty, ZERO, best_inverse)


@inlined
def linear_codes(values: Floats, count: int, top: np.float32, codes: Words) -> Lanes:
    """Compute codes 0 … top in proportion to the largest of `count` values of each lane; return the scale, largest /
    top.
    """
    peak = every(ZERO)
    for i in range(0, LANES * count, LANES):
        peak = larger(load(values, i), peak)
    inverse = where(peak > ZERO, top / peak, ZERO)
    for i in range(0, LANES * count, LANES):
        code = to_int(nearest(inverse * load(values, i))) & 255  # a negative number wraps
        store(codes, i, smaller(code, to_int(every(top))))
    return peak / top


@inlined
def positive_scale(
    values: Floats, weights: Floats, count: int, top: np.float32, scratch: Floats, codes: Words
) -> Lanes:
    """Compute codes 0 … top for `count` values of each lane by weighted least squares; return the scale.

    Nine scales are tried, then single codes are moved as long as that helps, in at most five rounds. Codes are bytes:
    those of negative values wrap.
    """
    peak = every(ZERO)
    for i in range(0, LANES * count, LANES):
        peak = larger(peak, load(values, i))
    best_inverse, best = top / peak, every(ZERO)
    scale = ONE / best_inverse
    for i in range(0, LANES * count, LANES):
        v = load(values, i)
        error = v - scale * _as_byte(round_even(best_inverse * v))
        best += load(weights, i) * error * error
    for step in range(-4, 5):
        if step == 0:
            continue
        inverse, total = (TENTH * np.float32(step) + top) / peak, every(ZERO)
        scale = ONE / inverse
        for i in range(0, LANES * count, LANES):
            v = load(values, i)
            error = v - scale * smaller(round_even(inverse * v), top)
            total += load(weights, i) * error * error
        better = total < best
        best, best_inverse = where(better, total, best), where(better, inverse, best_inverse)
    sum_lx, sum_ll = every(ZERO), every(ZERO)
    for i in range(0, LANES * count, LANES):
        v, w = load(values, i), load(weights, i)
        code = smaller(round_even(best_inverse * v), top)
        store(scratch, i, _as_byte(code))
        sum_lx += w * v * code
        sum_ll += w * code * code
    for _ in range(5):
        changed = best != best
        for i in range(0, LANES * count, LANES):
            v, w, code = load(values, i), load(weights, i), load(scratch, i)
            rest_lx, rest_ll = sum_lx - w * v * code, sum_ll - w * code * code
            new = smaller(nearest(v * rest_ll / rest_lx), top)
            new_lx, new_ll = rest_lx + w * v * new, rest_ll + w * new * new
            better = (rest_lx > ZERO) & (rest_ll > ZERO) & (new != code)
            better &= new_lx * new_lx * sum_ll > sum_lx * sum_lx * new_ll
            if any_lane(better):
                store(scratch, i, where(better, _as_byte(new), code))
                sum_lx, sum_ll = where(better, new_lx, sum_lx), where(better, new_ll, sum_ll)
                changed |= better
        if not any_lane(changed):
            break
    empty = peak < NOTHING
    for i in range(0, LANES * count, LANES):
        store(codes, i, where(empty, 0, to_int(load(scratch, i))))
    return where(empty | ~(sum_ll > ZERO), ZERO, sum_lx / sum_ll)


@inlined
def _as_byte(code: Lanes) -> Lanes:
    return to_float(to_int(code) & 255)


@inlined
def refined_scale(x: Floats, at: int, count: int, top: np.float32, codes: Floats) -> Lanes:
    """Return a scale for codes -top … top - 1 weighted by x * x; single codes are moved, in up to 5 rounds, while that
    helps.

    For GROUPS groups in step, each following the one before. The codes, as float, go to the same places as the values;
    -top for all where all values are below 1e-15.
    """
    far = LANES * count
    signed, peak = extreme(x, at, count, far)
    inverse = -top / signed
    sum_lx, sum_ll = every_wide(ZERO, far), every_wide(ZERO, far)
    for i in range(at, at + far, LANES):
        v = load_wide(x, i, far)
        code, w = signed_codes(v, inverse, top), v * v
        store_wide(codes, i, far, code)
        sum_lx += w * v * code
        sum_ll += w * code * code
    for _ in range(5):
        changed = peak != peak
        for i in range(at, at + far, LANES):
            v, code = load_wide(x, i, far), load_wide(codes, i, far)
            w = v * v
            product = w * v
            rest_lx, rest_ll = sum_lx - product * code, sum_ll - w * code * code
            new = larger(smaller(nearest(v * rest_ll / rest_lx), top - ONE), -top)
            moved = (rest_lx > ZERO) & (new != code)
            if any_lane(moved):
                new_lx, new_ll = rest_lx + product * new, rest_ll + w * new * new
                better = moved & (new_ll > ZERO) & (new_lx * new_lx * sum_ll > sum_lx * sum_lx * new_ll)
                store_wide(codes, i, far, where(better, new, code))
                sum_lx, sum_ll = where(better, new_lx, sum_lx), where(better, new_ll, sum_ll)
                changed |= better
        if not any_lane(changed):
            break
    empty = peak < NOTHING
    if any_lane(empty):
        for i in range(at, at + far, LANES):
            store_wide(codes, i, far, where(empty, -top, load_wide(codes, i, far)))
    return where(empty | ~(sum_ll > ZERO), ZERO, sum_lx / sum_ll)
