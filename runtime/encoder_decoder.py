"""Encoder-decoder models (T5): one text is read as a whole, another is continued while looking at the first.

Reference: transformers `models/t5/modeling_t5.py`. Scores are not scaled; a learned number for each distance is added
to them, usually the first layer's in all layers. What a decoder looks at (`KVCache.context`) is computed once a text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from archs.hyper import Keys
from archs.spec import ACTIVATIONS, Activation
from quants import Tensor
from quants.errors import ModelError

from . import ops
from .attention import attend
from .graph import Layer, Pass, embed

if TYPE_CHECKING:
    from .model import Model

Floats = NDArray[np.float32]
Context = tuple[tuple[Floats, Floats], ...]


@dataclass(frozen=True)
class Sides:
    """The layers of both sides. farthest: distances from here on share a bucket of relative positions.

    activations: of feed-forward nets without a gate, and with one.
    """

    encoder: tuple[Layer, ...]
    decoder: tuple[Layer, ...]
    farthest: int
    activations: tuple[Activation, Activation]


def sides(keys: Keys, layers: Mapping[str, Layer]) -> Sides | None:
    """Both sides of a model whose file has them, or None. layers: by prefix."""
    if "dec.output_norm.weight" not in layers[""]:
        return None
    count, said = int(keys.need("block_count")), keys.get("hidden_activation")
    return Sides(
        encoder=tuple(layers[f"enc.blk.{i}."] for i in range(count)),
        decoder=tuple(layers[f"dec.blk.{i}."] for i in range(int(keys.get("decoder_block_count", count)))),
        farthest=int(keys.get("attention.relative_max_distance", 128)),
        activations=(ACTIVATIONS[said], ACTIVATIONS[said]) if said else ("relu", "gelu_tanh"),
    )


def encode(model: Model, both: Sides, ids: NDArray[np.int64]) -> Context:
    """Read a text: for each layer of the decoder the keys and values that it will look at, (tokens, heads, width)."""
    run = Pass(model, 1, len(ids), None)
    x, bias = embed(run, ids), None
    for layer in both.encoder:
        if "attn_rel_b.weight" in layer:
            bias = relative_bias(layer.need("attn_rel_b.weight"), run.positions, len(ids), both.farthest, causal=False)
        normed = run.norm(layer, "attn_norm", x)
        seen = _heads(run, layer, "attn_k", normed), _heads(run, layer, "attn_v", normed)
        x = _attended(run, layer, "attn", normed, seen, bias, causal=False) + x
        x = run.finite(layer.prefix, _fed_forward(run, both, layer, run.norm(layer, "ffn_norm", x)) + x)
    x = run.norm(model.whole, "enc.output_norm", x)
    names = "cross_attn_k", "cross_attn_v"
    return tuple((_heads(run, layer, names[0], x), _heads(run, layer, names[1], x)) for layer in both.decoder)


def decode(run: Pass, both: Sides, x: Floats) -> Floats:
    """Through the decoder's layers: float32 (tokens, width). Raises ModelError where no text was encoded."""
    if run.cache is None or not run.cache.context or run.texts > 1:
        raise ModelError("this model has an encoder: its decoder runs a single text, from the cache `encode` returns")
    total, bias = int(run.positions[-1]) + 1, None
    for index, layer in enumerate(both.decoder):
        if "attn_rel_b.weight" in layer:
            bias = relative_bias(layer.need("attn_rel_b.weight"), run.positions, total, both.farthest, causal=True)
        normed = run.norm(layer, "attn_norm", x)
        seen = run.cache.append(index, _heads(run, layer, "attn_k", normed), _heads(run, layer, "attn_v", normed))
        x = _attended(run, layer, "attn", normed, seen, bias, causal=True) + x
        normed = run.norm(layer, "cross_attn_norm", x)
        x = _attended(run, layer, "cross_attn", normed, run.cache.context[index], None, causal=False) + x
        x = run.finite(layer.prefix, _fed_forward(run, both, layer, run.norm(layer, "ffn_norm", x)) + x)
    return x


def relative_bias(
    weight: Tensor, positions: NDArray[np.int64], keys: int, farthest: int, *, causal: bool
) -> Floats:
    """What is added to the score of each head, query and key: float32 (heads, queries, keys).

    weight: (buckets, heads). Near distances have a bucket each, farther ones share buckets that grow with the
    logarithm; without causal, keys after the query have the upper half of them.
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


def _heads(run: Pass, layer: Layer, name: str, x: Floats) -> Floats:
    return run.project(layer, name, x).reshape(len(x), run.model.hyper.layers[0].heads, -1)


def _attended(
    run: Pass, layer: Layer, part: str, x: Floats, seen: tuple[Floats, Floats], bias: Floats | None, *, causal: bool
) -> Floats:
    q = _heads(run, layer, f"{part}_q", x)
    mixed = attend(q, *seen, q_positions=run.positions, scale=1.0, causal=causal, bias=bias)
    return run.project(layer, f"{part}_o", mixed)


def _fed_forward(run: Pass, both: Sides, layer: Layer, x: Floats) -> Floats:
    up, (plain, with_gate) = run.project(layer, "ffn_up", x), both.activations
    if "ffn_gate.weight" not in layer:
        return run.project(layer, "ffn_down", ops.activated(plain, up))
    gate = run.project(layer, "ffn_gate", x)
    return run.project(layer, "ffn_down", ops.gated(with_gate, gate, up, run.model.hyper.activation_limit))
