"""Gemma 3n's encoder for images, MobileNet V5: stages of convolutions and attention, whose last two outputs are mixed.

Sources: transformers `models/gemma3n/modeling_gemma3n.py`; timm `models/mobilenetv5.py`, `layers/attention2d.py`; Qin
et al. 2024, "MobileNetV4". Images are float32 (channels, rows, columns).
"""

import re

import numpy as np

from .. import ops
from ..arrays import Floats
from ..mixers.attention import BIDIRECTIONAL, attend
from .convolution import convolved
from .encoder import Parts, sampling
from .layers import Weights

EPS = 1e-6
TOKENS = 16  # a side


def gemma3n(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    stages = blocks(weights)
    done, count, kept = 0, sum(map(len, stages)), []
    x = _normed(weights, "v.conv_stem.bn", _same(weights, "v.conv_stem.conv", pixels, 2), "gelu_tanh")
    for stage, names in enumerate(stages):
        for i, at in enumerate(names):
            if encoder.progress is not None:
                encoder.progress(done * int(encoder.key("block_count")) // count, int(encoder.key("block_count")))
            x, done = _through(weights, at, x, 1 if i else 2), done + 1
        if stage >= len(stages) - 2:
            kept.append(x)
    x = _mixed(weights, kept).reshape(-1, TOKENS * TOKENS).T
    x = ops.rms_norm(np.ascontiguousarray(x) * np.float32(x.shape[1] ** 0.5), None, EPS, weights.threads)
    x = weights.project("mm.input_projection", x * weights.values("mm.soft_emb_norm.weight"))
    return ops.rms_norm(x, None, EPS, weights.threads)


def blocks(weights: Weights) -> list[list[str]]:
    """Return the prefixes of tensor names, of each stage's blocks in order."""
    matches = {match for name in weights.tensors if (match := re.match(r"v\.blk\.(\d+)\.(\d+)\.", name))}
    numbers = sorted({(int(each[1]), int(each[2])) for each in matches})
    return [[f"v.blk.{stage}.{i}." for own, i in numbers if own == stage] for stage in sorted({n for n, _ in numbers})]


def _through(weights: Weights, at: str, x: Floats, step: int) -> Floats:
    """Return one block's output; the input is added if the size stays."""
    if f"{at}conv_exp.weight" in weights.tensors:
        inner = _normed(weights, f"{at}bn1", _same(weights, f"{at}conv_exp", x, step), "gelu_tanh")
        out = _normed(weights, f"{at}bn2", convolved(weights, f"{at}conv_pwl", inner))
    elif f"{at}attn.query.proj.weight" in weights.tensors:
        out = _attention(weights, at, _normed(weights, f"{at}norm", x))
    else:
        out = _inverted(weights, at, x, step)
    scale = weights.vector(f"{at}layer_scale.gamma")
    out = out if scale is None else out * scale[:, None, None]
    return out + x if out.shape == x.shape else out


def _inverted(weights: Weights, at: str, x: Floats, step: int) -> Floats:
    """Return an inverted bottleneck: more channels between pointwise convolutions, with depthwise ones around the
    first.
    """
    middle = f"{at}dw_mid.conv.weight" in weights.tensors
    if f"{at}dw_start.conv.weight" in weights.tensors:
        x = _normed(weights, f"{at}dw_start.bn", _same(weights, f"{at}dw_start.conv", x, 1 if middle else step))
    x = _normed(weights, f"{at}pw_exp.bn", convolved(weights, f"{at}pw_exp.conv", x), "gelu_tanh")
    if middle:
        x = _normed(weights, f"{at}dw_mid.bn", _same(weights, f"{at}dw_mid.conv", x, step), "gelu_tanh")
    return _normed(weights, f"{at}pw_proj.bn", convolved(weights, f"{at}pw_proj.conv", x))


def _attention(weights: Weights, at: str, x: Floats) -> Floats:
    """Return attention whose heads share keys and values, which may be downsampled."""
    parts = {}
    for name in ("key", "value"):
        seen = x
        if f"{at}attn.{name}.down_conv.weight" in weights.tensors:
            seen = _normed(weights, f"{at}attn.{name}.norm", _same(weights, f"{at}attn.{name}.down_conv", x, 2))
        made = convolved(weights, f"{at}attn.{name}.proj", seen)
        parts[name] = np.ascontiguousarray(made.reshape(len(made), 1, -1).transpose(2, 1, 0))
    asked = convolved(weights, f"{at}attn.query.proj", x)
    width = parts["key"].shape[2]
    q = np.ascontiguousarray(asked.reshape(len(asked) // width, width, -1).transpose(2, 0, 1))
    mixed = attend(
        q, parts["key"], parts["value"], np.arange(len(q)), width**-0.5, BIDIRECTIONAL, threads=weights.threads
    )
    return convolved(weights, f"{at}attn.output.proj", np.ascontiguousarray(mixed.T).reshape(-1, *x.shape[1:]))


def _mixed(weights: Weights, kept: list[Floats]) -> Floats:
    """Return the stages' outputs resized to the first and combined: (channels, TOKENS, TOKENS)."""
    rows, columns = kept[0].shape[1:]
    near = []
    for each in kept:
        sides = zip((rows, columns), each.shape[1:], strict=True)
        row, column = (np.arange(count) * own // count for count, own in sides)
        near.append(each[:, row[:, None], column])
    x = _inverted(weights, "v.msfa.ffn.", np.concatenate(near), 1)
    if rows % TOKENS or columns % TOKENS:
        tall, wide = sampling(rows, TOKENS, "linear"), sampling(columns, TOKENS, "linear")
        x = np.einsum("tr,crk,wk->ctw", tall, x, wide, optimize=True)
    else:
        x = x.reshape(len(x), TOKENS, rows // TOKENS, TOKENS, columns // TOKENS).mean(axis=(2, 4))
    return _normed(weights, "v.msfa.norm", np.asarray(x, np.float32))


def _same(weights: Weights, name: str, x: Floats, step: int) -> Floats:
    """Return a convolution padded so that it gives one value for each `step`; an odd padding has more at the end."""
    sizes = weights.need(f"{name}.weight").shape[-2:]
    missing = [
        max(0, (-(-length // step) - 1) * step + size - length) for length, size in zip(x.shape[1:], sizes, strict=True)
    ]
    border = [(count // 2, count - count // 2) for count in missing]
    return convolved(weights, name, np.pad(x, ((0, 0), *border)), step=step)


def _normed(weights: Weights, name: str, x: Floats, activation: str | None = None) -> Floats:
    """Return the RMS norm of each place's channels, and an optional activation."""
    flat = np.ascontiguousarray(x.reshape(len(x), -1).T)
    flat = weights.norm(name, flat, EPS, "rms")
    flat = flat if activation is None else ops.activated(activation, flat, weights.threads)
    return np.ascontiguousarray(flat.T).reshape(x.shape)
