"""The cache of a text on a device: keys, values and states stay there from token to token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from quants.errors import OptionError

from ..arrays import Ids
from ..kv_cache import MIN_ROOM, CacheType, KVCache

BLOCK = 32  # values of Q8_0 under one scale
TOP = 127.0  # the largest code
BELOW_HALF = 0.49999997  # the largest float32 below a half: added, it rounds ties away from zero

Rows = tuple[torch.Tensor, ...]  # of tokens; of Q8_0 codes and scales


class DeviceCache(KVCache):
    """A `KVCache` on a device, with the same numbers in keys and values of every type.

    Keys and values grow by doubling, or at once to `expected` tokens. States are tensors, too; they are replaced, never
    changed in place.
    """

    def __init__(self, device: torch.device, cache_type: CacheType = "f32", expected: int = 0) -> None:
        """Raise OptionError for an unknown type."""
        super().__init__(cache_type, expected)
        self.device = device
        self._rows: dict[int, tuple[Rows, Rows]] = {}  # of each layer's keys and values, with spare room
        self._crossed: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def nbytes(self) -> int:
        """Return the bytes in use, including spare room."""
        rows: int = sum(each.nbytes for pair in self._rows.values() for part in pair for each in part)
        return super().nbytes + rows

    def append(self, layer: int, k: Any, v: Any) -> tuple[Any, Any]:
        """Append k (n, kv heads, d) and v (n, kv heads, dv); return all keys and values of the layer so far, as stored.

        Arrays, of embeddings that look back, stay on the host. Raises OptionError for a width that is not whole blocks.
        """
        if isinstance(k, np.ndarray):
            return super().append(layer, k, v)
        seen = self._lengths.get(layer, 0)
        total, new = seen + len(k), (self._encoded(k), self._encoded(v))
        if layer not in self._rows or total > len(self._rows[layer][0][0]):
            self._grow(layer, total, new)
        for room, parts in zip(self._rows[layer], new, strict=True):
            for wide, part in zip(room, parts, strict=True):
                wide[seen:total] = part
        self._lengths[layer] = total
        return self.read(layer)

    def read(self, layer: int) -> tuple[Any, Any]:
        """Return all keys and values of a layer so far, as stored: (n, kv heads, width) each, float32."""
        if layer not in self._rows:
            return super().read(layer)
        seen = self._lengths[layer]
        keys, values = (_decoded([each[:seen] for each in parts]) for parts in self._rows[layer])
        return keys, values

    def _encoded(self, x: torch.Tensor) -> Rows:
        """Return rows as they are stored."""
        if self.cache_type == "f32" or not x.shape[2]:
            return (x,)
        if self.cache_type == "f16":
            return (x.to(torch.float16),)
        if x.shape[2] % BLOCK:
            raise OptionError(
                f"a {self.cache_type} cache needs heads of whole blocks of {BLOCK}; these are {x.shape[2]} wide",
                hint="take f16 or f32",
            )
        blocks = x.reshape(*x.shape[:2], -1, BLOCK)
        scales = blocks.abs().amax(dim=3, keepdim=True) / TOP
        inverse = torch.where(scales == 0, scales, 1 / scales)
        codes = blocks * inverse
        codes = torch.trunc(torch.where(codes < 0, codes - BELOW_HALF, codes + BELOW_HALF))
        return codes.to(torch.int8).reshape(x.shape), scales[..., 0].to(torch.float16)

    def _grow(self, layer: int, tokens: int, like: tuple[Rows, Rows]) -> None:
        """Make room for `tokens` tokens in all. like: rows of the stored shapes and types."""
        seen = self._lengths.get(layer, 0)
        room = max(MIN_ROOM, tokens, 2 * seen, self.expected)
        wide = [tuple(each.new_empty((room, *each.shape[1:])) for each in parts) for parts in like]
        for new, old in zip(wide, self._rows.get(layer, ()), strict=False):
            _copy(new, old, seen)
        self._rows[layer] = wide[0], wide[1]
        self.version += 1

    def copy(self) -> DeviceCache:
        """Return an independent copy. The encoded text is shared."""
        other = super().copy()
        assert isinstance(other, DeviceCache)
        other._rows = {}
        for layer, pair in self._rows.items():
            wide = [tuple(map(torch.empty_like, parts)) for parts in pair]
            for new, old in zip(wide, pair, strict=True):
                _copy(new, old, self._lengths.get(layer, 0))
            other._rows[layer] = wide[0], wide[1]
        return other

    def _copied(self, state: Any) -> Any:
        return state if isinstance(state, torch.Tensor) else state.copy()

    def keep_rows(self, length: int, rows: Ids) -> None:
        """Drop all tokens after the first `length` except these, counted from there, ascending; they move up.

        Only for layers with keys and values.
        """
        super().keep_rows(length, rows)
        end, kept = length + len(rows), torch.from_numpy(length + rows).to(self.device)
        with torch.inference_mode():
            for layer, pair in self._rows.items():
                for array in (each for parts in pair for each in parts):
                    array[length:end] = array[kept]
                self._lengths[layer] = end

    def crossed(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a decoder layer's keys and values for cross-attention to the encoded text."""
        if place not in self._crossed:
            k, v = (torch.from_numpy(each).to(self.device) for each in self.context[place])
            self._crossed[place] = k, v
        return self._crossed[place]


def _copy(new: Rows, old: Rows, count: int) -> None:
    """Copy the first rows."""
    with torch.inference_mode():
        for wide, narrow in zip(new, old, strict=True):
            wide[:count] = narrow[:count]


def _decoded(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return stored rows in float32."""
    if len(parts) == 1:
        return parts[0].float()
    codes, scales = parts
    blocks = codes.float().reshape(*scales.shape, BLOCK) * scales.float()[..., None]
    return blocks.reshape(codes.shape)
