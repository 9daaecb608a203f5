"""Encode a model's layers in a trellis format of ik_llama.cpp, to measure what the format can do.

    python -m benchmarks.trellis MODEL-F16.gguf IMATRIX.gguf IQ3_KT OUTPUT.gguf

gguftools reads these formats and never writes them. This encoder is for measurements alone: it writes the decoded
values as F32, so that every program can run them. Each group of eight (IQ4_KT: four) values gets the best of all codes,
weighted by the importance matrix. The search is exhaustive, so the format is shown at its best: ik_llama.cpp's own
quantizer searches a few clusters of codes.

Scales are chosen for each 32 values among all that the format has, near the one that least squares give.
"""

import argparse
import re
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

import gguftools
from gguftools.writing.pipeline import FilePlan, Item, write_files
from quants import Tensor, from_array
from quants.dialects.iqk import IQ4, _trellis

Floats = NDArray[np.float32]
BLOCK = 32  # values of one scale
TILE = 2048  # codes tried at once
FACTORS = {"IQ2_KT": (0.85, 1.0, 1.15), "IQ3_KT": (0.85, 1.0, 1.15), "IQ4_KT": (1.0, 1.2, 1.4, 1.6)}  # of scales tried
LAYER = re.compile(r"blk\.\d+\..*\.weight")


def codebook(name: str) -> list[Floats]:
    """All vectors that a group may hold; IQ4_KT has two halves, of which each 32 values choose one."""
    length = 4 if name == "IQ4_KT" else 8
    vectors = _trellis(np.arange(1 << 16, dtype=np.uint32).reshape(1, 1, -1), length).reshape(-1, length)
    vectors = vectors.astype(np.float32)
    if name == "IQ3_KT":
        return [np.abs(vectors)]
    return list(vectors.reshape(2, -1, length)) if name == "IQ4_KT" else [vectors]


def scale_levels(name: str) -> Floats:
    """What a block's scale is, as a multiple of the row's scale."""
    if name == "IQ3_KT":
        return np.arange(1, 16, dtype=np.float32)
    if name == "IQ4_KT":
        return np.arange(1, 64, dtype=np.float32)
    return IQ4[:16].astype(np.float32)


@njit(nogil=True, fastmath=True)
def _nearest(x, weights, scale, codes, best, errors):  # type: ignore[no-untyped-def]
    tiles, length, size = codes.shape
    cost = np.empty(size, np.float32)
    two = np.float32(2)
    for group in range(x.shape[0]):
        s = scale[group]
        lowest, at = np.float32(np.inf), 0
        for tile in range(tiles):
            cost[:] = np.float32(0)
            for i in range(0, length, 2):
                c, d = codes[tile, i], codes[tile, i + 1]
                a, b = weights[group, i] * s * s, two * weights[group, i] * s * x[group, i]
                e, f = weights[group, i + 1] * s * s, two * weights[group, i + 1] * s * x[group, i + 1]
                for j in range(size):
                    cost[j] += c[j] * (a * c[j] - b) + d[j] * (e * d[j] - f)
            smallest = cost[0]
            for j in range(size):
                smallest = min(smallest, cost[j])
            if smallest < lowest:
                lowest, at = smallest, tile * size + cost.argmin()
        best[group], errors[group] = at, lowest


def nearest(x: Floats, weights: Floats, scale: Floats, codes: Floats) -> tuple[Floats, Floats]:
    """The best vectors for groups at given scales, and their weighted errors."""
    tiles = np.ascontiguousarray(codes.reshape(-1, TILE, codes.shape[1]).swapaxes(1, 2))
    best, errors = np.empty(len(x), np.int64), np.empty(len(x), np.float32)
    _nearest(x, weights, scale, tiles, best, errors)
    return codes[best], errors + (weights * x**2).sum(axis=1)


def search(x: Floats, weights: Floats, scale: Floats, books: list[Floats]) -> tuple[Floats, Floats]:
    """For blocks of 32 values with a scale each: their vectors, and their errors."""
    found = []
    for codes in books:
        groups = BLOCK // codes.shape[1]
        shape = (-1, codes.shape[1])
        vectors, errors = nearest(x.reshape(shape), weights.reshape(shape), scale.repeat(groups), codes)
        found.append((vectors.reshape(-1, BLOCK), errors.reshape(-1, groups).sum(axis=1)))
    vectors, errors = found[0]
    for others, theirs in found[1:]:
        better = theirs < errors
        vectors, errors = np.where(better[:, None], others, vectors), np.where(better, theirs, errors)
    return vectors, errors


def encoded(values: Floats, importance: Floats, name: str) -> Floats:
    """The values as the format would give them back."""
    books, levels = codebook(name), scale_levels(name)
    rows, columns = values.shape
    sigma = 2 * (values**2).mean(axis=1, keepdims=True)
    weights = (importance * np.sqrt(sigma + values**2)).astype(np.float32).reshape(-1, BLOCK)  # as ggml's own encoders
    blocks = values.reshape(-1, BLOCK)
    signs = np.ones_like(blocks)
    if name == "IQ3_KT":
        signs, blocks = np.where(blocks < 0, np.float32(-1), np.float32(1)), np.abs(blocks)
    scale = np.sqrt((blocks**2).mean(axis=1) / (books[0] ** 2).mean())
    best, ideal = np.full(len(blocks), np.inf, np.float32), scale.copy()
    for factor in FACTORS[name]:
        vectors, errors = search(blocks, weights, scale * np.float32(factor), books)
        fit = (weights * blocks * vectors).sum(axis=1) / np.maximum((weights * vectors**2).sum(axis=1), 1e-30)
        better = errors < best
        best[better], ideal[better] = errors[better], fit[better]
    per_row = columns // BLOCK
    head = (np.abs(ideal.reshape(rows, -1)).max(axis=1) / np.abs(levels).max()).repeat(per_row)
    by_distance = np.abs(np.abs(ideal)[:, None] - head[:, None] * np.abs(levels)).argsort(axis=1)
    best, result = np.full(len(blocks), np.inf, np.float32), np.empty_like(blocks)
    for rank in range(3 if name == "IQ2_KT" else 2):
        level = levels[by_distance[:, rank]]
        vectors, errors = search(blocks, weights, head * level, books)
        better = errors < best
        best[better], result[better] = errors[better], (level[:, None] * vectors)[better]
    upper = (weights * blocks * result).reshape(rows, -1).sum(axis=1)  # the row's scale once more, by least squares
    lower = (weights * result**2).reshape(rows, -1).sum(axis=1)
    head = (upper / np.maximum(lower, 1e-30)).repeat(per_row)
    return (head[:, None] * result * signs).reshape(rows, columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("imatrix", type=Path)
    parser.add_argument("format", choices=("IQ2_KT", "IQ3_KT", "IQ4_KT"))
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    model = gguftools.open(given.model)
    sums = gguftools.open(given.imatrix).tensors

    def rewritten(tensor: Tensor) -> Tensor:
        if len(tensor.shape) != 2 or not LAYER.fullmatch(tensor.name):
            return tensor
        importance = sums[f"{tensor.name}.in_sum2"].float32().reshape(-1)
        return from_array(tensor.name, encoded(tensor.float32(), importance, given.format))

    tensors = [rewritten(each) for each in model.tensors.values()]
    plan = FilePlan(given.output, model.metadata, tuple(Item(each, each.format) for each in tensors))
    write_files([plan], overwrite=True)


if __name__ == "__main__":
    main()
