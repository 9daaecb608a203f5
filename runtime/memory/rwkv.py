"""Build the layers of RWKV 6 and 7, and of models converted to them (QRWKV, ARWKV)."""

from __future__ import annotations

from . import nodes
from .builder import Build
from .feed_forward import dense
from .nodes import Node
from .states import load


def layer(b: Build, x: Node, il: int) -> Node:
    """Return a layer's output."""
    width, each, count, last = b.model.hparams.width, b.each, b.sequences, il == b.model.count - 1
    kind = b.model.layers[il]
    mixes_channels = kind.net == "channel_mix"
    x = nodes.reshape(x, width, each, count)
    shifts = b.caches[il].shift // width
    shift = nodes.reshape(load(b, "r", il, b.caches[il].shift), width, shifts, count)
    before = nodes.view(shift, (width, 1, count), shift.strides[1:3]) if mixes_channels else shift
    normed = b.norm(x, "attn_norm", il)
    previous = nodes.concat(before, nodes.view(normed, (width, each - 1, count), normed.strides[1:3]), 1)
    mix = _time_mix6 if kind.mixer == "rwkv6" else _time_mix7
    made = mix(b, normed, previous, il)
    newest = nodes.view(normed, (width, 1, count), normed.strides[1:3])
    if not mixes_channels:
        _store_shift(b, newest, il)
        made = nodes.add(made, x)
        made = nodes.reshape(made, width, each * count)
        if last:
            (made,) = b.last_rows(made)
        return nodes.add(dense(b, b.norm(made, "ffn_norm", il), il), made)
    residual = nodes.add(made, x)
    second = b.norm(residual, "attn_norm_2", il)
    after = nodes.view(shift, (width, 1, count), shift.strides[1:3])
    previous = nodes.concat(after, nodes.view(second, (width, each - 1, count), second.strides[1:3]), 1)
    both = nodes.concat(newest, nodes.view(second, (width, 1, count), second.strides[1:3]), 1)
    _store_shift(b, both, il)
    residual, second, previous = (nodes.reshape(part, width, each * count) for part in (residual, second, previous))
    if last:
        residual, second, previous = b.last_rows(residual, second, previous)
    made = nodes.add(_channel_mix(b, second, previous, il), residual)
    period = b.model.number("rescale_every_n_layers")
    return nodes.scale(made) if period and (il + 1) % period == 0 else made


def _store_shift(b: Build, values: Node, il: int) -> None:
    size = b.caches[il].shift * b.sequences
    cache = b.stored[f"cache r {il}"]
    b.graph.expand(nodes.copy_into(nodes.view(values, (size,)), nodes.view(cache, (size,))))


def _channel_mix(b: Build, x: Node, previous: Node, il: int) -> Node:
    change = nodes.same("sub", previous, x)

    def mixed(role: str) -> Node:
        return nodes.add(nodes.mul(change, b.need(role, il)), x)

    keys = mixed("channel_mix_lerp_k")
    if b.has("channel_mix_receptance", il):
        gate = nodes.unary(b.product("channel_mix_receptance", mixed("channel_mix_lerp_r"), il))
        keys = nodes.same("sqr", nodes.unary(b.product("channel_mix_key", keys, il)))
        return nodes.mul(gate, b.product("channel_mix_value", keys, il))
    return b.product("channel_mix_value", nodes.same("sqr", nodes.unary(b.product("channel_mix_key", keys, il))), il)


def _parts(b: Build, mixed: Node, count: int) -> list[Node]:
    width, tokens = b.model.hparams.width, b.tokens
    return [nodes.view(mixed, (width, tokens), (mixed.strides[1],)) for _ in range(count)]


