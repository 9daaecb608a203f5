"""Inputs of layers: token embeddings, learned positions, and per-layer inputs (Gemma 3n, 4).

Source of the last: transformers `models/gemma4/modeling_gemma4.py`.
"""

import numpy as np

from quants.errors import ModelError

from . import ops
from .arrays import Floats, Ids
from .layer import ForwardContext, Layer
from .ngrams import look_up
from .products.matmul import gather
from .switch import substitute


def embed(forward: ForwardContext, ids: Ids) -> Floats:
    """Return token (and position) embeddings of ids (tokens,), or the images' embeddings in their place: float32
    (tokens, width).

    Raises ModelError past the last position that has an embedding.
    """
    tensors, scale = forward.global_tensors, forward.hparams.embedding_scale
    ids = substitute(forward, ids)
    x = gather(tensors.need("token_embd.weight"), ids)
    if scale != 1:
        x *= np.float32(scale)
    if forward.block.normed_embedding:
        x = ops.rms_norm(x, None, forward.hparams.eps, forward.threads)
    if forward.images:
        ids = ids.copy()
    for image in forward.images:
        x[image.start : image.stop] = image.embeddings[:, : x.shape[1]]
        if forward.block.scaled_images:
            x[image.start : image.stop] *= np.float32(scale)
        ids[image.start : image.stop] = forward.keys.metadata.get("tokenizer.ggml.padding_token_id", 0)
    forward.embedded = x if forward.block.embedding_skip else None
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
    if types is not None and forward.keys.get("decision.type") is None:  # else of questions, in the head
        x += types.reshape(-1, x.shape[1])[0]
    last = forward.block.output_norm == "token_embd_norm"  # which comes after the layers then
    return x if last else forward.norm_if_there(tensors, "token_embd_norm", x)


def layer_inputs(forward: ForwardContext, ids: Ids, x: Floats) -> Floats | None:
    """Return each layer's own input of each token: float32 (tokens, layers, width), or n-gram embeddings for one layer;
    None in other models. x: the token embedding.
    """
    tensors = forward.global_tensors
    if "per_layer_token_embd.weight" not in tensors:
        return None
    if forward.keys.get("ple.layers") is not None:
        return look_up(forward, ids)
    own = gather(tensors.need("per_layer_token_embd.weight"), ids).reshape(len(ids), len(forward.network.layers), -1)
    own *= np.float32(own.shape[2] ** 0.5)
    made = forward.project(tensors, "per_layer_model_proj", x)
    made *= np.float32(x.shape[1] ** -0.5)
    own += forward.norm(tensors, "per_layer_proj_norm", made.reshape(own.shape))
    own *= np.float32(2**-0.5)
    return own


def layer_input(forward: ForwardContext, layer: Layer) -> Floats:
    """Return the layer's own embeddings of tokens: float32 (tokens, width). Raises ModelError if it has none."""
    if forward.layer_inputs is None:
        raise ModelError(f"the file has no tensor 'per_layer_token_embd.weight', which '{layer.prefix}inp_gate' needs")
    return np.ascontiguousarray(forward.layer_inputs[:, layer.index])
