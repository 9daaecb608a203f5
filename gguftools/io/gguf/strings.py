"""Find the strings of GGUF metadata arrays without a Python object for each; decode them when asked."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    """Hold a stored array of strings. Items are str, or bytes if they are not UTF-8.

    body: the array as stored, uint8: for each string a 64-bit length, then its bytes. starts: offsets of the lengths in
    `body`.
    """

    def __init__(self, body: NDArray[np.uint8], starts: NDArray[np.int64], byte_order: str = "little") -> None:
        self._body, self._starts, self._byte_order = body, starts, byte_order
        self._stops = np.append(starts, len(body))[1:]

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str | bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[str | bytes]: ...
    def __getitem__(self, index: int | slice) -> str | bytes | list[str | bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return _text(self._body[self._starts[index] + 8 : self._stops[index]].tobytes())

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

    def tolist(self) -> list[str | bytes]:
        """Decode all strings at once."""
        body = self._body.tobytes()
        places = list(zip((self._starts + 8).tolist(), self._stops.tolist(), strict=True))
        try:
            return [body[a:b].decode() for a, b in places]
        except UnicodeDecodeError:
            return [_text(body[a:b]) for a, b in places]

    def raw(self) -> NDArray[np.uint8]:
        """Return the array as a little-endian file stores it, uint8, without type and count; a view if possible."""
        if self._byte_order == "little":
            return self._body
        body: NDArray[np.uint8] = self._body.copy()
        for i in range(8):
            body[self._starts + i] = self._body[self._starts + (7 - i)]
        return body


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def find_strings(
    buffer: NDArray[np.uint8], start: int, count: int, byte_order: str, what: str
) -> tuple[StringArray, int]:
    """Return the `count` strings from byte `start` of `buffer` on, and the position after them.

    what: names them in errors.
    """
    starts = np.empty(count, np.int64)
    finder, done, position = _Finder(buffer, byte_order, what), 0, start
    while done < count:
        left = count - done
        if left < FEW_STRINGS:
            new, position = finder.walk(position, len(buffer), left)
        else:
            new, position = finder.leap(position, left)
        starts[done : done + len(new)] = new
        done += len(new)
    return StringArray(buffer[start:position], starts - start, byte_order), position


@dataclass(frozen=True)
class _Finder:
    """Find where strings begin. `walk` and `leap` return some of the offsets and the position after these strings."""

    buffer: NDArray[np.uint8]
    byte_order: str
    what: str

    def walk(self, position: int, stop: int, count: int) -> tuple[list[int] | NDArray[np.int64], int]:
        """Find up to `count` strings that begin before `stop`, one after the other."""
        read_length = struct.Struct(ORDER_SIGN[self.byte_order] + "Q").unpack_from
        data, size = self.buffer.data, len(self.buffer)
        starts: list[int] = []
        while len(starts) < count and position < stop and size - position >= 8:
            (length,) = read_length(data, position)
            if (left := size - position - 8) < length:
                claim = f"a string at byte {position} claims {length} bytes, the file has {left} left"
                raise FileError(f"{self.what}: {claim}")
            starts.append(position)
            position += 8 + length
        if not starts:
            raise self._ended(count)
        return starts, position

    def leap(self, position: int, count: int) -> tuple[list[int] | NDArray[np.int64], int]:
        """Find up to `count` strings that begin in the window from `position` on, many at a time.

        A number below 256 is probably a length; it surely is one if the string before it ends there. Long strings,
        empty ones and zero bytes break the chain; after a break one string is read by itself, then the next chain is
        searched.
        """
        window = self.buffer[position : position + WINDOW]
        places, ends = _probable_lengths(window, self.byte_order)
        if not len(places):
            return self.walk(position, position + 1, 1)
        breaks = np.append(np.flatnonzero(ends[:-1] != places[1:]), len(places) - 1)
        if len(breaks) > MANY_BREAKS:
            return self.walk(position, position + len(window), count)
        chains: list[Any] = []
        taken, here = 0, 0
        while taken < count and here <= len(window) - 8:
            first = int(np.searchsorted(places, here))
            if first < len(places) and places[first] == here:
                last = min(int(breaks[np.searchsorted(breaks, first)]), first + count - taken - 1)
                chains.append(places[first : last + 1] + position)
                here = int(ends[last])
            else:
                one, after = self.walk(position + here, position + here + 1, 1)
                chains.append(one)
                here = after - position
            taken += len(chains[-1])
        if (after := position + here - len(self.buffer)) > 0:
            raise FileError(f"{self.what}: a string at byte {chains[-1][-1]} ends {after} bytes after the file does")
        if not taken:
            raise self._ended(count)
        return np.concatenate(chains), position + here

    def _ended(self, missing: int) -> FileError:
        end = f"the file ends at byte {len(self.buffer)}"
        return FileError(f"{self.what}: {end}, {missing} strings before the array does")


def _probable_lengths(window: NDArray[np.uint8], byte_order: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the window holds a 64-bit number below 256, and where strings of that length would end."""
    small = np.zeros(max(len(window) - 7, 0), np.bool_)
    for shift in range(8):
        words = window[shift : shift + (len(window) - shift) // 8 * 8].view(ORDER_SIGN[byte_order] + "u8")
        np.less(words, 256, out=small[shift::8])
    places = np.flatnonzero(small).astype(np.int64, copy=False)
    lengths = window[places + (0 if byte_order == "little" else 7)]
    return places, places + 8 + lengths
