"""Inputs that each layer gets apart from what the last one gave (Gemma 3n, 4): of the token, and of its embedding.

Source: transformers `models/gemma4/modeling_gemma4.py`.
"""

from __future__ import annotations

import numpy as np

from quants.errors import ModelError

from . import ops
from .arrays import Floats, Ids
from .layer import Layer, Pass
from .matmul import gather


def layer_inputs(forward: Pass, ids: Ids, x: Floats) -> Floats | None:
    """What each layer gets of each token: float32 (tokens, layers, width); None in other models. x: its embedding."""
    tensors = forward.global_tensors
    if "per_layer_token_embd.weight" not in tensors:
        return None
    own = gather(tensors.need("per_layer_token_embd.weight"), ids).reshape(len(ids), len(forward.network.layers), -1)
    own *= np.float32(own.shape[2] ** 0.5)
    made = forward.project(tensors, "per_layer_model_proj", x)
    made *= np.float32(x.shape[1] ** -0.5)
    both: Floats = own + forward.norm(tensors, "per_layer_proj_norm", made.reshape(own.shape))
    both *= np.float32(2**-0.5)
    return both


def layer_input(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """What the layer's own input gives, gated by x: float32 (tokens, width). Raises ModelError where it has none."""
    if forward.layer_inputs is None:
        raise ModelError(f"the file has no tensor 'per_layer_token_embd.weight', which '{layer.prefix}inp_gate' needs")
    gate = ops.activated(forward.hyper.activation, forward.project(layer, "inp_gate", x), forward.threads)
    gate *= forward.layer_inputs[:, layer.index]
    return forward.norm(layer, "post_norm", forward.project(layer, "proj", gate))
