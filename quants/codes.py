"""Codes: the small integers that a block stores, one for each value, and where their bits lie.

Within a group of neighbouring values a code stands for the same number; the block's scales say which. GPTQ error
feedback (`quants.feedback`) chooses codes itself and needs only this: where the bits lie, and how many values form a
group. In the formats with grids several values together are a point of the grid, and the codes are the point numbers of
`Points`.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Plane:
    """Some of the bits of every code, laid out in runs of bytes.

    at: first byte in the block. bits: of each code. run: bytes of a run: the lowest bits of its bytes belong to its
    first `run` values, the next bits to the next `run` values. place: which bit of the code is the lowest of these.
    """

    at: int
    bits: int
    run: int
    place: int = 0

    def where(self, values: int) -> NDArray[np.int64]:
        """Return the lowest bit position in the block for each of `values` values."""
        i, held = np.arange(values), self.run * (8 // self.bits)
        return 8 * (self.at + self.run * (i // held) + i % self.run) + self.bits * (i % held // self.run)


@dataclass(frozen=True)
class Bits:
    """Numbers of `bits` bits each that a block holds, its bytes taken as one number, the lowest first.

    at: lowest bit of the first. step: from one to the next, within a run of `run` of them. apart: from run to run.
    """

    at: int
    bits: int
    step: int
    run: int = 1 << 30
    apart: int = 0

    def where(self, count: int) -> NDArray[np.int64]:
        """Return the lowest bit position of each of `count` numbers."""
        i = np.arange(count)
        return self.at + i // self.run * self.apart + i % self.run * self.step


@dataclass(frozen=True)
class Scale:
    """The scales of groups of values: integers, or floats whose bits grow with their value.

    parts: bit fields, the lowest bits first. apart: distance between numbers worth trying.
    """

    parts: tuple[Bits, ...]
    apart: int = 1

    @property
    def bits(self) -> int:
        return sum(part.bits for part in self.parts)


@dataclass(frozen=True)
class Codes:
    """The codes of a format's blocks. group: values that share scales. planes: where the bits are.

    scale, minimum: of each group, where others than the encoder's may be chosen.

    signed: codes are bytes with a sign, counted here from -128 as 0; -128 itself, which no encoder writes, is not used.
    even: neighbouring codes are equal steps apart. unused: how many of the highest codes no encoder writes.
    """

    group: int
    planes: tuple[Plane, ...]
    signed: bool = False
    even: bool = True
    unused: int = 0
    scale: Scale | None = None
    minimum: Scale | None = None

    @property
    def first(self) -> int:
        """Return the lowest code."""
        return 1 if self.signed else 0

    @property
    def last(self) -> int:
        """Return the highest code."""
        return self.count - 1 - self.unused

    @cached_property
    def count(self) -> int:
        """Return the number of codes."""
        return 1 << sum(plane.bits for plane in self.planes)


@dataclass(frozen=True)
class Points:
    """The points of a grid that a format's blocks hold, with signs and scales.

    grid: the name of the grid (see `quants.kernels.grids`); a point has 4 or 8 values.
    group: values that share a scale.
    indexes: the parts of the points' numbers, the lowest first.
    signs: 8 bits for every 8 values, set where one is negative; or 7, and the number of negative ones is even; or 1 for
    every point, by which all its values are moved. None where a group's scale says what they would.
    """

    grid: str
    group: int
    scale: Scale
    indexes: tuple[Bits, ...]
    signs: Bits | None = None
