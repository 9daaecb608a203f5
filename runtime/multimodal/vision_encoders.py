"""Vision encoders for images of one size, and Pixtral's and Qwen2's for any; the parts besides their layers.

Sources: transformers `models/{gemma3,siglip,pixtral,mistral3,idefics3,internvl,llama4,qwen2_vl,qwen2_5_vl,
step3p7,radio,nemotron_h_omni}/modeling_*.py`; the code published with CogVLM.
"""

from collections.abc import Sequence

import numpy as np

from .. import ops
from ..arrays import Floats, Ids
from .convolution import convolved
from .encoder import ROPE_BASE, Parts, angles, in_halves, rotation, square_order, squares, turned
from .layers import Weights

PROJECTOR_EPS = 1e-5  # of Nemotron's norm after the layers
QWEN_WINDOW = 112  # pixels a side, see archs/multimodal/qwen_vl.py


def gemma3(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    vit = encoder.vit("gelu_tanh")
    x = vit.run(weights, encoder.positioned(encoder.patches(pixels)))
    x = weights.norm("v.post_ln", x, vit.eps, "layer")
    rows, columns = encoder.grid(pixels)
    side = int(encoder.key("projector.scale_factor"))
    x = x.reshape(rows // side, side, columns // side, side, -1).mean(axis=(1, 3)).reshape(-1, x.shape[1])
    x = weights.norm("mm.soft_emb_norm", x, 1e-6, "rms")
    product: Floats = x @ weights.values("mm.input_projection.weight")  # stored (in, out)
    return product


def pixtral(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    rows, columns = encoder.grid(pixels)
    eps = float(encoder.key("attention.layer_norm_epsilon"))
    x = weights.norm("v.pre_ln", encoder.patches(pixels), eps, "rms")
    width = x.shape[1] // encoder.heads
    row, column = np.divmod(np.arange(rows * columns), columns)
    frequencies = ROPE_BASE ** -(np.arange(0, width, 2, dtype=np.float64) / width)
    turns = np.concatenate([np.outer(row, frequencies[::2]), np.outer(column, frequencies[1::2])], axis=1)
    x = encoder.vit(encoder.activation, norm="rms", rotate=rotation(turns, "adjacent")).run(weights, x)
    x = weights.norm("mm.input_norm", x, 1e-5, "rms")
    if "mm.patch_merger.weight" in weights.tensors:
        # a square of patches as a convolution reads it: all patches' first value, then their second, …
        each = squares(x, rows, columns, int(encoder.key("spatial_merge_size")))
        x = weights.project("mm.patch_merger", each.transpose(0, 2, 1).reshape(len(each), -1))
    return weights.project("mm.2", ops.activated("gelu", weights.project("mm.1", x), weights.threads))


def idefics3(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    vit = encoder.vit("gelu_tanh")
    x = weights.norm("v.post_ln", vit.run(weights, encoder.positioned(encoder.patches(pixels))), vit.eps, "layer")
    each = squares(x, *encoder.grid(pixels), int(encoder.key("projector.scale_factor")))
    return weights.project("mm.model.fc", each.reshape(len(each), -1))


def llava(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    vit = encoder.vit(encoder.activation)
    x = weights.norm("v.pre_ln", encoder.positioned(with_class(weights, encoder.patches(pixels))), vit.eps, "layer")
    listed = encoder.key("feature_layer")
    outputs, done = [], 0
    for count in sorted({int(each) for each in (listed if hasattr(listed, "__len__") else [listed])}):
        x, done = vit.run(weights, x, first=done, stop=count), count
        outputs.append(x)
    x = weights.project("mm.0", np.concatenate(outputs, axis=1)[1:])
    return weights.project("mm.2", ops.activated("gelu", x, weights.threads))


def internvl(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    norm = "layer" if "v.blk.0.ln1.bias" in weights.tensors else "rms"  # of the model with 6 billion
    vit = encoder.vit(encoder.activation, norm=norm)
    x = vit.run(weights, encoder.positioned(with_class(weights, encoder.patches(pixels))))[1:]
    each = squares(x, *encoder.grid(pixels), int(encoder.key("projector.scale_factor")))
    x = weights.norm("mm.model.mlp.0", each.reshape(len(each), -1), 1e-5, "layer")
    return weights.project("mm.model.mlp.3", ops.activated("gelu", weights.project("mm.model.mlp.1", x)))


def cogvlm(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return embeddings with learned ones before and after those of the patches."""
    x = encoder.positioned(with_class(weights, encoder.patches(pixels)))
    x = weights.project("mm.model.fc", encoder.vit("gelu", post_norm=True).run(weights, x)[1:])
    x = ops.activated("gelu", weights.norm("mm.post_fc_norm", x, 1e-5, "layer"), weights.threads)
    x = weights.gated("silu", weights.project("mm.gate", x), weights.project("mm.up", x), None)
    begin, end = (weights.values(f"v.{name}").reshape(1, -1) for name in ("boi", "eoi"))
    return np.concatenate([begin, weights.project("mm.down", x), end])


def with_class(weights: Weights, x: Floats) -> Floats:
    return np.concatenate([weights.values("v.class_embd").reshape(1, -1), x])


def qwen(encoder: Parts, weights: Weights, pixels: Floats, norm: str) -> Floats:
    rows, columns = encoder.grid(pixels)
    order = square_order(rows, columns)
    row, column = np.divmod(order, columns)
    x = encoder.patches(pixels)[order]
    pattern, side = int(encoder.key("n_wa_pattern")), QWEN_WINDOW // encoder.patch_size
    number = row // side * (columns // side + 1) + column // side
    groups = [np.flatnonzero(number == each) for each in np.unique(number)] if pattern > 1 else []

    def windows(layer: int) -> Sequence[Ids] | None:
        return groups if pattern > 1 and (layer + 1) % pattern else None

    activation = "silu" if norm == "rms" else "gelu_quick"
    kv_heads = int(encoder.key("attention.head_count_kv"))
    turns = turned(order, columns, x.shape[1] // encoder.heads)
    vit = encoder.vit(activation, norm=norm, kv_heads=kv_heads, rotate=turns, windows=windows)
    x = weights.norm("v.post_ln", vit.run(weights, x), vit.eps, norm).reshape(-1, 4 * x.shape[1])
    return weights.project("mm.2", ops.activated("gelu", weights.project("mm.0", x), weights.threads))


def llama4(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    rows, columns = encoder.grid(pixels)
    x = np.concatenate([encoder.patches(pixels), weights.values("v.class_embd").reshape(1, -1)])
    by_row, by_column = angles(np.arange(rows * columns), columns, x.shape[1] // encoder.heads // 2, first=1)
    both = np.concatenate([by_column, by_row], axis=1)
    turns = rotation(np.pad(both, ((0, 1), (0, 0))), "adjacent")  # the class token does not rotate
    vit = encoder.vit("gelu", rotate=turns)
    x = vit.run(weights, weights.norm("v.pre_ln", encoder.positioned(x), vit.eps, "layer"))
    x = weights.norm("v.post_ln", x, vit.eps, "layer")[:-1]
    each = squares(x, rows, columns, int(encoder.key("projector.scale_factor")))
    x = ops.activated("gelu", weights.project("mm.model.mlp.1", each.reshape(len(each), -1)), weights.threads)
    x = ops.activated("gelu", weights.project("mm.model.mlp.2", x), weights.threads)
    return weights.project("mm.model.fc", x)


def janus(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    vit = encoder.vit(encoder.activation)
    x = weights.norm("v.post_ln", vit.run(weights, encoder.positioned(encoder.patches(pixels))), vit.eps, "layer")
    x = weights.project("mm.0", x)
    for i in range(1, sum(name.startswith("mm.") and name.endswith(".weight") for name in weights.tensors)):
        x = weights.project(f"mm.{i}", weights.activated(encoder.activation, x))
    return x


def step3(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return two convolutions in steps of two after the layers, of an image or a smaller part of one."""
    rows, columns = encoder.grid(pixels)
    x = encoder.patches(pixels) + encoder.stretched(rows, columns, "linear")
    row, column = np.divmod(np.arange(len(x)), columns)
    vit = encoder.vit("gelu_quick", rotate=in_halves(column, row, x.shape[1] // encoder.heads))
    x = vit.run(weights, weights.norm("v.pre_ln", x, vit.eps, "layer"))
    x = x.T.reshape(-1, rows, columns)
    for i in range(2):
        x = convolved(weights, f"mm.{i}", x, step=2, border=1)
    return weights.project("mm.model.fc", np.ascontiguousarray(x.reshape(len(x), -1).T))


def nemotron(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return embeddings of an encoder with several class tokens before the patches."""
    classes = weights.values("v.class_embd")
    classes = classes.reshape(-1, classes.shape[-1])
    x = np.concatenate([classes, encoder.positioned(encoder.patches(pixels))])
    x = encoder.vit("gelu").run(weights, x)[len(classes) :]
    x = squares(x, *encoder.grid(pixels), encoder.merged).reshape(-1, encoder.merged**2 * x.shape[1])
    x = weights.project("mm.model.mlp.1", weights.norm("mm.model.mlp.0", x, PROJECTOR_EPS, "rms"))
    return weights.project("mm.model.mlp.3", np.square(np.maximum(x, 0)))
