"""Vision encoders for images of any size with 2D rotation; the patches of a square are concatenated after the layers.

Sources: transformers `models/{kimi_k25,dots3_note,minimax_m3_vl,muse_glimmer,qwen3_vl}/modeling_*.py`; the code
published with Kimi-VL, dots.ocr, Ling 3 VL, Youtu-VL and MiMo V2.5.
"""

from collections.abc import Sequence

import numpy as np

from .. import ops
from ..arrays import Floats, Ids
from .encoder import Parts, angles, in_halves, rotation, square_order, squares, turned, turned_apart
from .layers import Weights

GLOBAL_PERIOD = 4  # of Muse Glimmer: the period of layers without windows, as is the last one

MUSE_EPS = 1e-5  # of its text model


def _joined(encoder: Parts, pixels: Floats, x: Floats) -> Floats:
    """Return squares of patches, (squares, patches of one * width)."""
    each: Floats = squares(x, *encoder.grid(pixels), encoder.merged)
    return each.reshape(len(each), -1)


def kimi(encoder: Parts, weights: Weights, pixels: Floats, alternating: bool) -> Floats:
    """Return embeddings. alternating: pairs rotate by columns and rows alternately, where others have all column pairs
    first.
    """
    rows, columns = encoder.grid(pixels)
    x = encoder.patches(pixels) + encoder.stretched(rows, columns, "cubic")
    by_row, by_column = angles(np.arange(len(x)), columns, x.shape[1] // encoder.heads // 2)
    turns = np.stack([by_column, by_row], axis=2) if alternating else np.concatenate([by_column, by_row], axis=1)
    vit = encoder.vit("gelu_tanh", rotate=rotation(turns.reshape(len(x), -1), "adjacent"))
    x = weights.norm("v.post_ln", vit.run(weights, x), vit.eps, "layer")
    x = weights.norm("mm.input_norm", x, vit.eps, "layer")
    return weights.net("mm.1", "mm.2", _joined(encoder, pixels, x))


def dots(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    eps = float(encoder.key("attention.layer_norm_epsilon"))
    x = weights.norm("v.pre_ln", encoder.patches(pixels), eps, "rms")
    turns = turned(np.arange(len(x)), encoder.grid(pixels)[1], x.shape[1] // encoder.heads)
    used = encoder.optional_key("expert_used_count") or 1
    x = encoder.vit("silu", norm="rms", rotate=turns, experts_used=used).run(weights, x)
    x = weights.norm("mm.input_norm", weights.norm("mm.post_norm", x, eps, "rms"), 1e-6, "layer")
    return weights.net("mm.0", "mm.2", _joined(encoder, pixels, x))


def ling3(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    rows, columns = encoder.grid(pixels)
    x = encoder.patches(pixels) + encoder.stretched(rows, columns, "corners")
    vit = encoder.vit("gelu_tanh", rotate=turned(np.arange(len(x)), columns, x.shape[1] // encoder.heads))
    x = weights.norm("mm.input_norm", vit.run(weights, x), vit.eps, "layer")
    return weights.net("mm.0", "mm.2", _joined(encoder, pixels, x))


def minimax(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return embeddings; a third of a head rotates by frames, of which an image has one; the remaining values do not
    rotate.
    """
    eps = float(encoder.key("attention.layer_norm_epsilon"))
    x = weights.norm("v.pre_ln", encoder.patches(pixels), eps, "layer")
    width = 2 * (x.shape[1] // encoder.heads // 3 // 2)
    by_row, by_column = angles(np.arange(len(x)), encoder.grid(pixels)[1], width)
    x = encoder.vit("gelu", rotate=turned_apart([(width, by_row), (2 * width, by_column)])).run(weights, x)
    x = _joined(encoder, pixels, weights.net("mm.1", "mm.2", x))
    return weights.net("mm.merger.fc1", "mm.merger.fc2", x)


def muse(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    rows, columns = encoder.grid(pixels)
    x = encoder.patches(pixels) + encoder.stretched(rows, columns, "zeros")
    row, column = np.divmod(np.arange(len(x)), columns)
    turns = in_halves(column + 1, row + 1, x.shape[1] // encoder.heads)
    side = round(len(weights.values("v.position_embd.weight")) ** 0.5)  # of a window
    groups = _windows(rows, columns, side)

    def windows(layer: int) -> Sequence[Ids] | None:
        return None if (layer + 1) % GLOBAL_PERIOD == 0 or layer == vit.count - 1 else groups

    vit = encoder.vit("gelu", rotate=turns, windows=windows)
    x = weights.norm("v.post_ln", vit.run(weights, weights.norm("v.pre_ln", x, vit.eps, "layer")), vit.eps, "layer")
    each = squares(x, rows, columns, encoder.merged).transpose(0, 2, 1)  # patches' first values, their second, …
    x = weights.net("mm.0", "mm.1", each.reshape(len(each), -1))
    x = weights.project("mm.2", ops.activated("gelu", x, weights.threads))
    return ops.rms_norm(x, None, MUSE_EPS, weights.threads)  # as the text model's embeddings


def _windows(rows: int, columns: int, side: int) -> list[Ids]:
    """Return numbers of patches by squares of `side`."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    window = row // side * columns + column // side
    return [np.flatnonzero(window == each) for each in np.unique(window)]


def youtu(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    rows, columns = encoder.grid(pixels)
    x = encoder.patches(pixels, colours_last=True)
    turns = turned(np.arange(len(x)), columns, x.shape[1] // encoder.heads)
    whole = {int(layer) for layer in encoder.key("wa_layer_indexes")}
    side = max(1, int(encoder.key("window_size")) // encoder.token_side)  # of a window, in squares that become a token
    groups = _windows(rows, columns, side * encoder.merged)
    activation = "silu" if encoder.activation == "silu" else "gelu_tanh"
    vit = encoder.vit(activation, rotate=turns, windows=lambda layer: None if layer in whole else groups)
    x = weights.norm("v.post_ln", vit.run(weights, x), vit.eps, "layer")
    x = weights.norm("mm.input_norm", x, 1e-6, "rms")
    return weights.net("mm.0", "mm.2", _joined(encoder, pixels, x))


def mimo(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return embeddings; in most layers patches attend to a window before and after, by rows of squares or columns,
    with a bias for the first one.
    """
    rows, columns = encoder.grid(pixels)
    x, kv_heads = encoder.patches(pixels), int(encoder.key("attention.head_count_kv"))
    width = weights.need("v.blk.0.attn_qkv.weight").shape[0] // (encoder.heads + 2 * kv_heads)
    by_rows = square_order(rows, columns)
    by_columns = by_rows.reshape(rows // 2, columns // 2, 4).transpose(1, 0, 2).reshape(-1)
    orders, modes = {0: [by_rows], 1: [by_columns]}, encoder.key("wa_pattern_mode")
    vit = encoder.vit(
        "silu",
        norm="rms",
        kv_heads=kv_heads,
        rotate=turned(np.arange(len(x)), columns, width),
        windows=lambda layer: orders.get(int(modes[layer])),
        reach=int(encoder.key("window_size")),
    )
    x = weights.norm("v.post_ln", vit.run(weights, x), 1e-6, "layer")
    return weights.net("mm.0", "mm.2", _joined(encoder, pixels, x))
