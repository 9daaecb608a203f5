"""Heads of decision models on each token's state: scores, or the vectors for scores.

Laya and Julia: three scores for each token, one for each question type (choice, score, noul), which are read where
options begin. Layers of their own attend to the whole text, once for each type. Kev: a query and a key for each token,
whose products are the scores of options. Source: llama.cpp's graphs.
"""

import numpy as np

from archs.layered import by_layer

from .. import ops
from ..arrays import Floats
from ..layer import ForwardContext, Layer
from ..mixers.attention import BIDIRECTIONAL, attend
from ..model import RunningModel
from ..products.matmul import matmul


def has_option_scores(model: RunningModel) -> bool:
    """Return whether the file has such a head."""
    return model.network.keys.get("decision.type") in ("laya", "kev")


def option_scores(model: RunningModel, states: Floats) -> Floats:
    """Return states (texts, n, width) → (texts, n, scores): 3 of Laya, the widths of a query and a key of Kev."""
    if model.network.keys.get("decision.type") == "kev":
        return linear(model, "cls.output", states.reshape(-1, states.shape[-1])).reshape(*states.shape[:2], -1)
    types, parts = model.network.global_tensors.need_array("token_types.weight"), list[Floats]()
    forward, layers = model.new_pass(*states.shape[:2]), head_layers(model)
    for row in types:
        x = states.reshape(-1, states.shape[-1]) + row
        for layer in layers:
            x = _through(forward, layer, x)
        x = forward.norm(forward.global_tensors, "cls.norm", x)
        x = ops.activated("gelu", linear(model, "cls", x), model.threads)
        parts.append(linear(model, "cls.output", x))
    return np.concatenate(parts, axis=1).reshape(*states.shape[:2], -1)


def head_layers(model: RunningModel) -> list[Layer]:
    """Return the layers of the head, which come after the encoder's."""
    grouped, first = by_layer(model.tensors), len(model.network.layers)
    count = int(model.network.keys.need("decision.block_count"))
    return [Layer(f"blk.{i}.", grouped.get(f"blk.{i}.", {})) for i in range(first, first + count)]


def _through(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """Return one layer's output: attention to the whole text without rotation, and a net with ReLU, each followed by a
    norm.
    """
    own = forward.hparams.layers[-1]
    fused = forward.project(layer, "attn_qkv", forward.norm(layer, "attn_norm", x))
    q, k, v = (np.ascontiguousarray(part).reshape(len(x), own.heads, -1) for part in np.split(fused, 3, axis=1))
    mixed = attend(
        q, k, v, forward.positions, q.shape[2] ** -0.5, BIDIRECTIONAL, sequences=forward.texts, threads=forward.threads
    )
    x = x + forward.project(layer, "attn_output", mixed)
    hidden = forward.project(layer, "ffn_up", forward.norm(layer, "ffn_norm", x))
    return x + forward.project(layer, "ffn_down", np.maximum(hidden, np.float32(0)))


def linear(model: RunningModel, name: str, x: Floats) -> Floats:
    """Return x (n, width) times a matrix outside of the layers, plus its bias."""
    tensors = model.network.global_tensors
    weight, bias = tensors.need(f"{name}.weight"), tensors.array(f"{name}.bias")
    product = matmul(np.ascontiguousarray(x), weight, threads=model.threads, precision=model.precision)
    return product if bias is None else product + bias
