"""Codes: the small integers that a block holds, one for each of its values, and where their bits lie.

Within a group of neighbouring values a code means the same number, by scales that the block holds besides. Who chooses
codes itself (`quants.feedback`) needs no more than this: which bits they are, and how many values are a group.
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

    def where(self, values: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Of each of so many values: the byte that its bits are in, and by how many bits they are shifted there."""
        i, held = np.arange(values), self.run * (8 // self.bits)
        return self.at + self.run * (i // held) + i % self.run, self.bits * (i % held // self.run)


@dataclass(frozen=True)
class Codes:
    """The codes of a format's blocks. group: values that share scales. planes: where the bits are.

    signed: codes are bytes with a sign, counted here from -128 as 0; -128 itself, which no encoder writes, is not used.
    even: neighbouring codes are equal steps apart.
    """

    group: int
    planes: tuple[Plane, ...]
    signed: bool = False
    even: bool = True

    @property
    def first(self) -> int:
        """The lowest code."""
        return 1 if self.signed else 0

    @cached_property
    def count(self) -> int:
        """Codes are numbers below this."""
        return 1 << sum(plane.bits for plane in self.planes)

    def put(self, blocks: NDArray[np.uint8], codes: NDArray[np.uint8]) -> None:
        """Write codes (n, values of a block) into blocks (n, bytes of a block); all other bits stay."""
        stored = codes ^ np.uint8(128) if self.signed else codes
        for plane in self.planes:
            bytes_of, shifts = plane.where(codes.shape[1])
            mask = (1 << plane.bits) - 1
            for shift in np.unique(shifts):
                mine = np.flatnonzero(shifts == shift)
                part = (stored[:, mine] >> np.uint8(plane.place)) & np.uint8(mask)
                kept = blocks[:, bytes_of[mine]] & np.uint8(255 ^ mask << int(shift))
                blocks[:, bytes_of[mine]] = kept | part << np.uint8(shift)
