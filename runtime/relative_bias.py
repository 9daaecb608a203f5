"""Relative position biases of scores (T5)."""

import math

import numpy as np

from quants import Tensor

from .arrays import Floats, Ids


def relative_bias(weight: Tensor, positions: Ids, keys: int, farthest: int, *, causal: bool) -> Floats:
    """Return the bias of the score of each head, query and key: float32 (heads, queries, keys).

    weight: (buckets, heads). Near distances have a bucket each, farther ones share buckets that grow with the
    logarithm; without causal, keys after the query use the upper half of them.
    """
    table = weight.float32()
    distance = positions[:, None] - np.arange(keys)
    count, offset = len(table), np.zeros_like(distance)
    if not causal:
        count //= 2
        offset = np.where(distance < 0, count, 0)
        distance = np.abs(distance)
    distance = np.maximum(distance, 0)
    exact = count // 2
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    steps = ratio / np.float32(math.log(farthest / exact)) * np.float32(count - exact)
    far = np.minimum(exact + steps.astype(np.int64), count - 1)
    bucket = offset + np.where(distance < exact, distance, far)
    return np.ascontiguousarray(table[bucket].transpose(2, 0, 1))
