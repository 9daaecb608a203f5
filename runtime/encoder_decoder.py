"""Encoder-decoder models (T5): one text is read as a whole, another is continued while looking at the first.

Source: transformers `models/t5/modeling_t5.py`. Scores are not scaled; a learned number for each distance is added
to them, usually the first layer's in all layers. What a decoder looks at (`KVCache.context`) is computed once a text.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from archs.file_keys import Keys
from archs.spec import ACTIVATIONS, Activation
from quants import Tensor
from quants.errors import ModelError

from . import ops
from .arrays import Floats, Ids
from .attention import attend
from .embedding import embed
from .layer import Layer, Pass

Context = tuple[tuple[Floats, Floats], ...]


@dataclass(frozen=True)
class EncoderDecoder:
    """The layers of both sides. farthest: distances from here on share a bucket of relative positions.

    activations: of feed-forward nets without a gate, and with one.
    """

    encoder: tuple[Layer, ...]
    decoder: tuple[Layer, ...]
    farthest: int
    activations: tuple[Activation, Activation]


def encoder_decoder(keys: Keys, layers: Mapping[str, Layer]) -> EncoderDecoder | None:
    """Both sides of a model whose file has them, or None. layers: by prefix."""
    if "dec.output_norm.weight" not in layers[""]:
        return None
    return _both(keys, layers, int(keys.need("decoder_block_count")))


def encoder_alone(keys: Keys, layers: Mapping[str, Layer]) -> EncoderDecoder | None:
    """The encoder of a model whose file has no other side, or None."""
    alone = "enc.blk.0." in layers and "dec.output_norm.weight" not in layers[""]
    return _both(keys, layers, 0) if alone else None


def _both(keys: Keys, layers: Mapping[str, Layer], decoding: int) -> EncoderDecoder:
    count, said = int(keys.need("block_count")), keys.get("hidden_activation")
    return EncoderDecoder(
        encoder=tuple(layers[f"enc.blk.{i}."] for i in range(count)),
        decoder=tuple(layers[f"dec.blk.{i}."] for i in range(decoding)),
        farthest=int(keys.get("attention.relative_max_distance")),
        activations=(ACTIVATIONS[said], ACTIVATIONS[said]) if said else ("relu", "gelu_tanh"),
    )


def encode(forward: Pass, both: EncoderDecoder, ids: Ids) -> Context:
    """Read a text: for each layer of the decoder the keys and values that it will look at, (tokens, heads, width)."""
    x = read(forward, both, ids)
    k, v = "cross_attn_k", "cross_attn_v"
    return tuple((_heads(forward, layer, k, x), _heads(forward, layer, v, x)) for layer in both.decoder)


def read(forward: Pass, both: EncoderDecoder, ids: Ids) -> Floats:
    """The encoder's last hidden states of a text: float32 (tokens, width)."""
    x = _through(forward, both, both.encoder, embed(forward, ids), causal=False)
    return forward.norm(forward.global_tensors, "enc.output_norm", x)


def decode(forward: Pass, both: EncoderDecoder, x: Floats) -> Floats:
    """Through the decoder's layers: float32 (tokens, width). Raises ModelError where no text was encoded."""
    if forward.cache is None or not forward.cache.context or forward.texts > 1:
        raise ModelError("this model has an encoder: its decoder runs a single text, from the cache `encode` returns")
    return _through(forward, both, both.decoder, x, causal=True)


def _through(forward: Pass, both: EncoderDecoder, layers: tuple[Layer, ...], x: Floats, *, causal: bool) -> Floats:
    """Through the layers of one side; that with a cache looks at what was encoded, too."""
    cache, bias = forward.cache, None
    for index, layer in enumerate(layers):
        if "attn_rel_b.weight" in layer:
            weight, keys = layer.need("attn_rel_b.weight"), int(forward.positions[-1]) + 1
            bias = relative_bias(weight, forward.positions, keys, both.farthest, causal=causal)
        normed = forward.norm(layer, "attn_norm", x)
        seen = _heads(forward, layer, "attn_k", normed), _heads(forward, layer, "attn_v", normed)
        if cache is not None:
            seen = cache.append(index, *seen)
        x = _attended(forward, layer, "attn", normed, seen, bias, causal=causal) + x
        if cache is not None:
            normed = forward.norm(layer, "cross_attn_norm", x)
            x = _attended(forward, layer, "cross_attn", normed, cache.context[index], None, causal=False) + x
        x = forward.finite(layer.prefix, _fed_forward(forward, both, layer, forward.norm(layer, "ffn_norm", x)) + x)
    return x


def relative_bias(weight: Tensor, positions: Ids, keys: int, farthest: int, *, causal: bool) -> Floats:
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


def _heads(forward: Pass, layer: Layer, name: str, x: Floats) -> Floats:
    return forward.project(layer, name, x).reshape(len(x), forward.hyper.layers[0].heads, -1)


def _attended(
    forward: Pass, layer: Layer, part: str, x: Floats, seen: tuple[Floats, Floats], bias: Floats | None, *, causal: bool
) -> Floats:
    q, at = _heads(forward, layer, f"{part}_q", x), forward.positions
    mixed = attend(q, *seen, q_positions=at, scale=1.0, causal=causal, bias=bias, threads=forward.threads)
    return forward.project(layer, f"{part}_o", mixed)


def _fed_forward(forward: Pass, both: EncoderDecoder, layer: Layer, x: Floats) -> Floats:
    hidden, (plain, with_gate) = forward.project(layer, "ffn_up", x), both.activations
    if "ffn_gate.weight" in layer:
        gate = forward.project(layer, "ffn_gate", x)
        hidden = ops.gated(with_gate, gate, hidden, forward.hyper.activation_limit, forward.threads)
    else:
        hidden = ops.activated(plain, hidden, forward.threads)
    return forward.project(layer, "ffn_down", hidden)
