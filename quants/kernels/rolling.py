"""Find blocks of bytes again wherever they are: hashes of all blocks of one array, and of every position of another.

The hash of a window is a polynomial in its bytes, modulo 2^64, so that the next window's follows from it by two
multiplications. Blocks are kept in a table with open addressing; of equal blocks only the first.
"""

import numpy as np

from .jit import inlined, kernel

BASE = np.uint64(0x9E3779B97F4A7C15)
MIX = np.uint64(0xD6E8FEB86659FD93)
HALF = np.uint64(32)


@inlined
def _hash(data, begin, size):  # type: ignore[no-untyped-def]
    value = np.uint64(0)
    for i in range(begin, begin + size):
        value = value * BASE + np.uint64(data[i]) + np.uint64(1)
    return value


@inlined
def _slot(key, mask):  # type: ignore[no-untyped-def]
    mixed = (key ^ (key >> HALF)) * MIX
    return np.int64((mixed ^ (mixed >> HALF)) & np.uint64(mask))


@kernel
def add_blocks(data, place, size, keys, places):  # type: ignore[no-untyped-def]
    """Add each whole block of `size` bytes of data (n,) uint8 to a table; data begins at `place`.

    keys, places: uint64 and int64 of a power of two of slots, more than there are blocks; places is -1 where free.
    """
    mask = keys.shape[0] - 1
    for begin in range(0, data.shape[0] - size + 1, size):
        key = _hash(data, begin, size)
        slot = _slot(key, mask)
        while places[slot] >= 0 and keys[slot] != key:
            slot = (slot + 1) & mask
        if places[slot] < 0:
            keys[slot] = key
            places[slot] = place + begin


@kernel
def find_block(data, begin, size, keys, places):  # type: ignore[no-untyped-def]
    """Return the first place from `begin` on at which data (n,) may hold a block of the table, and the block's; (-1,
    -1).
    """
    stop = data.shape[0] - size
    if begin > stop:
        return -1, -1
    mask = keys.shape[0] - 1
    leaving = np.uint64(1)
    for _ in range(size - 1):
        leaving = leaving * BASE
    key = _hash(data, begin, size)
    at = begin
    while True:
        slot = _slot(key, mask)
        while places[slot] >= 0:
            if keys[slot] == key:
                return at, places[slot]
            slot = (slot + 1) & mask
        if at == stop:
            return -1, -1
        key = (key - (np.uint64(data[at]) + np.uint64(1)) * leaving) * BASE
        key += np.uint64(data[at + size]) + np.uint64(1)
        at += 1
