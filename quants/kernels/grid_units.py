"""Recover the scale and the integers of blocks of values that are exactly integers times a scale.

Values are taken as integers times a power of two. Their greatest common divisor is the largest possible scale, and all
other scales are fractions of it. A block without a scale gets 0; the caller decodes and compares.

bits: the values' float32 bits, int32, blocks of one size one after the other. numbers: scratch for a block, int64.
"""

import math

import numpy as np
from numpy.typing import NDArray

from .jit import inlined, kernel

Bits = NDArray[np.int32]
Numbers = NDArray[np.int64]
Scales = NDArray[np.float32]
Codes = NDArray[np.int8]

SPAN = 20  # how many binary orders of magnitude a block's values may span, which keeps the numbers under 2^44
LARGEST_HALF = 65504.0
MARGIN = 1e-12
NEAREST = np.float32(3 << 22)  # adding and subtracting it rounds to the nearest integer
NOT_MANY_TIMES = 13  # E2M1 multiplies half a power of two by less


@inlined
def _whole_numbers(bits: Bits, at: int, count: int, numbers: Numbers) -> int:
    """Store values at … at + count as numbers * 2^exponent and return the exponent; 1000 where they span too much or
    are not finite.
    """
    low, high = 255, 0
    for i in range(at, at + count):
        exponent = (bits[i] >> 23) & 255
        if bits[i] & 0x7FFFFFFF:
            low, high = min(low, max(exponent, 1)), max(high, exponent)
    if high == 255 or high - low > SPAN:
        return 1000
    for i in range(count):
        b = np.int64(bits[at + i])
        exponent = (b >> 23) & 255
        number = (b & 0x7FFFFF) | (np.int64(0x800000) if exponent else np.int64(0))
        number = number << max(max(exponent, 1) - low, 0)
        numbers[i] = -number if b < 0 else number
    return low - 150


@inlined
def _divisor(numbers: Numbers, at: int, count: int, base: int, max_multiple: int) -> int:
    """Return the greatest common divisor of `numbers - base`, 0 of zeros; -1 where one of them is more than
    `max_multiple` times it.
    """
    peak = np.int64(0)
    for i in range(at, at + count):
        peak = max(peak, abs(numbers[i] - base))
    divisor = peak
    inverse = 1.0 / np.float64(max(divisor, 1))
    for i in range(at, at + count):
        number = abs(numbers[i] - base)
        if np.int64(np.float64(number) * inverse + 0.5) * divisor != number:
            rest = number % divisor
            while rest:
                divisor, rest = rest, divisor % rest
            if divisor * max_multiple < peak:
                return -1
            inverse = 1.0 / np.float64(divisor)
    return int(divisor)


@inlined
def _half(number: int, exponent: int, divisor: int) -> float:
    """Return number * 2^exponent / divisor of a positive number if that is a float16; else 0."""
    while divisor & 1 == 0:
        divisor, exponent = divisor >> 1, exponent - 1
    if number % divisor:
        return 0.0
    number //= divisor
    while number >= 2048 and number & 1 == 0:
        number, exponent = number >> 1, exponent + 1
    while exponent < -24 and number & 1 == 0:
        number, exponent = number >> 1, exponent + 1
    if number >= 2048 or exponent < -24 or exponent > 16:
        return 0.0
    value = np.float64(number) * 2.0**exponent
    return value if value <= LARGEST_HALF else 0.0


