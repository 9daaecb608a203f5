"""Attention over residuals (Kimi K3): each part of a layer reads a weighted mean of stored residuals of earlier layers
and of the current hidden states.

Source: llama.cpp's graph of Kimi K3. The residuals come after the hidden states of each token: float32 (tokens, (1 +
residuals) * width).
"""

import numpy as np

from . import ops
from .arrays import Floats
from .layer import ForwardContext, Layer


def read(forward: ForwardContext, layer: Layer, name: str, x: Floats) -> Floats:
    """Return the mean of the hidden states and all stored residuals, by the scores that a weight gives them."""
    width = forward.hparams.width
    if x.shape[1] == width:
        return x
    each = x.reshape(len(x), -1, width)
    weight = layer.need_array(f"{name}.weight")
    scores = ops.rms_norm(each, None, forward.hparams.eps, forward.threads) @ weight
    shares = ops.softmax(scores)
    return np.asarray((shares[:, None] @ each)[:, 0], np.float32)


def left(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """Return x with the hidden states stored as a residual and zeros in front, if a block of layers begins here."""
    if layer.index % int(forward.keys.need("attn_res.block_size")):
        return x
    return np.concatenate((np.zeros((len(x), forward.hparams.width), np.float32), x), axis=1)


def added(forward: ForwardContext, x: Floats, part: Floats) -> Floats:
    """Return x with the output of a layer's part added to the hidden states."""
    width = forward.hparams.width
    return np.concatenate((x[:, :width] + part, x[:, width:]), axis=1)


def ended(forward: ForwardContext, x: Floats) -> Floats:
    """Return the head's input: float32 (tokens, width); x itself in other models."""
    last = forward.global_tensors
    return read(forward, last, "output_res_score", x) if "output_res_score.weight" in last else x
