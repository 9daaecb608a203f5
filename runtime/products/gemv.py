"""Products of one to eight inputs with stored weights, read straight from their blocks (see `kernels.dots`).

Where rounding to integers of 16 bits is too coarse, an input becomes two rows: its integers, and those of the
remainder. Reading weights takes longer than multiplying them, so one more row costs little.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants import Tensor

from ..arrays import Floats
from ..kernels import dots, thread_team
from ..kernels.threads import parallel, shares

MAX_TOKENS = 8
MIN_WEIGHTS = 1 << 16  # below, a product in float32 is as fast
ALIGNMENT = 64


@dataclass(frozen=True)
class Vectors:
    """A row for each token: float32, and for products with quantized weights, the same as integers."""

    floats: Floats
    width: int
    shorts: NDArray[np.int16]
    numbers: Floats

    @property
    def room(self) -> int:
        """Return the columns of a row in memory."""
        return int(self.floats.shape[1])


def aligned(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """Return zeros that begin at a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    aligned: NDArray[Any] = memory[start : start + size].view(dtype).reshape(shape)
    return aligned


def vectors(width: int, tokens: int = MAX_TOKENS) -> Vectors:
    room = -(-width // dots.SUPER) * dots.SUPER
    numbers = aligned((tokens, room // dots.SUPER * dots.NUMBERS))
    return Vectors(aligned((tokens, room)), width, aligned((tokens, room), np.int16), numbers)


def whole_blocks(tensor: Tensor) -> int:
    """Return the width of its rows in memory: whole blocks of inputs."""
    return -(-tensor.width // dots.BLOCK) * dots.BLOCK


def stored_rows(weight: Tensor) -> NDArray[np.uint8]:
    """Return the bytes of its rows: a view of the file if that is mapped, padded to whole blocks of inputs."""
    raw, room = weight.raw(), weight.format.row_bytes(whole_blocks(weight))
    return np.ascontiguousarray(raw if room == raw.shape[1] else np.pad(raw, ((0, 0), (0, room - raw.shape[1]))))


def product_fields(
    x: Vectors, weight: Tensor, stored: NDArray[np.uint8], bias: Floats | None, out: Floats, adds: bool, state: Any
) -> dict[int, Any]:
    """Return fields of an operation of `dots`. stored: rows of the weight, (rows, bytes); state: int64, first the
    tokens.
    """
    return {
        dots.WEIGHTS: stored,
        dots.ROW_BYTES: stored.shape[1],
        dots.ROWS: len(stored),
        dots.WIDTH: whole_blocks(weight),
        dots.FLOATS_AT: x.floats,
        dots.SHORTS_AT: x.shorts,
        dots.NUMBERS_AT: x.numbers,
        dots.OUT: out,
        dots.OUT_WIDTH: out.strides[0] // 4,
        dots.BIAS: 0 if bias is None else bias,
        dots.ADDS: adds,
        dots.STATE: state,
    }


def is_faster(inputs: int, rows: int, weight: Tensor) -> bool:
    """Return whether such a product of so many inputs with rows of a weight is faster than by decoding it."""
    known = weight.format.name in dots.OF_FORMAT and weight.width == whole_blocks(weight)
    return known and inputs <= MAX_TOKENS and rows * weight.width >= MIN_WEIGHTS


def as_vectors(x: Floats) -> Vectors:
    """Return x (n, width), n at most MAX_TOKENS, with its integers."""
    made = vectors(x.shape[1], len(x))
    made.floats[:, : x.shape[1]] = x
    dots.pack_all(made.floats.reshape(-1), made.shorts.reshape(-1), made.numbers.reshape(-1))
    return made


def is_exact(weight: Tensor) -> bool:
    """Return whether inputs of this weight stay in float32."""
    return weight.format.name in dots.OF_FLOATS


def in_parts(x: Floats) -> tuple[Vectors, ...]:
    """Return x (n, width), n at most MAX_TOKENS, as rows that add up to it except for 1e-9 of the largest of 32
    values.

    Each has up to half of MAX_TOKENS rows of x, and as many of the remainders.
    """
    made = []
    for start in range(0, len(x), MAX_TOKENS // 2):
        rows = x[start : start + MAX_TOKENS // 2]
        left = rows - _values(as_vectors(rows))
        made.append(as_vectors(np.concatenate([rows, left])))
    return tuple(made)


def _values(x: Vectors) -> Floats:
    """Return the values of the integers: float32 (n, width)."""
    scales = x.numbers.reshape(len(x.numbers), -1, dots.NUMBERS)[:, :, : dots.SUPER // dots.BLOCK]
    values = x.shorts.reshape(len(x.shorts), -1, dots.BLOCK) * scales.reshape(len(x.shorts), -1, 1)
    return values.reshape(x.floats.shape)[:, : x.width]


def multiply_parts(x: tuple[Vectors, ...], weight: Tensor, first: int, last: int, out: Floats, threads: int) -> None:
    """Compute `multiply` of the result of `in_parts`."""
    start = 0
    for part in x:
        both, count = np.empty((len(part.floats), last - first), np.float32), len(part.floats) // 2
        multiply(part, weight, first, last, both, threads)
        np.add(both[:count], both[count:], out=out[start : start + count])
        start += count


def multiply(x: Vectors, weight: Tensor, first: int, last: int, out: Floats, threads: int) -> None:
    """Compute out[:, i] = x times row first + i of the weight, up to row last - 1. out: float32 (n, last - first)."""
    state, function = np.array([len(x.floats)], np.int64), dots.OF_FORMAT[weight.format.name]()

    def share(start: int, stop: int) -> None:
        stored = np.ascontiguousarray(weight.raw(first + start, first + stop))
        row = thread_team.operation_row(
            function, product_fields(x, weight, stored, None, out[:, start:stop], False, state)
        )
        thread_team.run_share(row, 0, 1)

    parallel(share, shares(last - first, MIN_WEIGHTS // weight.width + 1, threads), threads)
