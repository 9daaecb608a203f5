"""What layers keep of the tokens seen so far: keys and values in growing float32 arrays, or states of fixed size."""

from __future__ import annotations

import numpy as np

from .arrays import Floats, Ids

LEAST_ROOM = 64  # tokens


class KVCache:
    """Grows by doubling.

    tokens: the ids seen so far, int64, for models that may have to compute everything anew. context: what a decoder
    looks at of the text that an encoder read, keys and values for each layer.
    """

    def __init__(self) -> None:
        self.tokens: Ids = np.empty(0, np.int64)
        self.context: tuple[tuple[Floats, Floats], ...] = ()
        self._layers: dict[int, tuple[Floats, Floats]] = {}
        self._lengths: dict[int, int] = {}
        self._states: dict[int, tuple[Floats, ...]] = {}
        self._steps: dict[int, int] = {}

    @property
    def length(self) -> int:
        """Tokens of which every layer has been appended."""
        return min((*self._lengths.values(), *self._steps.values()), default=0)

    def append(self, layer: int, k: Floats, v: Floats) -> tuple[Floats, Floats]:
        """Add k (n, kv heads, d) and v (n, kv heads, dv); views of all keys and values of the layer so far."""
        seen = self._lengths.get(layer, 0)
        total = seen + len(k)
        if layer not in self._layers or total > len(self._layers[layer][0]):
            room = max(LEAST_ROOM, total, 2 * seen)
            keys, values = (np.empty((room, *new.shape[1:]), np.float32) for new in (k, v))
            for wide, old in zip((keys, values), self._layers.get(layer, ()), strict=False):
                wide[:seen] = old[:seen]
            self._layers[layer] = keys, values
        keys, values = self._layers[layer]
        keys[seen:total], values[seen:total] = k, v
        self._lengths[layer] = total
        return keys[:total], values[:total]

    def states(self, layer: int) -> tuple[Floats, ...]:
        """What a recurrent layer was left with; empty before its first token. The arrays may be changed in place."""
        return self._states.get(layer, ())

    def keep(self, layer: int, tokens: int, *states: Floats) -> None:
        """Leave a recurrent layer's states after `tokens` more tokens."""
        self._states[layer] = states
        self._steps[layer] = self._steps.get(layer, 0) + tokens

    def reset(self) -> None:
        """Forget every token (the context stays); the memory is kept for the next ones."""
        self._lengths.clear()
        self._states.clear()
        self._steps.clear()
        self.tokens = self.tokens[:0]
