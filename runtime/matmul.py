"""Products with weights that stay in their stored format: a tile of rows is decoded, multiplied and forgotten.

Tiles are independent, so each thread decodes and multiplies its own, with BLAS on one thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quants import Tensor

from .kernels import blas
from .kernels.threads import run, set_threads, spans, threads

__all__ = ["gather", "matmul", "matmul_experts", "set_threads"]

Floats = NDArray[np.float32]

TILE = 1 << 18  # weights decoded at a time: 1 MB of float32, half of a usual second-level cache
WORTH_A_THREAD = 1 << 17  # weights: decoding fewer than that takes less time than starting a thread
ROUND = 16  # rows of a tile are a multiple of this, which suits BLAS kernels


def matmul(x: Floats, weight: Tensor, rows: slice | None = None, out: Floats | None = None) -> Floats:
    """x @ W.T for float32 x (n, width): float32 (n, weight.rows), or only the columns of `rows` of the weight.

    Memory: one tile of the weight a thread. out: where to put the result, float32 (n, rows).
    """
    first, last, _ = (rows or slice(None)).indices(weight.rows)
    values = np.ascontiguousarray(x, np.float32)
    product = np.empty((len(values), last - first), np.float32) if out is None else out

    def multiply(start: int, stop: int) -> None:
        np.matmul(values, _decoded(weight, first + start, first + stop).T, out=product[:, start:stop])

    run(multiply, _tiles(last - first, weight.width))
    return product


def _tiles(rows: int, width: int) -> list[tuple[int, int]]:
    """Tiles of about TILE weights; as many for every thread, where there is work for several."""
    pieces = -(-rows * width // TILE)
    if threads() > 1 and blas.controllable() and rows * width >= WORTH_A_THREAD:
        pieces = -(-pieces // threads()) * threads()
    step = -(-rows // max(1, pieces))
    return spans(rows, max(ROUND, -(-step // ROUND) * ROUND))


def _decoded(weight: Tensor, start: int, stop: int) -> Floats:
    if weight.format.name == "F32":
        return weight.elements(start, stop)  # type: ignore[return-value]  # float32 is what F32's elements are
    return weight.float32(start, stop)


def matmul_experts(x: Floats, weight: Tensor, expert: int) -> Floats:
    """x (n, width) times one expert of a weight (experts, out, width): float32 (n, out)."""
    out = weight.shape[1]
    return matmul(x, weight, slice(expert * out, (expert + 1) * out))


def gather(weight: Tensor, ids: NDArray[np.integer]) -> Floats:
    """The rows `ids` of an embedding: float32 (len(ids), width). Only those rows are read."""
    wanted, where = np.unique(np.asarray(ids).reshape(-1), return_inverse=True)
    raw = np.concatenate([weight.raw(int(row), int(row) + 1) for row in wanted])
    return weight.format.decode(raw)[where]
