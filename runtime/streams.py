"""Models with several streams of hidden states (see `graph.streams`): one after the other in a token's row."""

import numpy as np

from . import ops
from .arrays import Floats
from .layer import Layer, Pass

MIXED = "hc_attn_fn.weight"  # of a layer that mixes them
LAST = "output_hc"  # what reads them behind the last layer


def has_streams(forward: Pass) -> bool:
    return forward.keys.get("hyper_connection.count") is not None


def mean(forward: Pass, x: Floats) -> Floats:
    """Of the streams x, (tokens, width): what drafts read of a layer's input (DeepSeek V4's, by llama.cpp's graph)."""
    return np.asarray(x.reshape(len(x), -1, forward.hyper.width).mean(axis=1), np.float32)


def stream_norm(forward: Pass, layer: Layer, name: str, x: Floats) -> Floats:
    """The norm of each stream by itself, with a weight for each value of all of them."""
    each = ops.rms_norm(x.reshape(len(x), -1, forward.hyper.width), None, forward.hyper.eps, forward.threads)
    normed = each.reshape(x.shape)
    return np.multiply(normed, layer.need_array(name), out=normed)
