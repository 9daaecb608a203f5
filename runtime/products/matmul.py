"""Products with weights that stay in their stored format: a tile of rows is decoded, multiplied and dropped.

Up to eight rows of input are multiplied with the blocks themselves (`gemv`), and many in 16-bit integers if the
processor is faster at them (`integer_product`) and they may be rounded (`rounding`), or in 8-bit integers if they are
to be rounded as in llama.cpp (`eight_bit_product`). In float32, with few rows of input each thread decodes and
multiplies tiles of its own. With many, decoding is little of the work, and BLAS is faster on wide tiles: all threads
decode one tile together and then share the rows of the input.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from quants import Tensor

from ..arrays import Floats
from ..kernels import blas
from ..kernels.threads import parallel, shares, spans
from . import eight_bit_product, float_product, gemv, integer_product
from .precision import Precision, as_multiplied

TILE = 1 << 20  # weights of a tile that all threads share: 4 MB of float32
OWN_TILE = 1 << 18  # of a tile that one thread decodes and multiplies
PIECE = 1 << 16  # weights decoded at a time: a quarter of a MB stays in a core's cache until it is in its tile
SHARED_TILE_ROWS = 256  # rows of input for each thread that make it worth while to share a tile
MIN_OPS_PER_THREAD = 1 << 23  # multiplications, a decoded weight counted as DECODING of them; less is one thread's work
DECODING = 4
ROUND = 16  # tiles have a multiple of this many rows, which suits BLAS


class Inputs:
    """The input of several products: float32 (n, width), rounded or packed once. It must not change."""

    def __init__(self, x: Floats, threads: int = 1) -> None:
        self.x, self.threads = np.ascontiguousarray(x, np.float32), threads
        self._rounded: dict[str, eight_bit_product.Rounded] = {}
        self._packed_bytes: dict[str, eight_bit_product.Packed] = {}

    @cached_property
    def packed(self) -> integer_product.Packed:
        return integer_product.packed(self.x, self.threads)

    def as_rounded(self, partner: str) -> eight_bit_product.Rounded:
        """Return the input rounded as in llama.cpp to blocks of this format, once for all weights."""
        if partner not in self._rounded:
            self._rounded[partner] = eight_bit_product.rounded(self.x, partner, self.threads)
        return self._rounded[partner]

    def packed_bytes(self, partner: str) -> eight_bit_product.Packed:
        """Return `as_rounded` for products with many rows."""
        if partner not in self._packed_bytes:
            self._packed_bytes[partner] = eight_bit_product.packed(self.as_rounded(partner), self.threads)
        return self._packed_bytes[partner]

    @cached_property
    def few(self) -> gemv.Vectors:
        return gemv.as_vectors(self.x)

    @cached_property
    def few_in_parts(self) -> tuple[gemv.Vectors, ...]:
        return gemv.in_parts(self.x)


def matmul(
    x: Floats | Inputs,
    weight: Tensor,
    rows: slice | None = None,
    out: Floats | None = None,
    *,
    threads: int = 1,
    precision: Precision = "exact",
    may_round: bool = False,
) -> Floats:
    """Return x @ W.T for float32 x (n, width): float32 (n, weight.rows), or only the columns of `rows` of the weight.

    Memory: one tile of the weight in float32 (a thread). out: where to put the result, float32 (n, rows). may_round: x
    and W may be rounded to integers of 16 bits where the precision is float32.
    """
    first, last, _ = (rows or slice(None)).indices(weight.rows)
    inputs = x if isinstance(x, Inputs) else Inputs(x, threads)
    product = np.empty((len(inputs.x), last - first), np.float32) if out is None else out
    compiled = precision == "float32" and product.flags.c_contiguous  # our kernels write whole rows
    if compiled and gemv.is_faster(len(inputs.x), last - first, weight):
        if may_round or gemv.is_exact(weight):
            gemv.multiply(inputs.few, weight, first, last, product, threads)
        else:
            gemv.multiply_parts(inputs.few_in_parts, weight, first, last, product, threads)
        return product
    if compiled and may_round and integer_product.is_faster(len(inputs.x), last - first, weight.width):
        integer_product.multiply(inputs.packed, weight, first, last, product, threads)
        return product
    if (
        precision == "llama.cpp"
        and product.flags.c_contiguous
        and _multiplied_bytes(inputs, weight, first, last, product, threads)
    ):
        return product
    values = as_multiplied(inputs.x, weight.format.name, precision)
    if product.flags.c_contiguous and float_product.is_faster(len(values), last - first, weight.width):
        float_product.multiply(values, weight, first, last, product, threads)
        return product
    if len(values) >= SHARED_TILE_ROWS * threads or not blas.controllable():
        pieces = [(0, len(values))]
        if threads > 1 and blas.controllable():  # two pieces each, in case one is delayed
            pieces = spans(len(values), max(SHARED_TILE_ROWS, -(-len(values) // (2 * threads))))
        for start, tile in decoded_tiles(weight, first, last, TILE, threads):
            columns = product[:, start - first : start - first + len(tile)]

            def share(begin: int, end: int, tile: Floats = tile, columns: Floats = columns) -> None:
                np.matmul(values[begin:end], tile.T, out=columns[begin:end])

            parallel(share, pieces, threads)
        return product

    def multiply(start: int, stop: int) -> None:
        np.matmul(values, _decoded(weight, first + start, first + stop).T, out=product[:, start:stop])

    # tiles of at most about OWN_TILE weights, equally many for every thread
    count = threads * -(-(last - first) * weight.width // (OWN_TILE * threads))
    tiles = spans(last - first, _round(-(-(last - first) // max(1, count))))
    work = (last - first) * weight.width * (DECODING + len(values))
    parallel(multiply, tiles, 1 if work < MIN_OPS_PER_THREAD else threads)
    return product


def _multiplied_bytes(inputs: Inputs, weight: Tensor, first: int, last: int, product: Floats, threads: int) -> bool:
    """Return whether the product was made in integers, of inputs rounded as in llama.cpp."""
    partner = weight.format.activations
    if eight_bit_product.is_faster_for_few(len(inputs.x), last - first, weight):
        few = eight_bit_product.as_vectors(inputs.as_rounded(partner))
        gemv.multiply(few, weight, first, last, product, threads)
        return True
    if eight_bit_product.is_faster(len(inputs.x), last - first, weight):
        eight_bit_product.multiply(inputs.packed_bytes(partner), weight, first, last, product, threads)
        return True
    return False


def matmul_transposed(x: Floats, weight: Tensor, threads: int = 1) -> Floats:
    """Return x @ W for float32 x (n, weight.rows): float32 (n, width). A tile of rows at a time, as in `matmul`."""
    product = np.zeros((len(x), weight.width), np.float32)
    values = np.ascontiguousarray(x, np.float32)
    pieces = shares(len(values), ROUND, threads)
    for first, tile in decoded_tiles(weight, 0, weight.rows, TILE, threads):
        last = first + len(tile)

        def multiply(start: int, stop: int, first: int = first, last: int = last, tile: Floats = tile) -> None:
            product[start:stop] += values[start:stop, first:last] @ tile

        parallel(multiply, pieces, 1 if tile.size * len(values) < MIN_OPS_PER_THREAD else threads)
    return product


def decoded_tiles(weight: Tensor, first: int, last: int, size: int, threads: int) -> Iterator[tuple[int, Floats]]:
    """Yield (number of its first row, tile) for tiles of at most about `size` values that make up rows first … last -
    1.

    Each tile is float32 (rows, width), read-only, and valid until the next is requested. All threads decode it.
    """
    step = _round(size // max(1, weight.width))
    tile = np.empty((0 if weight.format.name == "F32" else min(step, last - first), weight.width), np.float32)
    for start, stop in spans(last - first, step):
        if weight.format.name == "F32":
            yield first + start, _decoded(weight, first + start, first + stop)
            continue
        begin = first + start

        def decode(start: int, stop: int, begin: int = begin) -> None:
            tile[start:stop] = _decoded(weight, begin + start, begin + stop)

        parallel(decode, spans(stop - start, _round(PIECE // max(1, weight.width))), threads)
        yield begin, tile[: stop - start]


def _round(rows: int) -> int:
    return max(ROUND, -(-rows // ROUND) * ROUND)


def _decoded(weight: Tensor, start: int, stop: int) -> Floats:
    if weight.format.name == "F32":
        return weight.elements(start, stop)  # type: ignore[return-value]  # float32 is what F32's elements are
    return weight.float32(start, stop)


def matmul_experts(
    x: Floats | Inputs,
    weight: Tensor,
    expert: int,
    *,
    threads: int = 1,
    precision: Precision = "exact",
    may_round: bool = False,
) -> Floats:
    """Return x (n, width) times one expert of a weight (experts, out, width): float32 (n, out)."""
    rows = slice(expert * weight.shape[1], (expert + 1) * weight.shape[1])
    return matmul(x, weight, rows, threads=threads, precision=precision, may_round=may_round)


def gather(weight: Tensor, ids: NDArray[np.integer]) -> Floats:
    """Return the rows `ids` of an embedding: float32 (len(ids), width). Only those rows are read."""
    wanted, where = np.unique(np.asarray(ids).reshape(-1), return_inverse=True)
    raw = np.concatenate([weight.raw(int(row), int(row) + 1) for row in wanted])
    return weight.format.decode(raw)[where]
