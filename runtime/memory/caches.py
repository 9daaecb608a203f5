"""Compute the caches of attention and the states of recurrent layers, in bytes a layer, as llama.cpp keeps them.

Keys and values: cells times the widths of all key heads and value heads in the cache's type. A layer with a window has
cells for the window and one step; a latent cache (MLA) holds keys alone. Layers that read the cache of an earlier one
have none. States are float32, one for each sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

from .description import Described, Settings, padded
from .nodes import row_bytes

RECURRENT = ("mamba", "mamba2", "mamba_heads", "gated_delta", "kimi_delta", "lightning", "rwkv6", "rwkv7", "shortconv")
ATTENDING = ("attention", "mla", "mla_widened", "compressed")


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps between steps. cells: of each stream. shift, state: float32 values of each sequence."""

    cells: int = 0
    keys: int = 0
    values: int = 0
    shift: int = 0
    state: int = 0
    indexer: int = 0

    def attention_bytes(self, settings: Settings) -> int:
        """Return the bytes of its keys and values."""
        row = row_bytes(settings.cache_type_k, self.keys + self.indexer) + row_bytes(settings.cache_type_v, self.values)
        return row * self.cells * settings.streams

    def state_bytes(self, settings: Settings) -> int:
        """Return the bytes of its states."""
        return 4 * (self.shift + self.state) * settings.sequences


def layer_caches(model: Described, settings: Settings) -> tuple[LayerCache, ...]:
    """Return what each layer keeps."""
    return tuple(_of_layer(model, settings, i) for i in range(model.count))


def window_cells(model: Described, settings: Settings) -> int:
    """Return the cells of layers with a window."""
    window = model.number("attention.sliding_window") or next(
        (each.chunk for each in model.hparams.layers if each.chunk), 0
    )
    if settings.whole_windows:
        return settings.cells
    several = settings.sequences if settings.unified else 1
    ubatch = min(settings.ubatch, settings.batch, settings.cells * settings.streams)
    return padded(min(settings.cells, window * several + ubatch))


def _of_layer(model: Described, settings: Settings, index: int) -> LayerCache:
    own, mixer = model.hparams.layers[index], model.layers[index].mixer
    shift = state = keys = values = cells = indexer = 0
    if mixer in RECURRENT or mixer == "attention+mamba2":
        shift, state = _states(model, mixer)
    if (mixer in ATTENDING or mixer == "attention+mamba2") and own.kv_source_layer is None and model.cached:
        cells = window_cells(model, settings) if model.windowed(own) else settings.cells
        keys, values = own.kv_heads * own.key_width, own.kv_heads * own.value_width
        if model.latent and mixer == "mla":
            keys, values = model.number("attention.key_length"), 0
        elif mixer == "mla_widened" or (mixer == "mla" and not model.latent):
            keys, values = own.heads * own.key_width, own.heads * own.value_width
        if any(role.startswith("indexer.") for role in model.roles(index)):
            indexer = model.number("attention.indexer.key_length")
    return LayerCache(cells, keys, values, shift, state, indexer)


def _states(model: Described, mixer: str) -> tuple[int, int]:
    """Return the values of the two states of a recurrent layer."""
    width, heads = model.hparams.width, max(layer.heads for layer in model.hparams.layers)
    inner, state = model.number("ssm.inner_size"), model.number("ssm.state_size")
    groups = int(model.keys.stored("ssm.group_count") or 0)
    taps = model.number("ssm.conv_kernel")
    if mixer in ("rwkv6", "rwkv7"):
        return int(model.keys.get("token_shift_count") or 2) * width, width * model.number("wkv.head_size")
    if mixer == "shortconv":
        return width * (model.number("shortconv.l_cache") - 1), 0
    if mixer == "kimi_delta":
        head = model.number("kda.head_dim")
        return 3 * max(taps - 1, 0) * heads * head, head * head * heads
    if mixer == "lightning":
        head = model.hparams.layers[0].key_width
        return 0, head * head * heads
    return max(taps - 1, 0) * (inner + 2 * groups * state), state * inner
