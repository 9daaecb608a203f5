"""Conformers: layers of two half nets with attention and a convolution over frames between them, Granite Speech's and
FastConformer's (LFM2-Audio); and the querying transformer (BLIP-2's) after the first. Sources: transformers
`models/{granite_speech,granite_speech_plus,blip_2,parakeet}/modeling_*.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .. import ops
from ..arrays import Floats
from ..mixers.attention import AttentionOptions, attend
from .layers import Weights
from .queries import READER_EPS, reading

HALF = np.float32(0.5)


@dataclass(frozen=True)
class Conformer:
    """The layers. attention: a function of a layer's name and normed inputs (frames, width)."""

    eps: float
    attention: Callable[[Weights, str, Floats], Floats]

    def layer(self, weights: Weights, at: str, x: Floats) -> Floats:
        x = x + HALF * self._net(weights, at, "", x)
        x = x + self.attention(weights, at, weights.norm(f"{at}ln1", x, self.eps, "layer"))
        x = x + self._convolved(weights, at, weights.norm(f"{at}norm_conv", x, self.eps, "layer"))
        x = x + HALF * self._net(weights, at, "_1", x)
        return weights.norm(f"{at}ln2", x, self.eps, "layer")

    def _net(self, weights: Weights, at: str, which: str, x: Floats) -> Floats:
        up = weights.project(f"{at}ffn_up{which}", weights.norm(f"{at}ffn_norm{which}", x, self.eps, "layer"))
        return weights.project(f"{at}ffn_down{which}", ops.activated("silu", up, weights.threads))

    def _convolved(self, weights: Weights, at: str, x: Floats) -> Floats:
        up, gate = np.split(weights.project(f"{at}conv_pw1", x), 2, axis=1)
        x = up * ops.sigmoid(np.ascontiguousarray(gate), threads=weights.threads)
        x = along_time(x, weights.values(f"{at}conv_dw.weight"))
        bias = weights.vector(f"{at}conv_dw.bias")
        x = x if bias is None else x + bias
        x = x * weights.values(f"{at}conv_norm.weight") + weights.values(f"{at}conv_norm.bias")
        return weights.project(f"{at}conv_pw2", ops.activated("silu", x, weights.threads))


@dataclass(frozen=True)
class InBlocks:
    """Granite Speech's attention. block: frames that attend to each other. max_distance: the farthest distance with an
    embedding.
    """

    heads: int
    block: int
    max_distance: int

    def __call__(self, weights: Weights, at: str, x: Floats) -> Floats:
        q, k, v = (weights.project(f"{at}attn_{name}", x).reshape(len(x), self.heads, -1) for name in "qkv")
        table, scale = weights.values(f"{at}attn_rel_pos_emb"), q.shape[2] ** -0.5
        out = np.empty((len(x), self.heads * v.shape[2]), np.float32)
        for start in range(0, len(x), self.block):
            own = slice(start, min(start + self.block, len(x)))
            count = own.stop - start
            near = table[
                None, self.max_distance - count + 1 : self.max_distance + count
            ]  # of distances from 1 - count to count - 1
            options = AttentionOptions(causal=False, bias=by_distance(q[own], near) * np.float32(scale))
            out[own] = attend(q[own], k[own], v[own], np.arange(count), scale, options, threads=weights.threads)
        return weights.project(f"{at}attn_out", out)


@dataclass(frozen=True)
class WithBiases:
    """FastConformer's attention, after Transformer-XL: sinusoids of distances through a matrix of the layer's, and
    biases of queries.
    """

    heads: int

    def __call__(self, weights: Weights, at: str, x: Floats) -> Floats:
        q, k, v = (weights.project(f"{at}attn_{name}", x).reshape(len(x), self.heads, -1) for name in "qkv")
        scale = q.shape[2] ** -0.5
        table = weights.project(f"{at}linear_pos", waves(len(x), x.shape[1]))
        table = table.reshape(len(table), self.heads, -1).transpose(1, 0, 2)
        content, place = (q + weights.values(f"{at}pos_bias_{which}").reshape(self.heads, -1) for which in "uv")
        options = AttentionOptions(causal=False, bias=by_distance(place, table) * np.float32(scale))
        mixed = attend(content, k, v, np.arange(len(x)), scale, options, threads=weights.threads)
        return weights.project(f"{at}attn_out", mixed)


