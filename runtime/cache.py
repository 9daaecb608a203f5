"""Keys and values of the tokens seen so far, one pair of growing float32 arrays a layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

LEAST_ROOM = 64  # tokens


class KVCache:
    """Grows by doubling; `length` is the number of tokens of which every layer has been appended.

    tokens: the ids seen so far, int64, for models that may have to compute everything anew.
    """

    def __init__(self) -> None:
        self.tokens: NDArray[np.int64] = np.empty(0, np.int64)
        self._layers: dict[int, tuple[Floats, Floats]] = {}
        self._lengths: dict[int, int] = {}

    @property
    def length(self) -> int:
        return min(self._lengths.values(), default=0)

    def append(self, layer: int, k: Floats, v: Floats) -> tuple[Floats, Floats]:
        """Add k (n, kv heads, d) and v (n, kv heads, dv); views of all keys and values of the layer so far."""
        seen = self._lengths.get(layer, 0)
        total = seen + len(k)
        if layer not in self._layers or total > len(self._layers[layer][0]):
            old = self._layers.get(layer)
            room = max(LEAST_ROOM, total if old is None else max(total, 2 * seen))
            self._layers[layer] = (_grown(old and old[0], seen, k, room), _grown(old and old[1], seen, v, room))
        keys, values = self._layers[layer]
        keys[seen:total], values[seen:total] = k, v
        self._lengths[layer] = total
        return keys[:total], values[:total]

    def reset(self) -> None:
        """Forget every token; the memory is kept for the next ones."""
        self._lengths.clear()
        self.tokens = self.tokens[:0]


def _grown(old: Floats | None, seen: int, like: Floats, room: int) -> Floats:
    new = np.empty((room, *like.shape[1:]), np.float32)
    if old is not None:
        new[:seen] = old[:seen]
    return new
