"""Integers of stored blocks: weight = scale * code - minimum, in groups of 16 or 32.

With the scales a decoded row becomes integers again, exactly: each of its values is an integer number of scales above
the minimum. So one kernel packs the weights of all formats (see `kernels.int8`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants.kernels.fp4 import HALF_POWERS, HALF_SCALES

from ..arrays import Floats

Blocks = NDArray[Any]  # structured, (rows, blocks of a row)


@dataclass(frozen=True)
class Integers:
    """How a format's blocks are integers.

    scales(blocks): float32 (rows, blocks, groups), or with minima (scales, minima). group: values that share a scale,
    16 or 32. zero: offset that makes all codes at least 0. has_minima: whether there are minima.
    """

    scales: Callable[[Blocks], Any]
    group: int = 32
    zero: int = 128
    has_minima: bool = False

    def of_rows(self, blocks: Blocks) -> tuple[Floats, Floats | None]:
        """Return scales (rows, groups) and minima, if there are any."""
        stored = self.scales(blocks)
        if not self.has_minima:
            return stored.reshape(len(blocks), -1), None
        scales, minima = stored
        return scales.reshape(len(blocks), -1), minima.reshape(len(blocks), -1)


def _float32(numbers: NDArray[Any]) -> Any:
    return numbers.astype(np.float32)


def _d(blocks: Blocks) -> Any:
    return _float32(blocks["d"])[..., None]


def _with_minimum(blocks: Blocks) -> tuple[Floats, Floats]:
    return _d(blocks), -_float32(blocks["m"])[..., None]


def _nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return two numbers of each byte, the lower one first: twice as many."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def _q2_k(blocks: Blocks) -> tuple[Floats, Floats]:
    both = blocks["scales"]
    return _d(blocks) * _float32(both & 15), _float32(blocks["dmin"])[..., None] * _float32(both >> 4)


def _q3_k(blocks: Blocks) -> Any:
    packed = blocks["scales"]
    low, high = packed[..., :8], packed[..., 8:]
    codes = np.concatenate([low & 15, low >> 4], axis=-1)
    codes |= np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1) << 4
    return _d(blocks) * (_float32(codes) - np.float32(32))


def _six_bits(blocks: Blocks) -> tuple[Floats, Floats]:
    """Return the six-bit scales and minima of Q4_K and Q5_K."""
    first, second, third = (blocks["scales"][..., i : i + 4] for i in (0, 4, 8))
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    return _d(blocks) * _float32(scales), _float32(blocks["dmin"])[..., None] * _float32(minima)


def _q6_k(blocks: Blocks) -> Any:
    return _d(blocks) * _float32(blocks["scales"])


def _iq4_xs(blocks: Blocks) -> Any:
    high = blocks["scales_h"][..., None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    return _d(blocks) * (_float32(_nibbles(blocks["scales_l"]) | high << 4) - np.float32(32))


def _levels(blocks: Blocks, levels: NDArray[Any], factor: float) -> Any:
    return _d(blocks) * (np.float32(0.5) + _float32(levels)) * np.float32(factor)


def _upper_bits(words: NDArray[Any]) -> NDArray[Any]:
    """Return the upper four bits of each 32."""
    return words >> 28


def _iq1_s(blocks: Blocks) -> Any:
    return _d(blocks) * _float32(2 * (blocks["qh"] >> 12 & 7) + 1) * np.float32(0.125)


def _iq1_m(blocks: Blocks) -> Any:
    words = np.ascontiguousarray(blocks["scales"])
    bits = np.bitwise_or.reduce((words >> 12).astype("<u2") << np.arange(0, 16, 4, dtype="<u2"), axis=-1)
    levels = (words[..., None] >> np.arange(0, 12, 3, dtype="<u2") & 7).reshape(*words.shape[:-1], 16)
    return _float32(bits.view("<f2"))[..., None] * _float32(2 * levels + 1) * np.float32(0.125)


def _mxfp4(blocks: Blocks) -> Any:
    return HALF_POWERS[blocks["e"]][..., None]


def _nvfp4(blocks: Blocks) -> Any:
    return HALF_SCALES[blocks["d"]]


def _repeated(blocks: Blocks, times: int) -> Any:
    return np.repeat(_d(blocks), times, axis=-1)


OF_FORMAT: Mapping[str, Integers] = {
    "Q4_0": Integers(_d),
    "Q5_0": Integers(_d),
    "Q8_0": Integers(_d),
    "IQ4_NL": Integers(_d),
    "Q4_1": Integers(_with_minimum, zero=0, has_minima=True),
    "Q5_1": Integers(_with_minimum, zero=0, has_minima=True),
    "Q2_K": Integers(_q2_k, 16, 0, True),
    "Q3_K": Integers(_q3_k, 16),
    "Q6_K": Integers(_q6_k, 16),
    "Q4_K": Integers(_six_bits, 32, 0, True),
    "Q5_K": Integers(_six_bits, 32, 0, True),
    "IQ4_XS": Integers(_iq4_xs),
    "MXFP4": Integers(_mxfp4),
    "NVFP4": Integers(_nvfp4, 16),
    "IQ2_XXS": Integers(lambda b: _levels(b, _upper_bits(b["qs"]["signs_and_scale"]), 0.25)),
    "IQ2_XS": Integers(lambda b: _levels(b, _nibbles(b["scales"]), 0.25), 16),
    "IQ2_S": Integers(lambda b: _levels(b, _nibbles(b["scales"]), 0.25), 16),
    "IQ3_XXS": Integers(lambda b: _levels(b, _upper_bits(b["scales_and_signs"]), 0.5)),
    "IQ3_S": Integers(lambda b: _d(b) * _float32(1 + 2 * _nibbles(b["scales"]))),
    "IQ1_S": Integers(_iq1_s),
    "IQ1_M": Integers(_iq1_m, 16),
    "TQ1_0": Integers(lambda b: _repeated(b, 8)),
    "TQ2_0": Integers(lambda b: _repeated(b, 8)),
    "Q1_0": Integers(lambda b: _repeated(b, 4)),
    "Q2_0": Integers(lambda b: _repeated(b, 2)),
}
