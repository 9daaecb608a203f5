"""String arrays of GGUF metadata: found without a Python object per string, decoded when asked."""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from quants.errors import FileError

# Strings are looked for in pieces of this size: they stay in the processor's cache, and so do their masks.
WINDOW = 1 << 18
# Fewer strings than this, or more irregular places in a window, are walked one by one.
FEW_STRINGS = 64
MANY_BREAKS = 256
ORDER_SIGN = {"little": "<", "big": ">"}


class StringArray(Sequence[Any]):
    """A stored array of strings. Items are str, or bytes where they are not UTF-8.

    body: the array as the file holds it, uint8: for each string a 64-bit length, then its bytes.
    starts: where in `body` each length is.
    """

    def __init__(self, body: NDArray[np.uint8], starts: NDArray[np.int64], byte_order: str = "little") -> None:
        self._body = body
        self._starts = starts
        self._byte_order = byte_order

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str | bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[str | bytes]: ...
    def __getitem__(self, index: int | slice) -> str | bytes | list[str | bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        return _text(self._body[int(self._starts[i]) + 8 : self._end(i)].tobytes())

    def __iter__(self) -> Iterator[str | bytes]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StringArray):
            return np.array_equal(self.raw(), other.raw())
        return self.tolist() == list(other) if isinstance(other, (list, tuple)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(repr(item) for item in self[:3])
        return f"StringArray([{shown}{', …' if len(self) > 3 else ''}], length {len(self)})"

    def _end(self, i: int) -> int:
        return int(self._starts[i + 1]) if i + 1 < len(self) else len(self._body)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each string."""
        if not len(self):
            return self._starts
        return np.append(self._starts[1:], len(self._body)) - self._starts - 8

    def tolist(self) -> list[str | bytes]:
        """All strings, decoded at once."""
        body = self._body.tobytes()
        starts = (self._starts + 8).tolist()
        stops = np.append(self._starts[1:], len(body)).tolist() if starts else []
        try:
            return [body[a:b].decode() for a, b in zip(starts, stops, strict=True)]
        except UnicodeDecodeError:
            return [_text(body[a:b]) for a, b in zip(starts, stops, strict=True)]

    def raw(self) -> NDArray[np.uint8]:
        """The array as a little-endian GGUF file stores it, after element type and count; a view if it can be."""
        if self._byte_order == "little":
            return self._body
        body: NDArray[np.uint8] = self._body.copy()
        for i in range(8):
            body[self._starts + i] = self._body[self._starts + (7 - i)]
        return body

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where in `raw()` each string's length is."""
        return self._starts


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def find_strings(
    buffer: NDArray[np.uint8], start: int, count: int, byte_order: str, what: str
) -> tuple[StringArray, int]:
    """The `count` strings stored from byte `start` of `buffer` on, and the position after them.

    what: names the array in the message of the FileError that a string beyond the end raises.
    """
    starts = np.empty(count, np.int64)
    found, position = 0, start
    while found < count:
        left = count - found
        new: NDArray[np.int64] | list[int]
        if left < FEW_STRINGS:
            new, position = _walk(buffer, position, len(buffer), left, byte_order, what)
        else:
            new, position = _leap(buffer, position, left, byte_order, what)
        starts[found : found + len(new)] = new
        found += len(new)
    return StringArray(buffer[start:position], starts - start, byte_order), position


def _walk(
    buffer: NDArray[np.uint8], position: int, stop: int, count: int, byte_order: str, what: str
) -> tuple[list[int], int]:
    """Up to `count` strings that begin before `stop`, one after the other."""
    read_length = struct.Struct(ORDER_SIGN[byte_order] + "Q").unpack_from
    data, size = buffer.data, len(buffer)
    starts: list[int] = []
    while len(starts) < count and position < stop:
        if size - position < 8:
            break
        (length,) = read_length(data, position)
        if length > size - position - 8:
            raise FileError(
                f"{what}: a string at byte {position} claims {length} bytes, the file has {size - position - 8} left"
            )
        starts.append(position)
        position += 8 + length
    if not starts:
        raise FileError(f"{what}: the file ends at byte {size}, {count} strings before the array does")
    return starts, position


def _leap(
    buffer: NDArray[np.uint8], position: int, count: int, byte_order: str, what: str
) -> tuple[NDArray[np.int64] | list[int], int]:
    """Up to `count` strings that begin in the window from `position` on, many at a time.

    A place whose 64-bit number is below 256 is probably a length; it surely is one if the string before it ends there.
    Long strings, empty ones and zero bytes break the chain; from there one string is read by itself, then the next
    chain is looked for.
    """
    window = buffer[position : position + WINDOW]
    places, ends = _probable_lengths(window, byte_order)
    if not len(places):
        return _walk(buffer, position, position + 1, 1, byte_order, what)
    breaks = np.append(np.flatnonzero(ends[:-1] != places[1:]), len(places) - 1)
    if len(breaks) > MANY_BREAKS:
        return _walk(buffer, position, position + len(window), count, byte_order, what)
    chains: list[NDArray[np.int64]] = []
    taken, here = 0, 0
    while taken < count and here <= len(window) - 8:
        first = int(np.searchsorted(places, here))
        if first < len(places) and places[first] == here:
            last = min(int(breaks[np.searchsorted(breaks, first)]), first + count - taken - 1)
            chains.append(places[first : last + 1] + position)
            here = int(ends[last])
        else:
            one, after = _walk(buffer, position + here, position + here + 1, 1, byte_order, what)
            chains.append(np.array(one, np.int64))
            here = after - position
        taken += len(chains[-1])
    if position + here > len(buffer):
        raise FileError(
            f"{what}: a string at byte {chains[-1][-1]} ends {position + here - len(buffer)} bytes after the file does"
        )
    if not taken:
        raise FileError(f"{what}: the file ends at byte {len(buffer)}, {count} strings before the array does")
    return np.concatenate(chains), position + here


def _probable_lengths(window: NDArray[np.uint8], byte_order: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places in the window that hold a 64-bit number below 256, and where strings of that length would end."""
    small = np.zeros(max(len(window) - 7, 0), np.bool_)
    for shift in range(8):
        words = window[shift : shift + (len(window) - shift) // 8 * 8].view(ORDER_SIGN[byte_order] + "u8")
        np.less(words, 256, out=small[shift::8])
    places = np.flatnonzero(small).astype(np.int64, copy=False)
    lengths = window[places + (0 if byte_order == "little" else 7)]
    return places, places + 8 + lengths
