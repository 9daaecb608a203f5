"""Vision encoders for images of any size, with learned positions interpolated to it.

Sources: transformers `models/{qwen3_vl,glm4v,glm_ocr,glm5_next,hunyuan_vl,paddleocr_vl,siglip2,lfm2_vl,gemma4,
minicpmv4_6,gemma4_unified}/modeling_*.py`, and what Phi-4 Vision was published with.
"""

import numpy as np

from quants.errors import OptionError

from .. import ops
from ..arrays import Floats, Ids
from .encoder import Parts, angles, square_order, squares, turned, turned_apart
from .layers import Weights

GEMMA4_ROPE_BASE = 100.0
UNIFIED_EPS = 1e-5  # of Gemma 4's norms without layers


def qwen3(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return the embeddings, side by side with features of some layers for the first layers of the text model."""
    rows, columns = encoder.grid(pixels)
    order = square_order(rows, columns)
    x = (encoder.patches(pixels) + encoder.stretched(rows, columns, "corners"))[order]
    width = 4 * x.shape[1]
    deeper: list[Floats] = []

    def add_deeper(layer: int, x: Floats) -> None:
        at = f"v.deepstack.{layer}."
        if f"{at}fc1.weight" in weights.tensors:
            normed = weights.norm(f"{at}norm", x.reshape(-1, width), vit.eps, "layer")
            inner = ops.activated("gelu", weights.project(f"{at}fc1", normed), weights.threads)
            deeper.append(weights.project(f"{at}fc2", inner))

    turns = turned(order, columns, x.shape[1] // encoder.heads)
    vit = encoder.vit("gelu_tanh", rotate=turns, outputs=add_deeper)
    x = weights.norm("v.post_ln", vit.run(weights, x), vit.eps, "layer").reshape(-1, width)
    x = weights.project("mm.2", ops.activated("gelu", weights.project("mm.0", x), weights.threads))
    return np.concatenate([x, *deeper], axis=1) if deeper else x


def glm4v(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    rows, columns = encoder.grid(pixels)
    order = square_order(rows, columns)
    eps = float(encoder.key("attention.layer_norm_epsilon"))
    x = weights.norm("v.norm_embd", encoder.patches(pixels), eps, "rms")
    if "v.position_embd.weight" in weights.tensors:
        x = x + encoder.stretched(rows, columns, "cubic")
    turns = turned(order, columns, x.shape[1] // encoder.heads)
    limit = encoder.optional_key("swiglu_clamp") or None
    x = encoder.vit(encoder.activation, norm="rms", rotate=turns, limit=limit).run(weights, x[order])
    x = weights.norm("v.post_ln", x, eps, "rms").reshape(len(x) // 4, 4, -1)
    kernel, bias = weights.values("mm.patch_merger.weight"), weights.vector("mm.patch_merger.bias")
    x = x.transpose(0, 2, 1).reshape(len(x), -1) @ kernel.reshape(len(kernel), -1).T
    x = weights.project("mm.model.fc", x if bias is None else x + bias)
    x = ops.activated("gelu", weights.norm("mm.post_norm", x, 1e-5, "layer"), weights.threads)
    gate, up = weights.project("mm.gate", x), weights.project("mm.up", x)
    return weights.project("mm.down", weights.gated(encoder.activation, gate, up, limit))


def hunyuan(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return embeddings with learned ones after each row of squares, and before and after all."""
    rows, columns = encoder.grid(pixels)
    vit, side = encoder.vit("gelu"), encoder.merged
    x = vit.run(weights, encoder.patches(pixels) + encoder.stretched(rows, columns, "linear"))
    each = squares(weights.norm("mm.pre_norm", x, vit.eps, "rms"), rows, columns, side)
    for i, name in enumerate(("mm.0", "mm.2")):  # a convolution over squares, and one over its result
        kernel, bias = weights.values(f"{name}.weight"), weights.vector(f"{name}.bias")
        each = each.transpose(0, 2, 1) if i == 0 else ops.activated("gelu", each, weights.threads)
        each = each.reshape(len(each), -1) @ kernel.reshape(len(kernel), -1).T
        each = each if bias is None else each + bias
    lines = each.reshape(rows // side, columns // side, -1)
    ends = np.broadcast_to(weights.values("v.image_newline"), (len(lines), 1, lines.shape[2]))
    lines = np.concatenate([lines, ends], axis=1).reshape(-1, lines.shape[2])
    begin, end = (weights.values(f"mm.image_{name}").reshape(1, -1) for name in ("begin", "end"))
    x = np.concatenate([begin, weights.project("mm.model.fc", lines), end])
    return weights.norm("mm.post_norm", x, vit.eps, "rms")


def paddleocr(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    rows, columns = encoder.grid(pixels)
    x = encoder.patches(pixels) + encoder.stretched(rows, columns, "linear")
    turns = turned(np.arange(len(x)), columns, x.shape[1] // encoder.heads)
    return _side_by_side(encoder, weights, x, rows, columns, 1e-5, rotate=turns)


def lfm2(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    rows, columns = encoder.grid(pixels)
    x = encoder.patches(pixels) + encoder.stretched(rows, columns, "smooth")
    return _side_by_side(encoder, weights, x, rows, columns, 1e-5)


def _side_by_side(
    encoder: Parts, weights: Weights, x: Floats, rows: int, columns: int, eps: float, **more: object
) -> Floats:
    """Return SigLIP's layers; patches of a square are concatenated, and a net of two matrices brings them to the text's
    width.
    """
    vit = encoder.vit("gelu_tanh", **more)
    x = weights.norm("v.post_ln", vit.run(weights, x), vit.eps, "layer")
    merged = weights.vector("mm.input_norm.weight")
    if merged is not None and len(merged) == x.shape[1]:  # before they are concatenated
        x = weights.norm("mm.input_norm", x, eps, "layer")
    x = squares(x, rows, columns, encoder.merged).reshape(len(x) // encoder.merged**2, -1)
    if merged is not None and len(merged) == x.shape[1]:
        x = weights.norm("mm.input_norm", x, eps, "layer")
    return weights.project("mm.2", ops.activated("gelu", weights.project("mm.1", x), weights.threads))


def gemma4(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return embeddings; positions of columns and rows are added, and squares of patches are averaged."""
    rows, columns = encoder.grid(pixels)
    row, column = np.divmod(np.arange(rows * columns), columns)
    x = encoder.patches(2 * pixels - 1)
    x = x + by_axes(weights, row, column)
    half = x.shape[1] // encoder.heads // 2
    by_row, by_column = angles(np.arange(len(x)), columns, half, base=GEMMA4_ROPE_BASE)
    rotate = turned_apart([(0, by_column), (half, by_row)])
    vit = encoder.vit("gelu_tanh", norm="rms", rotate=rotate, scale=1.0, norm_values=True)
    x = vit.run(weights, x)
    x = squares(x, rows, columns, encoder.merged).mean(axis=1) * np.float32(x.shape[1] ** 0.5)
    bias, factor = weights.vector("v.std_bias"), weights.vector("v.std_scale")
    if bias is not None and factor is not None:
        x = (x - bias) * factor
    return weights.project("mm.input_projection", ops.rms_norm(x, None, vit.eps, weights.threads))


def by_axes(weights: Weights, row: Ids, column: Ids) -> Floats:
    """Return positions of columns and rows, added, for patches there. Raises OptionError if there are none."""
    table, (rows, columns) = weights.values("v.position_embd.weight"), (int(each.max()) + 1 for each in (row, column))
    if max(rows, columns) > table.shape[1]:
        raise OptionError(f"{rows} × {columns} patches; the encoder has positions for {table.shape[1]} a side")
    positions: Floats = table[0][column] + table[1][row]
    return positions


def minicpm(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return embeddings with nearest positions; between two layers the patches of a square attend to each other and are
    merged.
    """
    rows, columns = encoder.grid(pixels)
    x = encoder.patches(pixels) + encoder.nearest(rows, columns)
    vit, split = encoder.vit("gelu_tanh"), int(encoder.key("wa_layer_indexes")[0]) + 1
    x = vit.run(weights, x, stop=split)
    order, at = square_order(rows, columns), "v.vit_merger."
    normed = weights.norm(f"{at}ln1", x, vit.eps, "layer")[order]
    mixed = vit.attention(weights, at, normed, list(np.arange(len(x)).reshape(-1, 4)))
    x = (x[order] + weights.project(f"{at}attn_out", mixed)).reshape(len(x) // 4, -1)
    inner = weights.project(f"{at}ds_ffn_up", weights.norm(f"{at}ds_ln", x, vit.eps, "layer"))
    inner = weights.project(f"{at}ds_ffn_down", ops.activated("gelu_tanh", inner, weights.threads))
    x = vit.run(weights, x.reshape(len(x), 4, -1).mean(axis=1) + inner, first=split)
    each = squares(weights.norm("v.post_ln", x, vit.eps, "layer"), rows // 2, columns // 2, 2)
    x = weights.norm("mm.input_norm", each.reshape(len(each), -1), 1e-6, "layer")
    return weights.project("mm.down", ops.activated("gelu", weights.project("mm.up", x), weights.threads))


def gemma4_unified(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return embeddings without layers: norms around a matrix over the pixels of a token, and around positions of
    columns and rows, added.
    """
    side = encoder.token_side
    rows, columns = (length // side for length in pixels.shape[1:])
    row, column = np.divmod(np.arange(rows * columns), columns)
    x = pixels.reshape(3, rows, side, columns, side).transpose(1, 3, 0, 2, 4).reshape(rows * columns, -1)
    x = weights.norm("v.patch_norm.1", np.ascontiguousarray(x), UNIFIED_EPS, "layer")
    x = weights.norm("v.patch_norm.2", weights.project("v.patch_embd", x), UNIFIED_EPS, "layer")
    x = weights.norm("v.patch_norm.3", x + by_axes(weights, row, column), UNIFIED_EPS, "layer")
    eps = float(encoder.key("attention.layer_norm_epsilon"))
    return weights.project("mm.input_projection", ops.rms_norm(x, None, eps, weights.threads))


def phi4(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    rows, columns = encoder.grid(pixels)
    x = encoder.vit("gelu_tanh").run(weights, encoder.patches(pixels) + encoder.stretched(rows, columns, "smooth"))
    return weights.project("mm.2", ops.activated("gelu", weights.project("mm.0", x), weights.threads))


def deepseek4(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return embeddings of squares of patches, padded with zeros, in pairs of rows by columns; with learned ends of
    rows and images.

    Source: the code published with DeepSeek V4 Vision, as in llama.cpp (tools/mtmd, b11434).
    """
    rows, columns = encoder.grid(pixels)
    side = int(encoder.key("projector.scale_factor"))
    x = encoder.patches(pixels)
    turns = turned(np.arange(rows * columns), columns, x.shape[1] // encoder.heads)
    vit = encoder.vit("silu", norm="rms", rotate=turns)
    x = weights.norm("v.post_ln", vit.run(weights, x), vit.eps, "rms").reshape(rows, columns, -1)
    x = np.pad(x, ((0, -rows % side), (0, -columns % side), (0, 0)))
    high, wide = x.shape[0] // side, x.shape[1] // side
    each = squares(x.reshape(-1, x.shape[2]), side * high, side * wide, side).transpose(0, 2, 1)
    x = ops.activated("gelu", weights.project("mm.1", each.reshape(len(each), -1)), weights.threads)
    x = weights.project("mm.2", x).reshape(high, wide, -1)
    names = ("v.token_embd.img_start", "v.token_embd.img_end", "v.image_newline", "v.token_embd.img_pad")
    start, end, newline, pad = (weights.values(name).reshape(1, -1) for name in names)
    x = np.concatenate([x, np.broadcast_to(newline, (high, 1, x.shape[2]))], axis=1)
    x = np.concatenate([x, np.broadcast_to(pad, (high % 2, *x.shape[1:]))])
    pairs = x.reshape(len(x) // 2, 2, *x.shape[1:]).transpose(0, 2, 1, 3).reshape(-1, x.shape[2])
    return np.concatenate([start, pairs, *[pad] * (len(pairs) // 2 % 2 * 2), end])
