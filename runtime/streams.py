"""Models with several streams of hidden states (see `graph.streams`), concatenated in a token's row."""

import numpy as np

from . import ops
from .arrays import Floats
from .layer import ForwardContext, Layer

MIXED = "hc_attn_fn.weight"  # of a layer that mixes them
LAST = "output_hc"  # the mix of streams after the last layer


def has_streams(forward: ForwardContext) -> bool:
    return forward.keys.get("hyper_connection.count") is not None


def mean(forward: ForwardContext, x: Floats) -> Floats:
    """Return the mean of the streams x, (tokens, width): the layer input that a draft model reads (DeepSeek V4, by
    llama.cpp's graph).
    """
    return np.asarray(x.reshape(len(x), -1, forward.hparams.width).mean(axis=1), np.float32)


def stream_norm(forward: ForwardContext, layer: Layer, name: str, x: Floats) -> Floats:
    """Return the norm of each stream separately, with a weight for each value of all of them."""
    each = ops.rms_norm(x.reshape(len(x), -1, forward.hparams.width), None, forward.hparams.eps, forward.threads)
    normed = each.reshape(x.shape)
    return np.multiply(normed, layer.need_array(name), out=normed)
