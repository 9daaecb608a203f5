"""A sound's frames of codes by convolutions (WavTokenizer's decoder): units of a posnet, then ConvNeXt's blocks.

Source: llama.cpp b11434, `src/models/wavtokenizer-dec.cpp`; Vocos, whose blocks have the exact GELU.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from archs.file_keys import Keys

from . import ops
from .arrays import Floats, Ids
from .layer import Layer, Pass
from .matmul import gather


@dataclass(frozen=True)
class SoundOfCodes:
    """units, blocks: in the order in which they run. groups, epsilon: of group norms."""

    units: tuple[Layer, ...]
    blocks: tuple[Layer, ...]
    groups: int
    epsilon: float


def sound_of_codes(keys: Keys, layers: Mapping[str, Layer]) -> SoundOfCodes:
    """layers: by prefix."""

    def of(name: str) -> Iterator[Layer]:
        yield from (layers[f"{name}.{i}."] for i in range(int(keys.need(f"{name}.block_count"))))

    groups, epsilon = (keys.need(f"attention.group_norm_{name}") for name in ("groups", "epsilon"))
    return SoundOfCodes(tuple(of("posnet")), tuple(of("convnext")), int(groups), float(epsilon))


def spectra(forward: Pass, model: SoundOfCodes, codes: Ids) -> Floats:
    """What the last matrix makes of each code of a sound (frames,): float32 (frames, width)."""
    tensors = forward.global_tensors
    x = convolution(tensors, "conv1d", gather(tensors.need("token_embd.weight"), codes))
    for unit in model.units:
        x = forward.finite(unit.prefix, _unit(model, unit, x))
    x = forward.norm(tensors, "token_embd_norm", x)
    for block in model.blocks:
        x = forward.finite(block.prefix, x + _block(forward, block, x))
    return forward.project(tensors, "output", forward.norm(tensors, "output_norm", x))


def _unit(model: SoundOfCodes, unit: Layer, x: Floats) -> Floats:
    """Two convolutions that are added, or attention that is, or a norm alone."""
    if "conv1.weight" in unit:
        inner = x
        for i in (1, 2):
            inner = convolution(unit, f"conv{i}", ops.activated("silu", group_norm(model, unit, f"norm{i}", inner)))
        return x + inner
    normed = group_norm(model, unit, "attn_norm", x)
    if "attn_q.weight" not in unit:
        return normed
    q, k, v = (convolution(unit, f"attn_{name}", normed) for name in "qkv")
    return x + convolution(unit, "attn_output", ops.softmax(q @ k.T * np.float32(x.shape[1] ** -0.5)) @ v)


def _block(forward: Pass, block: Layer, x: Floats) -> Floats:
    """A convolution of each channel for itself, and a net."""
    kernel = block.need_array("dw.weight")
    taps = kernel.shape[-1]
    mixed: Floats = np.einsum("tkc,ck->tc", windows(x, taps), kernel.reshape(-1, taps), optimize=True)
    inner = forward.norm(block, "norm", mixed + block.need_array("dw.bias").reshape(-1))
    inner = ops.activated(forward.hyper.activation, forward.project(block, "pw1", inner), forward.threads)
    return forward.project(block, "pw2", inner) * block.need_array("gamma.weight")


def windows(x: Floats, taps: int) -> Floats:
    """Each frame of x (frames, channels) with those around it, and zeros past the ends: (frames, taps, channels)."""
    padded = np.pad(x, ((taps // 2, taps // 2), (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(padded, taps, axis=0)
    return np.ascontiguousarray(views.transpose(0, 2, 1))


def convolution(layer: Layer, name: str, x: Floats) -> Floats:
    """A convolution over frames, of a kernel (out, channels, taps): float32 (frames, out)."""
    kernel = layer.need_array(f"{name}.weight")
    flat = np.ascontiguousarray(kernel.transpose(0, 2, 1)).reshape(len(kernel), -1)
    product: Floats = windows(x, kernel.shape[-1]).reshape(len(x), -1) @ flat.T
    return product + layer.need_array(f"{name}.bias").reshape(-1)


def group_norm(model: SoundOfCodes, layer: Layer, name: str, x: Floats) -> Floats:
    """Groups of channels over all frames have mean 0 and deviation 1, before weights and biases."""
    grouped = x.reshape(len(x), model.groups, -1).astype(np.float64)
    centered = grouped - grouped.mean(axis=(0, 2), keepdims=True)
    normed = centered / np.sqrt((centered**2).mean(axis=(0, 2), keepdims=True) + model.epsilon)
    weight, bias = (layer.need_array(f"{name}.{kind}").reshape(-1) for kind in ("weight", "bias"))
    result: Floats = normed.reshape(x.shape).astype(np.float32) * weight + bias
    return result