def waves(count: int, width: int) -> Floats:
    """Return alternating sines and cosines of growing wavelengths: float32 (2 * count - 1, width), of distances from 1
    - count to count - 1.
    """
    rates = 10_000.0 ** -(np.arange(0, width, 2) / width)
    angles = np.outer(np.arange(1 - count, count), rates)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(len(angles), -1).astype(np.float32)


def by_distance(q: Floats, table: Floats) -> Floats:
    """Return the scores of queries (n, heads, width) by each key's distance, float32 (heads, n, n).

    table: float32 (heads or 1, 2 * n - 1, width), of distances from 1 - n to n - 1, query minus key.
    """
    scores = q.transpose(1, 0, 2) @ table.transpose(0, 2, 1)
    at = np.arange(len(q))
    distance = at[:, None] - at + len(q) - 1
    return np.ascontiguousarray(np.take_along_axis(scores, distance[None], axis=2))


def subsampled(weights: Weights, features: Floats) -> Floats:
    """Return FastConformer's subsampling of features (mels, frames): float32 (frames / 8, width). Convolutions over
    squares in steps of two, the second and third depthwise, with a matrix over channels after each.
    """
    x = features.T[None]  # (channels, frames, mels)
    for i in (0, 2, 5):
        kernel = weights.values(f"a.conv1d.{i}.weight").reshape(-1, 9)
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
        around = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::2, ::2]
        flat = around.reshape(*around.shape[:3], 9)
        x = np.einsum("ctfk,ck->ctf", np.broadcast_to(flat, (len(kernel), *flat.shape[1:])), kernel, optimize=True)
        x = x + weights.values(f"a.conv1d.{i}.bias").reshape(-1, 1, 1)
        if i:
            matrix = weights.values(f"a.conv1d.{i + 1}.weight").reshape(len(kernel), -1)
            x = np.tensordot(matrix, x, axes=1) + weights.values(f"a.conv1d.{i + 1}.bias").reshape(-1, 1, 1)
        x = np.maximum(x, 0)
    flat = np.ascontiguousarray(x.transpose(1, 0, 2), np.float32).reshape(x.shape[1], -1)
    return weights.project("a.pre_encode.out", flat)


def along_time(x: Floats, kernel: Floats) -> Floats:
    """Return a depthwise convolution over frames (n, channels). kernel: float32 (channels, taps)."""
    taps = kernel.shape[1]
    padded = np.pad(x, ((taps // 2, taps // 2 - (taps + 1) % 2), (0, 0)))
    out = np.zeros_like(x)
    for tap in range(taps):
        out += padded[tap : tap + len(x)] * kernel[:, tap]
    return out


@dataclass(frozen=True)
class Reader:
    """Learned queries that read windows of `window` frames: each window gives as many tokens as there are queries."""

    heads: int
    window: int

    def run(self, weights: Weights, x: Floats) -> Floats:
        """Return the queries' output, float32 (tokens, width of the text model). The last window is padded with
        zeros.
        """
        windows = -(-len(x) // self.window)
        x = np.pad(x, ((0, windows * self.window - len(x)), (0, 0)))
        queries = weights.values("a.proj_query").reshape(-1, weights.values("a.proj_query").shape[-1])
        read = np.tile(weights.norm("a.proj_norm", queries, READER_EPS, "layer"), (windows, 1))
        layer = 0
        while f"a.proj_blk.{layer}.self_attn_q.weight" in weights.tensors:
            at = f"a.proj_blk.{layer}."
            read = reading(weights, at, read, x, windows, self.heads)
            layer += 1
        return weights.project("a.proj_linear", read)