@inlined
def _fits_smallest(values: Scales, bits: Bits, at: int, size: int, low: int, high: int, codes: Codes) -> float:
    """Return the smallest magnitude if it is a float16 and all values are low … high times it; else 0.

    Most blocks have a code of 1 or -1, and this takes a fifth of the time.
    """
    smallest = np.int32(0x7FFFFFFF)
    for i in range(at, at + size):
        magnitude = bits[i] & 0x7FFFFFFF
        smallest = min(smallest, magnitude if magnitude else np.int32(0x7FFFFFFF))
    if smallest & 0x1FFF or not 0x38800000 <= smallest < 0x47800000:  # all but normal float16
        return 0.0
    d = np.float32(np.int64(smallest & 0x007FFFFF | 0x00800000)) * np.float32(2.0 ** ((smallest >> 23) - 150))
    inverse, wrong, lowest, highest = np.float32(1) / d, 0, np.int32(0), np.int32(0)
    for i in range(at, at + size):
        whole = values[i] * inverse + NEAREST - NEAREST
        wrong += whole * d != values[i]
        code = np.int32(whole)
        lowest, highest = min(lowest, code), max(highest, code)
    turned = lowest < low or highest > high
    if wrong or (turned and (-highest < low or -lowest > high)):
        return 0.0
    d, inverse = (-d, -inverse) if turned else (d, inverse)
    for i in range(at, at + size):
        codes[i] = np.int8(np.int32(values[i] * inverse + NEAREST - NEAREST))
    return float(d)


