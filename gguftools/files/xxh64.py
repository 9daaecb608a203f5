"""XXH64, the 64-bit xxHash, in the manner of hashlib.

Four lanes of 64 bits take 32 bytes (a stripe) at a time; what is left over at the end is mixed in by 8, 4 and 1 bytes.
Source: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
P1, P2, P3, P4, P5 = PRIMES
MASK = (1 << 64) - 1
STRIPE = 32
_P1, _P2 = np.uint64(P1), np.uint64(P2)
_LEFT, _RIGHT = np.uint64(31), np.uint64(33)


def _mix(lanes, words):  # type: ignore[no-untyped-def]
    """Take whole stripes into the four lanes. words: uint64 (4 * stripes,), little endian."""
    a, b, c, d = lanes[0], lanes[1], lanes[2], lanes[3]
    for i in range(0, len(words), 4):
        a += words[i] * _P2
        b += words[i + 1] * _P2
        c += words[i + 2] * _P2
        d += words[i + 3] * _P2
        a = ((a << _LEFT) | (a >> _RIGHT)) * _P1
        b = ((b << _LEFT) | (b >> _RIGHT)) * _P1
        c = ((c << _LEFT) | (c >> _RIGHT)) * _P1
        d = ((d << _LEFT) | (d >> _RIGHT)) * _P1
    lanes[0], lanes[1], lanes[2], lanes[3] = a, b, c, d


_WORDS = types.Array(types.uint64, 1, "C")
_READ_ONLY = types.Array(types.uint64, 1, "C", readonly=True)
_take: Any = njit([types.void(_WORDS, _READ_ONLY)], cache=True, nogil=True)(_mix)


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & MASK


def _round(lane: int, word: int) -> int:
    return _rotate((lane + word * P2) & MASK, 31) * P1 & MASK


class XXH64:
    """A hash that is fed piece by piece; `hexdigest()` is the number as 16 hex digits."""

    name = "xxh64"

    def __init__(self, data: Any = b"", seed: int = 0) -> None:
        lanes = (seed + P1 + P2, seed + P2, seed, seed - P1)
        self._seed = seed
        self._lanes = np.array([lane & MASK for lane in lanes], np.uint64)
        self._left = b""  # less than a stripe
        self._size = 0
        self.update(data)

    def update(self, data: Any) -> None:
        """Take more bytes: any buffer."""
        new = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
        self._size += len(new)
        if self._left:
            need = STRIPE - len(self._left)
            self._left += new[:need].tobytes()
            new = new[need:]
            if len(self._left) < STRIPE:
                return
            _take(self._lanes, np.frombuffer(self._left, "<u8"))
        whole = len(new) - len(new) % STRIPE
        if whole:
            stripes = new[:whole]
            if stripes.ctypes.data % 8:
                stripes = stripes.copy()
            _take(self._lanes, stripes.view("<u8"))
        self._left = new[whole:].tobytes()

    def intdigest(self) -> int:
        """The hash of all bytes so far."""
        value = self._merged() if self._size >= STRIPE else self._seed + P5
        value = (value + self._size) & MASK
        left = self._left
        while len(left) >= 8:
            value = (_rotate(value ^ _round(0, int.from_bytes(left[:8], "little")), 27) * P1 + P4) & MASK
            left = left[8:]
        if len(left) >= 4:
            value = (_rotate(value ^ (int.from_bytes(left[:4], "little") * P1 & MASK), 23) * P2 + P3) & MASK
            left = left[4:]
        for byte in left:
            value = _rotate(value ^ (byte * P5 & MASK), 11) * P1 & MASK
        value = (value ^ (value >> 33)) * P2 & MASK
        value = (value ^ (value >> 29)) * P3 & MASK
        return value ^ (value >> 32)

    def _merged(self) -> int:
        lanes = [int(lane) for lane in self._lanes]
        value = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            value = ((value ^ _round(0, lane)) * P1 + P4) & MASK
        return value

    def hexdigest(self) -> str:
        return f"{self.intdigest():016x}"
