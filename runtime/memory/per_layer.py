"""Build what Gemma 3n and Gemma 4 add to each layer: its own embeddings, and Gemma 3n's copies of the stream."""

from __future__ import annotations

from . import nodes
from .attention import attention
from .builder import Build
from .nodes import Node


def embeddings(b: Build, x: Node) -> Node:
    """Return the embeddings of all layers (width, tokens, layers)."""
    width, layers = b.model.number("embedding_length_per_layer_input"), b.model.count
    ids = b.input("per-layer tokens", "I32", b.tokens)
    rows = nodes.reshape(nodes.get_rows(b.need("per_layer_token_embd"), ids), width, layers, b.tokens)
    rows = nodes.scale(rows)
    b.graph.expand(rows)
    made = nodes.scale(nodes.mul_mat(b.need("per_layer_model_proj"), x))
    made = b.norm(nodes.reshape(made, width, layers, b.tokens), "per_layer_proj_norm")
    made = nodes.scale(nodes.add(made, rows))
    return nodes.cont(nodes.permute(made, 0, 2, 1, 3))


def part(x: Node) -> Node:
    """Return one layer's, or one copy's, part of a tensor (width, tokens)."""
    return nodes.view(x, x.shape[:2], (x.strides[1],))


def with_embeddings(b: Build, x: Node, own: Node, il: int) -> Node:
    """Add a layer's embeddings, gated by its output (Gemma 4)."""
    gate = nodes.unary(b.product("inp_gate", x, il))
    made = b.product("proj", nodes.mul(gate, part(own)), il)
    return nodes.add(x, b.norm(made, "post_norm", il))


def copies(b: Build, x: Node) -> Node:
    """Return the stream with its copies (width, tokens, copies)."""
    count, width = b.model.number("altup.num_inputs"), b.model.hparams.width
    wanted = _magnitude(x)
    added = nodes.mul_mat(b.need("altup_proj"), nodes.repeat(x, width, b.tokens, count - 1))
    size = _magnitude(added)
    return nodes.concat(x, nodes.same("div", nodes.mul(added, wanted), size), 2)


def _magnitude(x: Node) -> Node:
    return nodes.same("sqrt", nodes.sum_rows(nodes.same("sqr", x)))


def _modalities(b: Build, x: Node, il: int) -> Node:
    normed = nodes.scale(b.norm(x, "altup_router_norm", il))
    return nodes.unary(nodes.mul_mat(b.need("altup_router", il), normed))


def layer(b: Build, x: Node, own: Node, il: int) -> Node:
    """Return the output of a layer of Gemma 3n, all copies."""
    count, width, tokens = b.model.number("altup.num_inputs"), b.model.hparams.width, b.tokens
    coefficients = nodes.mul_mat(b.need("altup_predict_coef", il), _modalities(b, part(x), il))
    coefficients = nodes.reshape(coefficients, count, count, tokens)
    predictions = nodes.mul_mat(nodes.cont(nodes.permute(x, 1, 2, 0, 3)), coefficients)
    predictions = nodes.add(nodes.cont(nodes.permute(predictions, 0, 2, 1, 3)), x)
    active = part(predictions)
    normed = b.norm(active, "attn_norm", il)
    laurel = nodes.mul_mat(b.need("laurel_r", il), nodes.mul_mat(b.need("laurel_l", il), normed))
    laurel = nodes.add(b.norm(laurel, "laurel_post_norm", il), normed)
    made = b.norm(attention(b, normed, il), "post_attention_norm", il)
    made = nodes.scale(nodes.add(nodes.add(made, active), laurel))
    made = nodes.add(b.norm(_net(b, b.norm(made, "ffn_norm", il), il), "post_ffw_norm", il), made)
    corrected = _corrected(b, predictions, made, il)
    first = nodes.mul(part(corrected), b.need("altup_correct_scale", il))
    first = nodes.mul(nodes.unary(b.product("inp_gate", first, il)), part(own))
    first = b.norm(b.product("proj", first, il), "post_norm", il)
    rest = nodes.view(corrected, (width, tokens, count - 1), corrected.strides[1:3])
    return nodes.concat(part(corrected), nodes.add(rest, first), 2)


def _net(b: Build, x: Node, il: int) -> Node:
    up, gate = b.product("ffn_up", x, il), b.product("ffn_gate", x, il)
    if b.model.hparams.layers[il].sparsity is None:
        return b.product("ffn_down", nodes.mul(up, nodes.unary(gate)), il)
    mean = nodes.result("mean", "F32", (1, *gate.shape[1:]), gate)
    spread = nodes.sum_rows(nodes.same("sqr", nodes.same("sub", gate, mean)))
    spread = nodes.same("sqrt", nodes.scale(spread))
    gate = nodes.unary(nodes.same("sub", gate, nodes.add(mean, nodes.scale(spread))))
    return b.product("ffn_down", nodes.mul(up, nodes.unary(gate)), il)


def _corrected(b: Build, predictions: Node, activated_part: Node, il: int) -> Node:
    count, width, tokens = b.model.number("altup.num_inputs"), b.model.hparams.width, b.tokens
    modalities = _modalities(b, activated_part, il)
    innovation = nodes.same("sub", activated_part, part(predictions))
    coefficients = nodes.scale(nodes.mul_mat(b.need("altup_correct_coef", il), modalities))
    coefficients = nodes.cont(nodes.transpose(coefficients), 1, tokens, count)
    innovation = nodes.repeat(innovation, width, tokens, count)
    return nodes.add(nodes.mul(innovation, coefficients), predictions)


def joined(b: Build, x: Node) -> Node:
    """Return the mean of all copies, and of that the rows whose logits are wanted."""
    count, width, tokens = b.model.number("altup.num_inputs"), b.model.hparams.width, b.tokens
    wanted = _magnitude(part(x))
    others = nodes.view(x, (width, tokens, count - 1), x.strides[1:3])
    others = nodes.mul_mat(b.need("altup_unembd_proj"), others)
    size = _magnitude(others)
    others = nodes.same("div", nodes.mul(others, wanted), size)
    made = part(x)
    for _ in range(count - 1):
        made = nodes.add(made, part(others))
    (rows,) = b.last_rows(nodes.scale(made))
    return rows