@kernel
def fit_signed(
    values: Scales, bits: Bits, size: int, low: int, high: int, numbers: Numbers, scales: Scales, codes: Codes
) -> None:
    """Fit value = scale * code, codes low … high. The scale is positive where possible, so that zeros are."""
    reach = max(-low, high)
    for b in range(scales.size):
        d = _fits_smallest(values, bits, size * b, size, low, high, codes)
        scales[b], times, unit = d, 0, np.int64(1)
        if d:
            continue
        exponent = _whole_numbers(bits, size * b, size, numbers)
        if exponent < 1000:
            unit = max(_divisor(numbers, 0, size, 0, reach), np.int64(-1))
        if exponent < 1000 and unit > 0:
            lowest, highest = np.int64(0), np.int64(0)
            for i in range(size):
                lowest, highest = min(lowest, numbers[i]), max(highest, numbers[i])
            lowest, highest = lowest // unit, highest // unit
            for k in range(1, reach // max(-lowest, highest) + 1):
                fits, turned = low <= k * lowest and k * highest <= high, low <= -k * highest and -k * lowest <= high
                if fits or turned:
                    d = _half(unit, exponent, k)
                    if d > 0:
                        times, scales[b] = (k, d) if fits else (-k, -d)
                        break
        inverse = np.float64(times) / np.float64(max(unit, 1))
        for i in range(size):
            codes[size * b + i] = np.int8(np.rint(np.float64(numbers[i]) * inverse)) if times else 0


@inlined
def _half_between(lower: float, upper: float) -> float:
    """Return the float16 of fewest bits from `lower` to `upper`, if 8 are enough (a bfloat16 then); else one in the
    middle.
    """
    middle = (lower + upper) / 2
    _, exponent = math.frexp(middle)
    for bits in range(1, 9):
        step = 2.0 ** max(exponent - bits, -24)
        value = math.ceil(lower / step) * step
        if value <= upper:
            return float(min(value, LARGEST_HALF))
    step = 2.0 ** (max(exponent, -13) - 11)
    return float(min(np.rint(middle / step) * step, LARGEST_HALF))


@kernel
def fit_rounded(
    values: Scales, bits: Bits, size: int, low: int, high: int, precision: int, scales: Scales, codes: Codes
) -> None:
    """Fit scale * code, codes low … high, so that rounding it once gives each value, for blocks whose scale is still 0.

    Each value with its code leaves an interval for the scale; any float16 in their intersection will do.
    """
    reach = max(-low, high)
    for b in range(scales.size):
        at, peak = size * b, np.float64(0)
        for i in range(at, at + size):
            magnitude = abs(np.float64(values[i]))
            peak = magnitude if not magnitude <= peak else peak
        if scales[b] != 0 or not 0 < peak < 65504.0 * reach:
            continue
        for k in range(1, reach + 1):
            guess, lower, upper, lowest, highest = peak / k, 0.0, 1e300, 0, 0
            for i in range(at, at + size):
                magnitude = abs(np.float64(values[i]))
                if magnitude == 0:
                    continue
                code = int(magnitude / guess + 0.5)
                exponent, odd = (bits[i] >> 23) & 255, bits[i] >> (24 - precision) & 1
                half = 2.0 ** max(exponent - 127 - precision, -25 if precision == 11 else -150)
                below = half / 2 if bits[i] & 0x7FFFFF == 0 else half
                inside = MARGIN if odd else 0.0  # ties go to the even value
                if code == 0:
                    upper = -1.0
                    break
                lower = max(lower, (magnitude - below) / code * (1 + inside))
                upper = min(upper, (magnitude + half) / code * (1 - inside))
                if lower > upper:
                    break
                if values[i] < 0:
                    lowest = min(lowest, -code)
                else:
                    highest = max(highest, code)
            if lower > upper:
                continue
            turned = lowest < low or highest > high
            if turned and (-highest < low or -lowest > high):
                continue
            d = _half_between(lower, upper)
            if d == 0 or d < lower or d > upper:
                continue
            scales[b] = -d if turned else d
            for i in range(at, at + size):
                code = int(abs(np.float64(values[i])) / guess + 0.5)
                codes[i] = np.int8(-code if (values[i] < 0) != turned else code)
            break


@kernel
def fit_powers(bits: Bits, size: int, numbers: Numbers, exponents: Bits, codes: Codes) -> None:
    """Fit value = 2^exponent * code, codes of at most 12: twice those of E2M1. A block without a fit gets the exponent
    -1000.
    """
    for b in range(exponents.size):
        exponents[b], times, unit = 0, 0, np.int64(1)
        exponent = _whole_numbers(bits, size * b, size, numbers)
        if exponent < 1000:
            unit = _divisor(numbers, 0, size, 0, NOT_MANY_TIMES - 1)
        if exponent == 1000 or unit < 0:
            exponents[b] = -1000
        elif unit > 0:
            peak = np.int64(0)
            for i in range(size):
                peak = max(peak, abs(numbers[i]))
            odd = unit
            while odd & 1 == 0:
                odd, exponent = odd >> 1, exponent + 1
            times = odd if odd * (peak // unit) < NOT_MANY_TIMES else np.int64(0)
            exponents[b] = exponent if times else -1000
        inverse = np.float64(times) / np.float64(max(unit, 1))
        for i in range(size):
            codes[size * b + i] = np.int8(np.rint(np.float64(numbers[i]) * inverse)) if times else 0


@inlined
def _signed_half(number: int, exponent: int, divisor: int) -> tuple[bool, float]:
    """Return whether number * 2^exponent / divisor is a float16, and its value."""
    if number == 0:
        return True, 0.0
    value = _half(abs(number), exponent, divisor)
    return value > 0, -value if number < 0 else value


@kernel
def fit_offset(bits: Bits, size: int, top: int, numbers: Numbers, scales: Scales, lows: Scales, codes: Codes) -> None:
    """Fit value = scale * code + low, codes 0 … top."""
    for b in range(scales.size):
        scales[b], lows[b], times, shift, unit, base = 0, 0, 0, 0, np.int64(1), np.int64(0)
        exponent = _whole_numbers(bits, size * b, size, numbers)
        if exponent < 1000:
            lowest, highest = numbers[0], numbers[0]
            for i in range(size):
                lowest, highest = min(lowest, numbers[i]), max(highest, numbers[i])
            unit = _divisor(numbers, 0, size, lowest, top)
            if unit == 0:  # one value alone: it is the lowest, or a multiple of the scale
                is_half, low = _signed_half(lowest, exponent, 1)
                if is_half:
                    lows[b] = low
                else:
                    for k in range(2, top + 1):
                        is_half, d = _signed_half(lowest, exponent, k)
                        if is_half:
                            scales[b], shift = d, k
                            break
            elif unit > 0:
                reach = (highest - lowest) // unit
                for k in range(1, top // reach + 1):
                    d = _half(unit, exponent, k)
                    if d > 0:
                        for free in range(top - k * reach + 1):
                            is_half, low = _signed_half(lowest * k - free * unit, exponent, k)
                            if is_half:
                                times, shift, base, scales[b], lows[b] = k, free, lowest, d, low
                                break
                            is_half, low = _signed_half(highest * k + free * unit, exponent, k)
                            if is_half:
                                times, shift, base, scales[b], lows[b] = -k, free, highest, -d, low
                                break
                        if times:
                            break
        inverse = np.float64(times) / np.float64(max(unit, 1))
        for i in range(size):
            code = np.rint(np.float64(numbers[i] - base) * inverse) if times else 0.0
            codes[size * b + i] = np.int8(code + shift)


@inlined
def _common_scale(bits: Bits, at: int, max_multiple: int, max_scale: int, numbers: Numbers) -> float:
    """Return a scale of 256 values, 0 for none; `numbers` become the multiples of it."""
    exponent = _whole_numbers(bits, at, 256, numbers)
    if exponent == 1000:
        return 0.0
    unit = _divisor(numbers, 0, 256, 0, max_multiple)
    if unit < 1:
        return 0.0
    for k in range(1, max_scale + 1):
        d = _half(unit, exponent, k)
        if d > 0:
            inverse = np.float64(k) / np.float64(unit)
            for i in range(256):
                numbers[i] = np.int64(np.rint(np.float64(numbers[i]) * inverse))
            return float(d)
    return 0.0


@kernel
def fit_signed_sub_blocks(
    bits: Bits, low: int, high: int, top: int, numbers: Numbers, scales: Scales, small: Codes, codes: Codes
) -> None:
    """Fit value = scale * small * code: 16 sub-blocks of 16, small scales -top - 1 … top, codes low … high."""
    reach = max(-low, high)
    for b in range(scales.size):
        d = _common_scale(bits, 256 * b, reach * (top + 1), top, numbers)
        for turned in range(2):  # second time with a negative scale: small scales reach further down than up
            fits = d != 0
            for at in range(0, 256, 16):
                lowest, highest = np.int64(0), np.int64(0)
                for i in range(at, at + 16):
                    numbers[i] = -numbers[i] if turned else numbers[i]
                    lowest, highest = min(lowest, numbers[i]), max(highest, numbers[i])
                unit, times = (_divisor(numbers, at, 16, 0, reach * (top + 1)) if fits else 0), np.int64(0)
                for k in range(min(max(unit, 0), top + 1), 0, -1):
                    if unit % k == 0:
                        if k <= top and low * k <= lowest and highest <= high * k:
                            times = np.int64(k)
                            break
                        if low * k <= -highest and -lowest <= high * k:
                            times = np.int64(-k)
                            break
                fits = fits and (times != 0 or unit == 0)
                small[16 * b + at // 16] = np.int8(times)
                for i in range(at, at + 16):
                    codes[256 * b + i] = np.int8(numbers[i] // times) if times else 0
            if fits:
                scales[b] = -d if turned else d
                break
            scales[b] = 0


@kernel
def fit_offset_sub_blocks(
    bits: Bits,
    size: int,
    high: int,
    top: int,
    numbers: Numbers,
    scales: Scales,
    small: Codes,
    minima: Codes,
    codes: Codes,
) -> None:
    """Fit value = scale * (small * code - minimum): sub-blocks of `size`, small scales and minima 0 … top, codes 0 …
    high.
    """
    count = 256 // size
    for b in range(scales.size):
        d = _common_scale(bits, 256 * b, (high + 1) * top, top, numbers)
        for at in range(0, 256, size):
            times, lowest = np.int64(0), np.int64(0)
            if d > 0:
                highest = numbers[at]
                for i in range(at, at + size):
                    lowest, highest = min(lowest, numbers[i]), max(highest, numbers[i])
                unit = _divisor(numbers, at, size, lowest, high * top)
                if unit > 0:
                    for k in range(min(unit, top), 0, -1):
                        if unit % k == 0 and highest - lowest <= high * k:
                            times = np.int64(k)
                            break
                if lowest < -top or (times == 0 and unit != 0):
                    d = 0.0
            small[count * b + at // size] = np.int8(times)
            minima[count * b + at // size] = np.int8(-lowest) if d > 0 else 0
            for i in range(at, at + size):
                codes[256 * b + i] = np.int8((numbers[i] - lowest) // times) if times and d > 0 else 0
        scales[b] = d
