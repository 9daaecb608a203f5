"""What layers keep of the tokens seen so far: keys and values in growing float32 arrays, or states of fixed size."""

from collections.abc import Sequence

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
        self.version = 0  # changes whenever arrays move
        self._layers: dict[int, tuple[Floats, Floats]] = {}
        self._lengths: dict[int, int] = {}
        self._states: dict[int, tuple[Floats, ...]] = {}
        self._steps: dict[int, int] = {}
        self.memory = 0  # how many tokens recurrent layers can be taken back by
        self._trails: dict[tuple[int, int], list[Floats]] = {}  # (layer, which state): after each of the latest tokens

    @property
    def length(self) -> int:
        """Tokens of which every layer has been appended."""
        return min((*self._lengths.values(), *self._steps.values()), default=0)

    def append(self, layer: int, k: Floats, v: Floats) -> tuple[Floats, Floats]:
        """Add k (n, kv heads, d) and v (n, kv heads, dv); views of all keys and values of the layer so far."""
        seen = self._lengths.get(layer, 0)
        total = seen + len(k)
        self.reserve(layer, total, k.shape[1:], v.shape[1:])
        keys, values = self._layers[layer]
        keys[seen:total], values[seen:total] = k, v
        self._lengths[layer] = total
        return keys[:total], values[:total]

    def reserve(self, layer: int, tokens: int, key_shape: tuple[int, ...], value_shape: tuple[int, ...]) -> None:
        """Have room for so many tokens in all."""
        if layer in self._layers and tokens <= len(self._layers[layer][0]):
            return
        seen = self._lengths.get(layer, 0)
        room = max(LEAST_ROOM, tokens, 2 * seen)
        keys, values = (np.empty((room, *shape), np.float32) for shape in (key_shape, value_shape))
        for wide, old in zip((keys, values), self._layers.get(layer, ()), strict=False):
            wide[:seen] = old[:seen]
        self._layers[layer] = keys, values
        self.version += 1

    def arrays(self, layer: int) -> tuple[Floats, Floats]:
        """Keys and values with all their room, which is written to before `advance` counts it."""
        return self._layers[layer]

    @property
    def room(self) -> int:
        """Tokens that all layers have room for without moving."""
        return min(len(keys) for keys, _ in self._layers.values())

    def advance(self, layers: range, tokens: int) -> None:
        """So many tokens have been written to the arrays of these layers."""
        for layer in layers:
            self._lengths[layer] = self._lengths.get(layer, 0) + tokens

    def states(self, layer: int) -> tuple[Floats, ...]:
        """What a recurrent layer was left with; empty before its first token. The arrays may be changed in place."""
        return self._states.get(layer, ())

    def keep(self, layer: int, tokens: int, *states: Floats) -> None:
        """Leave a recurrent layer's states after `tokens` more tokens."""
        self._states[layer] = states
        self._steps[layer] = self._steps.get(layer, 0) + tokens

    def remember(self, layer: int, state: int, after: Sequence[Floats]) -> None:
        """Note what a recurrent layer's state number `state` was after each of the latest tokens."""
        trail = self._trails.setdefault((layer, state), [])
        trail += after
        del trail[: -self.memory - 1]

    def truncate(self, length: int) -> None:
        """Forget all tokens behind the first `length`.

        Raises ValueError where a recurrent layer would have to go back by more than `memory` tokens.
        """
        for layer, steps in self._steps.items():
            back, parts = steps - length, range(len(self._states[layer]))
            if back <= 0:
                continue
            if any(len(self._trails.get((layer, part), ())) <= back for part in parts):
                raise ValueError(f"layer {layer} does not remember its state {back} tokens ago")
            for part in parts:
                del self._trails[layer, part][-back:]
            self._states[layer] = tuple(self._trails[layer, part][-1].copy() for part in parts)
            self._steps[layer] = length
        for layer, seen in self._lengths.items():
            self._lengths[layer] = min(seen, length)
        self.tokens = self.tokens[:length]

    def reset(self) -> None:
        """Forget every token (the context stays); the room is kept for the next ones."""
        self._trails.clear()
        self._lengths.clear()
        self._states.clear()
        self._steps.clear()
        self.tokens = self.tokens[:0]
