"""Tell which models' graphs are modelled, and bound the buffers of the others from their weights alone.

At least the inputs of attention, the embeddings and the widest product of one layer are there at the same time. At
most all products of the layer that makes most of them are, with twice as much for what is done to them, and two scores
for each head, token and cell where attention or its indexer writes scores down.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .caches import LayerCache
from .compute import MIXERS
from .description import Described, Settings
from .nodes import row_bytes

OWN_LAYERS = ("none", "attention+mamba2", "rwkv6", "rwkv7")  # besides those of MIXERS
MODELLED_ARRANGEMENTS = ("sequential", "parallel", "normed", "copies")
NOT_MODELLED = {
    "graniteswitch": "its adapters",
    "grok": "attention without flash attention",
    "hrm_text": "its cycles",
    "llama-embed": "attention beside an unused cache",
    "maple": "its own layers",
    "minimax-m3": "sparse attention",
    "qwen4exp": "its own layers",
    "smallthinker": "a router before attention",
    "talkie": "its own layers",
}
OTHER_CACHES = ("bailingmoe3", "deepseek4", "dots3note", "glm5-next", "graniteswitch", "minimax-m3", "qwen4exp")
WITH_SCORES = ("grok", "minimax-m3", "minimax-01", "qwen4exp", "hy_v4", "deepseek4", "glm5-next")


@dataclass(frozen=True)
class Interval:
    """Bytes: at least and at most."""

    low: int
    high: int


def unmodelled(model: Described) -> str:
    """Return what of a model is not modelled, or nothing."""
    name = model.architecture.name
    if name in NOT_MODELLED:
        return NOT_MODELLED[name]
    for index, kind in enumerate(model.layers):
        if kind.mixer not in MIXERS and kind.mixer not in OWN_LAYERS:
            return f"layers of type {kind.mixer}"
        if kind.arrangement not in MODELLED_ARRANGEMENTS:
            return f"layers with {kind.arrangement}"
        if any(role.startswith("indexer.") for role in model.roles(index)):
            return "sparse attention"
    return ""


def compute_interval(model: Described, settings: Settings) -> Interval:
    """Return bounds of the compute buffer."""
    tokens, width = settings.tokens, model.hparams.width
    cells = settings.cells if model.cached else tokens
    mask = 2 * cells * tokens
    embeddings = 4 * tokens * width
    logits = 4 * settings.rows * model.vocabulary
    heads = max((layer.heads for layer in model.hparams.layers), default=1)
    layers = [_products(model, tokens, prefix) for prefix in model.grouped if prefix] or [(0, 0)]
    widest, most = max(each[0] for each in layers), max(each[1] for each in layers)
    indexed = any(role.startswith("indexer.") for role in model.roles(0)) or model.architecture.name in WITH_SCORES
    scores = 8 * heads * cells * tokens if indexed else 0
    streams = max(1, model.number("hyper_connection.count"))
    return Interval(embeddings + max(widest, logits), 3 * mask + 8 * streams * embeddings + 3 * most + logits + scores)


def _products(model: Described, tokens: int, prefix: str) -> tuple[int, int]:
    """Return the bytes of a layer's widest product, and of all."""
    used = max((layer.experts_used for layer in model.hparams.layers), default=1) or 1
    sizes = [0]
    for role, tensor in model.grouped[prefix].items():
        if len(tensor.shape) > 1:
            several = used if "_exps" in role else 1
            sizes.append(4 * tokens * several * tensor.shape[-2] * (prod(tensor.shape[:-2]) if several == 1 else 1))
    return max(sizes), sum(sizes)


def cache_interval(model: Described, settings: Settings, caches: tuple[LayerCache, ...]) -> Interval:
    """Return bounds of caches and states where llama.cpp has a cache that is not modelled, else what is computed.

    The upper one is as if every layer saw the whole context.
    """
    computed = sum(each.attention_bytes(settings) + each.state_bytes(settings) for each in caches)
    if model.architecture.name not in OTHER_CACHES:
        return Interval(computed, computed)
    whole = 0
    for layer in model.hparams.layers:
        keys = max(layer.kv_heads * layer.key_width, model.number("attention.key_length"))
        values = layer.kv_heads * layer.value_width
        row = row_bytes(settings.cache_type_k, _blocks(keys)) + row_bytes(settings.cache_type_v, _blocks(values))
        indexer = row_bytes(settings.cache_type_k, _blocks(model.number("attention.indexer.key_length")))
        whole += (row + indexer) * settings.cells * settings.streams
    states = sum(each.state_bytes(settings) for each in caches)
    return Interval(
        min(computed, whole) // 2 + states // 2, max(computed, whole + whole // max(1, model.count) + 2 * states)
    )


def _blocks(width: int) -> int:
    """Return a width as whole blocks."""
    return -(-width // 32) * 32