def _grouped_norm(b: Build, x: Node, il: int, heads: int) -> Node:
    width, tokens = b.model.hparams.width, b.tokens
    if not b.has("time_mix_ln", il):
        return nodes.reshape(x, width, tokens)
    x = nodes.same("norm", nodes.reshape(x, width // heads, heads, tokens))
    x = nodes.mul(nodes.reshape(x, width, tokens), b.need("time_mix_ln", il))
    return nodes.add(x, b.need("time_mix_ln.bias", il))


def _with_states(b: Build, made: Node, il: int) -> Node:
    """Write back the states, and return the output before them."""
    width, size = b.model.hparams.width, b.caches[il].state * b.sequences
    output = nodes.view(made, (width * b.tokens,))
    cache = b.stored[f"cache s {il}"]
    b.graph.expand(nodes.copy_into(nodes.view(made, (size,)), nodes.view(cache, (size,))))
    return output


def _time_mix6(b: Build, x: Node, previous: Node, il: int) -> Node:
    width, tokens, head = b.model.hparams.width, b.tokens, b.model.number("wkv.head_size")
    heads, kv_heads = width // head, b.model.hparams.layers[il].kv_heads
    converted = not b.has("time_mix_first", il)
    change = nodes.reshape(nodes.same("sub", previous, x), width, tokens)
    x = nodes.reshape(x, width, tokens)
    mixed = nodes.add(nodes.mul(change, b.need("time_mix_lerp_x", il)), x)
    first, second = b.need("time_mix_w1", il), b.need("time_mix_w2", il)
    mixed = nodes.reshape(nodes.unary(nodes.mul_mat(first, mixed)), first.shape[1] // 5, 1, 5, tokens)
    mixed = nodes.cont(nodes.permute(mixed, 0, 1, 3, 2))
    mixed = nodes.mul_mat(nodes.reshape(second, second.shape[0], second.shape[1], 1, 5), mixed)
    if b.has("time_mix_lerp_fused", il):
        change, x = nodes.reshape(change, width, 1, tokens), nodes.reshape(x, width, 1, tokens)
        mixed = nodes.add(nodes.mul(nodes.add(mixed, b.need("time_mix_lerp_fused", il)), change), x)
        w, k, v, r, g = _parts(b, mixed, 5)
    else:
        w, k, v, r, g = (
            nodes.add(nodes.mul(nodes.add(part, b.need(f"time_mix_lerp_{letter}", il)), change), x)
            for part, letter in zip(_parts(b, mixed, 5), "wkvrg", strict=True)
        )
    r, k, v = (
        b.product(f"time_mix_{name}", part, il)
        for name, part in zip(("receptance", "key", "value"), (r, k, v), strict=True)
    )
    g = nodes.unary(b.product("time_mix_gate", g, il))
    if kv_heads not in (0, heads):
        k, v = (
            nodes.repeat(nodes.reshape(part, head, 1, kv_heads, tokens), head, heads // kv_heads, kv_heads, tokens)
            for part in (k, v)
        )
    k, v, r = (nodes.reshape(part, head, heads, tokens) for part in (k, v, r))
    w = nodes.mul_mat(b.need("time_mix_decay_w2", il), nodes.unary(nodes.mul_mat(b.need("time_mix_decay_w1", il), w)))
    w = nodes.unary(nodes.unary(nodes.unary(nodes.add(w, b.need("time_mix_decay", il)))))
    w = nodes.reshape(w, head, heads, tokens)
    if converted:
        k = nodes.same("sub", k, nodes.mul(k, w))
    state = load(b, "s", il, b.caches[il].state)
    sizes = width, tokens + head * b.sequences
    first_bonus = None if converted else b.need("time_mix_first", il)
    sources = (k, v, r, w, state) if converted else (k, v, r, first_bonus, w, state)
    made = _with_states(b, nodes.result("wkv", "F32", sizes, *sources), il)
    made = nodes.mul(_grouped_norm(b, made, il, heads), g)
    return nodes.reshape(b.product("time_mix_output", made, il), width, b.each, b.sequences)


def _time_mix7(b: Build, x: Node, previous: Node, il: int) -> Node:
    width, tokens, head = b.model.hparams.width, b.tokens, b.model.number("wkv.head_size")
    heads, gated = width // head, b.has("time_mix_g1", il)
    change = nodes.repeat(nodes.same("sub", previous, x), width, b.each, b.sequences, 6 if gated else 5)
    mixed = nodes.add(nodes.mul(change, b.need("time_mix_lerp_fused", il)), x)
    r, w, k, v, a, *g = _parts(b, mixed, 6 if gated else 5)

    def low_rank(name: str, part: Node, function: bool) -> Node:
        inner = nodes.mul_mat(b.need(f"time_mix_{name}1", il), part)
        return nodes.mul_mat(b.need(f"time_mix_{name}2", il), nodes.unary(inner) if function else inner)

    r = b.product("time_mix_receptance", r, il)
    w = nodes.add(low_rank("w", w, True), b.need("time_mix_w0", il))
    w = nodes.unary(nodes.scale(nodes.unary(w)))
    k, source = b.product("time_mix_key", k, il), v
    v = b.product("time_mix_value", v, il)
    if b.first_value is None:
        b.first_value = v
    else:
        share = nodes.unary(nodes.add(low_rank("v", source, False), b.need("time_mix_v0", il)))
        v = nodes.add(v, nodes.mul(nodes.same("sub", b.first_value, v), share))
    gate = low_rank("g", g[0], True) if gated else None
    a = nodes.unary(nodes.add(low_rank("a", a, False), b.need("time_mix_a0", il)))
    kk = nodes.same("l2_norm", nodes.reshape(nodes.mul(k, b.need("time_mix_k_k", il)), head, heads, tokens))
    ka = nodes.mul(k, b.need("time_mix_k_a", il))
    k = nodes.add(k, nodes.same("sub", nodes.mul(a, ka), ka))
    r, w, k, v, a = (nodes.reshape(part, head, heads, tokens) for part in (r, w, k, v, a))
    state = load(b, "s", il, b.caches[il].state)
    sizes = width, tokens + head * b.sequences
    made = nodes.result("wkv", "F32", sizes, r, w, k, v, nodes.unary(kk), nodes.mul(kk, a), state)
    made = _grouped_norm(b, _with_states(b, made, il), il, heads)
    bonus = nodes.mul(nodes.mul(k, r), nodes.reshape(b.need("time_mix_r_k", il), head, heads))
    bonus = nodes.mul(v, nodes.sum_rows(bonus))
    made = nodes.add(made, nodes.reshape(bonus, width, tokens))
    if gate is not None:
        made = nodes.mul(made, gate)
    return nodes.reshape(b.product("time_mix_output", made, il), width, b.each, b.sequences)
