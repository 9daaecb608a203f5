"""The KV cache: keys and values in growing arrays, or recurrent states of fixed size.

Keys and values are kept in float32, or rounded: to float16, or to blocks of 32 numbers along a head's width, as in
ggml's Q8_0. With a rounded cache attention uses the rounded ones, those of the same pass, too.
"""

import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from quants import format_named
from quants.errors import ModelError, OptionError
from quants.spelling import quote

from .arrays import Floats, Ids

MIN_ROOM = 64  # tokens
CacheType = Literal["f32", "f16", "q8_0"]
CACHE_TYPES: tuple[CacheType, ...] = get_args(CacheType)
State = Any  # a float32 array; of a cache on a device a tensor (see `runtime.device.cache`)
Stored = NDArray[Any]  # (room, kv heads, width) float32; of a rounded cache uint8, the bytes of a head's row last


class KVCache:
    """A cache that grows by doubling, or at once to `expected` tokens.

    cache_type: the format of keys and values; states stay float32. tokens: the ids so far, int64, for models that may
    have to recompute everything. context: a decoder's keys and values for cross-attention to the encoded text, for each
    layer.
    """

    def __init__(self, cache_type: CacheType = "f32", expected: int = 0) -> None:
        """Raise OptionError for an unknown type."""
        self.cache_type, self.expected = as_cache_type(cache_type), expected
        self.tokens: Ids = np.empty(0, np.int64)
        self.context: tuple[tuple[Floats, Floats], ...] = ()
        self.version = 0  # changes whenever arrays move, of states, too
        self._layers: dict[int, tuple[Stored, Stored]] = {}
        self._lengths: dict[int, int] = {}
        self._states: dict[int, tuple[State, ...]] = {}
        self._steps: dict[int, int] = {}
        self._shifts: dict[int, int] = {}  # after an image: by how much positions differ from the number of tokens
        self.memory = 0  # how many tokens recurrent layers can be rolled back by
        self._trails: dict[tuple[int, int], list[State]] = {}  # (layer, which state): after each of the latest tokens

    @property
    def length(self) -> int:
        """Return the number of tokens appended by every layer."""
        return min((*self._lengths.values(), *self._steps.values()), default=0)

    @property
    def next_position(self) -> int:
        """Return the next token's position for rotation: images may take fewer positions than they have tokens."""
        return self.length + self.shift

    @property
    def shift(self) -> int:
        return sum(self._shifts.values())

    def shift_to(self, position: int) -> None:
        """Set the next token's position."""
        if change := position - self.next_position:
            self._shifts[self.length] = self._shifts.get(self.length, 0) + change
            self.version += 1

    @property
    def nbytes(self) -> int:
        """Return the bytes in use, including spare room."""
        states = [each for states in self._states.values() for each in states]
        trails = [each for trail in self._trails.values() for each in trail]
        pairs = [each for pair in (*self._layers.values(), *self.context) for each in pair]
        return sum(each.nbytes for each in (*pairs, *states, *trails))

    def append(self, layer: int, k: Floats, v: Floats) -> tuple[Floats, Floats]:
        """Append k (n, kv heads, d) and v (n, kv heads, dv); return all keys and values of the layer so far, as stored.

        Raises as `reserve` does, and ModelError for non-finite values, which a rounded cache would hide.
        """
        seen = self._lengths.get(layer, 0)
        total = seen + len(k)
        self.reserve(layer, total, k.shape[1:], v.shape[1:])
        keys, values = self._layers[layer]
        keys[seen:total], values[seen:total] = (self._rounded(layer, each) for each in (k, v))
        self._lengths[layer] = total
        return self._decoded(keys[:total], k.shape[2]), self._decoded(values[:total], v.shape[2])

    def _rounded(self, layer: int, x: Floats) -> Stored:
        if self.cache_type == "f32" or not x.shape[2]:
            return x
        if not np.isfinite(x).all():
            raise ModelError(f"keys or values of layer {layer} are not finite: the file's weights are damaged")
        rows = np.ascontiguousarray(x).reshape(-1, x.shape[2])
        return format_named(self.cache_type.upper()).encode(rows).reshape(*x.shape[:2], -1)

    def _decoded(self, stored: Stored, width: int) -> Floats:
        if self.cache_type == "f32" or not width:
            return stored
        raw = stored.reshape(-1, stored.shape[2])
        return format_named(self.cache_type.upper()).decode(raw).reshape(*stored.shape[:2], width)

    def reserve(self, layer: int, tokens: int, key_shape: tuple[int, ...], value_shape: tuple[int, ...]) -> None:
        """Make room for `tokens` tokens in all. Raises OptionError for a width that is not whole blocks."""
        if layer in self._layers and tokens <= len(self._layers[layer][0]):
            return
        seen = self._lengths.get(layer, 0)
        room = max(MIN_ROOM, tokens, 2 * seen, self.expected)
        keys, values = (self._room(room, shape) for shape in (key_shape, value_shape))
        for wide, old in zip((keys, values), self._layers.get(layer, ()), strict=False):
            wide[:seen] = old[:seen]
        self._layers[layer] = keys, values
        self.version += 1

    def _room(self, tokens: int, shape: tuple[int, ...]) -> Stored:
        heads, width = shape
        if self.cache_type == "f32":
            return np.empty((tokens, heads, width), np.float32)
        form = format_named(self.cache_type.upper())
        if width % form.block_size:
            raise OptionError(
                f"a {self.cache_type} cache needs heads of whole blocks of {form.block_size}; these are {width} wide",
                hint="take f16 or f32",
            )
        return np.empty((tokens, heads, width // form.block_size * form.block_bytes), np.uint8)

    def read(self, layer: int) -> tuple[Floats, Floats]:
        """Return all keys and values of a layer so far, as stored: (n, kv heads, width) each."""
        keys, values = (each[: self._lengths[layer]] for each in self._layers[layer])
        widths = (each.shape[2] if self.cache_type == "f32" else self._width(each) for each in (keys, values))
        decoded = [self._decoded(each, width) for each, width in zip((keys, values), widths, strict=True)]
        return decoded[0], decoded[1]

    def _width(self, stored: Stored) -> int:
        """Return the width of a head, in numbers."""
        form = format_named(self.cache_type.upper())
        return int(stored.shape[2]) // form.block_bytes * form.block_size

    def arrays(self, layer: int) -> tuple[Stored, Stored]:
        """Return the whole arrays of keys and values, written to before `advance` counts the tokens."""
        return self._layers[layer]

    def copy(self) -> "KVCache":
        """Return an independent copy. The encoded text is shared."""
        other = copy(self)
        other._layers, other._lengths, other._steps = {}, dict(self._lengths), dict(self._steps)
        other._shifts = dict(self._shifts)
        for layer, arrays in self._layers.items():
            seen, room = self._lengths.get(layer, 0), [np.empty_like(array) for array in arrays]
            for wide, old in zip(room, arrays, strict=True):
                wide[:seen] = old[:seen]
            other._layers[layer] = room[0], room[1]
        other._states = {layer: tuple(map(self._copied, states)) for layer, states in self._states.items()}
        other._trails = {place: [*map(self._copied, trail)] for place, trail in self._trails.items()}
        return other

    def _copied(self, state: State) -> State:
        """Return a copy of a state, which may be changed in place."""
        return state.copy()

    @property
    def room(self) -> int:
        """Return the tokens that all layers have room for without moving."""
        return min(len(keys) for keys, _ in self._layers.values())

    def room_of(self, layer: int) -> int:
        """Return the tokens that a layer has room for without moving."""
        return len(self._layers[layer][0]) if layer in self._layers else 0

    @property
    def keeps_states(self) -> bool:
        """Return whether recurrent layers have stored states, which change in place."""
        return bool(self._states)

    def advance(self, layers: Iterable[int], tokens: int) -> None:
        """Count `tokens` tokens written to the arrays of these layers."""
        lengths = self._lengths
        for layer in layers:
            lengths[layer] = lengths.get(layer, 0) + tokens

    def advance_states(self, layers: Iterable[int], tokens: int) -> None:
        """Count `tokens` tokens by which the stored states of these layers were advanced in place."""
        steps = self._steps
        for layer in layers:
            steps[layer] += tokens

    @contextmanager
    def restored_on_error(self, with_states: bool = False) -> Iterator[None]:
        """If the block raises, drop the keys that it added, as if it had not run.

        with_states: states are restored, too, from copies; they may be changed in place.
        """
        lengths, steps = self._lengths.copy(), self._steps.copy()
        states = {layer: tuple(map(np.copy, each)) for layer, each in self._states.items()} if with_states else {}
        try:
            yield
        except BaseException:
            self._lengths = lengths
            if with_states:
                self._states, self._steps, self.version = states, steps, self.version + 1
            raise

    def states(self, layer: int) -> tuple[State, ...]:
        """Return a recurrent layer's states; empty before its first token. The arrays may be changed in place."""
        return self._states.get(layer, ())

    def keep(self, layer: int, tokens: int, *states: State) -> None:
        """Store a recurrent layer's states after `tokens` more tokens."""
        before = self._states.get(layer, ())
        if len(before) != len(states) or any(map(operator.is_not, before, states)):
            self.version += 1
        self._states[layer] = states
        self._steps[layer] = self._steps.get(layer, 0) + tokens

    def remember(self, layer: int, state: int, after: Sequence[State]) -> None:
        """Record a recurrent layer's state number `state` after each of the latest tokens."""
        trail = self._trails.setdefault((layer, state), [])
        trail += after
        del trail[: -self.memory - 1]

    @property
    def truncates(self) -> bool:
        """Return whether everything can be dropped token by token: no layer has states."""
        return not self._states

    def truncate(self, length: int) -> None:
        """Drop all tokens after the first `length`.

        Raises ValueError if a recurrent layer would have to go back by more than `memory` tokens.
        """
        for layer, steps in self._steps.items():
            back, parts = steps - length, range(len(self._states[layer]))
            if back <= 0:
                continue
            if any(len(self._trails.get((layer, part), ())) <= back for part in parts):
                raise ValueError(f"layer {layer} does not remember its state {back} tokens ago")
            for part in parts:
                del self._trails[layer, part][-back:]
            self._states[layer] = tuple(self._copied(self._trails[layer, part][-1]) for part in parts)
            self.version += 1
            self._steps[layer] = length
        for layer, seen in self._lengths.items():
            self._lengths[layer] = min(seen, length)
        self.tokens = self.tokens[:length]
        if any(place > length for place in self._shifts):
            self._shifts = {place: shift for place, shift in self._shifts.items() if place <= length}
            self.version += 1

    def keep_rows(self, length: int, rows: Ids) -> None:
        """Drop all tokens after the first `length` except these, counted from there, ascending; they move up.

        Only for layers with keys and values.
        """
        for layer, arrays in self._layers.items():
            for array in arrays:
                array[length : length + len(rows)] = array[length + rows]
            self._lengths[layer] = length + len(rows)

    def reset(self) -> None:
        """Drop every token (the context stays); the room is kept for the next ones."""
        self._trails.clear()
        self._shifts.clear()
        self.version += 1
        self._lengths.clear()
        self._states.clear()
        self._steps.clear()
        self.tokens = self.tokens[:0]


def as_cache_type(name: str) -> CacheType:
    """Return a cache type. Raises OptionError for an unknown name."""
    for each in CACHE_TYPES:
        if isinstance(name, str) and name.lower() == each:
            return each
    raise OptionError(f"a cache of the type {quote(name)} is not known", f"known are {', '.join(CACHE_TYPES)}")
