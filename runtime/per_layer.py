"""Inputs that each layer gets apart from what the last one gave (Gemma 3n, 4): of the token, and of its embedding.

Reference: transformers `models/gemma4/modeling_gemma4.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quants.errors import ModelError

from . import ops
from .matmul import gather

if TYPE_CHECKING:
    from .graph import Layer, Pass

Floats = NDArray[np.float32]


def layer_inputs(run: Pass, ids: NDArray[np.int64], x: Floats) -> Floats | None:
    """What each layer gets of each token: float32 (tokens, layers, width); None in other models. x: its embedding."""
    whole, count = run.model.whole, len(run.model.layers)
    if "per_layer_token_embd.weight" not in whole:
        return None
    own = gather(whole.need("per_layer_token_embd.weight"), ids).reshape(len(ids), count, -1)
    own *= np.float32(own.shape[2] ** 0.5)
    made = run.project(whole, "per_layer_model_proj", x)
    made *= np.float32(x.shape[1] ** -0.5)
    both: Floats = own + run.norm(whole, "per_layer_proj_norm", made.reshape(own.shape))
    both *= np.float32(2**-0.5)
    return both


def layer_input(run: Pass, index: int, layer: Layer, x: Floats) -> Floats:
    """What the layer's own input gives, gated by x: float32 (tokens, width). Raises ModelError where it has none."""
    if run.inputs is None:
        raise ModelError(f"the file has no tensor 'per_layer_token_embd.weight', which '{layer.prefix}inp_gate' needs")
    gate = ops.activated(run.model.hyper.activation, run.project(layer, "inp_gate", x))
    gate *= run.inputs[:, index]
    return run.norm(layer, "post_norm", run.project(layer, "proj", gate))
