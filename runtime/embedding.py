"""What stands before the first layer: token embeddings, and positions where they are learned."""

from __future__ import annotations

import numpy as np

from quants.errors import ModelError

from .arrays import Floats, Ids
from .layer import Pass
from .matmul import gather
from .per_layer import layer_inputs


def embed(forward: Pass, ids: Ids) -> Floats:
    """Token (and position) embeddings of ids (tokens,): float32 (tokens, width).

    Raises ModelError past the last position that has an embedding.
    """
    tensors, block, scale = forward.global_tensors, forward.block, forward.hyper.embedding_scale
    x = gather(tensors.need("token_embd.weight"), ids)
    if scale != 1:
        x *= np.float32(scale)
    forward.layer_inputs = layer_inputs(forward, ids, x)
    if "token_embd_proj.weight" in tensors:
        x = forward.project(tensors, "token_embd_proj", x)
    if "position_embd.weight" in tensors:
        table = tensors.tensors["position_embd.weight"]
        if forward.positions[-1] >= table.shape[0]:
            raise ModelError(
                f"position {forward.positions[-1]} is past the {table.shape[0]} that the model has embeddings for"
            )
        x += np.tile(gather(table, forward.positions), (forward.texts, 1))
    types = tensors.array("token_types.weight")
    if types is not None:
        x += types[0]
    after_layers = block.output_norm == "token_embd_norm"
    return x if after_layers else forward.norm_if_there(tensors, "token_embd_norm", x)
