"""Build the tensors of recurrent layers: state spaces, delta nets, short convolutions, RWKV."""

from __future__ import annotations

from math import prod

from . import nodes
from .builder import Build
from .nodes import Node


def load(b: Build, name: str, il: int, size: int) -> Node:
    """Return the states of the step's sequences, which the graph gathers first (size, sequences)."""
    states = _states(b, name, il, size)
    gathered = nodes.get_rows(states, _copies(b))
    made = nodes.view(gathered, (size, b.sequences), (gathered.strides[1],))
    b.graph.expand(made)
    _keep_others(b, gathered, name, il, size)
    return made


def _states(b: Build, name: str, il: int, size: int) -> Node:
    cache = b.cache(name, il, "F32", size, b.sequences)
    states = nodes.reshape(cache, size, b.sequences)
    zero = nodes.view(states, (size,))
    b.graph.expand(nodes.viewed("scale", zero, zero.shape, zero.strides))
    return states


def _copies(b: Build) -> Node:
    return b.input("state copies", "I32", b.sequences)


def _keep_others(b: Build, gathered: Node, name: str, il: int, size: int) -> None:
    cache = b.cache(name, il, "F32", size, b.sequences)
    rest = nodes.view(gathered, (size, 0), (gathered.strides[1],))
    b.graph.expand(nodes.copy_into(rest, nodes.view(cache, (size, 0), (cache.strides[1],))))


def _scanned(b: Build, il: int, x: Node, state: int, others: tuple[Node, ...]) -> Node:
    """Return the output of a scan over the tokens, with the new states after it."""
    size = b.caches[il].state
    states = _states(b, "s", il, size)
    copies = _copies(b)
    rest = nodes.get_rows(states, nodes.view(copies, (0,)))
    head, heads = x.shape[:2]
    by_head = nodes.reshape(states, state, head, heads, b.sequences)
    main = nodes.view(copies, (b.sequences,))
    count = prod(x.shape) + state * head * heads * b.sequences
    dt, a, bb, cc = others
    made = nodes.result("ssm_scan", "F32", (count,), by_head, x, dt, a, bb, cc, main)
    b.graph.expand(made)
    _keep_others(b, rest, "s", il, size)
    cache = b.stored[f"cache s {il}"]
    new = nodes.view(made, (size * b.sequences,))
    b.graph.expand(nodes.copy_into(new, nodes.view(cache, (size * b.sequences,))))
    return made


def _ssm_conv(b: Build, x: Node, il: int) -> Node:
    kernel = b.need("ssm_conv1d", il)
    made = nodes.result("ssm_conv", "F32", (kernel.shape[1], b.each, b.sequences), x, kernel)
    if (bias := b.weight("ssm_conv1d.bias", il)) is not None:
        made = nodes.add(made, bias)
    return nodes.unary(made)


def mamba(b: Build, x: Node, il: int) -> Node:
    """Return a Mamba layer."""
    model, each, count = b.model, b.each, b.sequences
    inner, state = model.number("ssm.inner_size"), model.number("ssm.state_size")
    steps, taps = model.number("ssm.time_step_rank"), model.number("ssm.conv_kernel")
    size = b.caches[il].shift
    before = nodes.reshape(load(b, "r", il, size), taps - 1, inner, count)
    xz = b.product("ssm_in", nodes.reshape(x, x.shape[0], each, count), il)
    x, z = (nodes.view(xz, (inner, each, count), xz.strides[1:3]) for _ in range(2))
    joined = nodes.concat(before, nodes.transpose(x), 0)
    last = nodes.view(joined, (taps - 1, inner, count), joined.strides[1:3])
    b.graph.expand(nodes.copy_into(last, nodes.view(b.stored[f"cache r {il}"], (size * count,))))
    x = _ssm_conv(b, joined, il)
    parts = b.product("ssm_x", x, il)
    dt = nodes.view(parts, (steps, each, count), parts.strides[1:3])
    bb, cc = (nodes.view(parts, (state, 1, each, count), (4 * state, *parts.strides[1:3])) for _ in range(2))
    if b.has("ssm_dt_norm", il) or model.keys.get("ssm.dt_b_c_rms"):
        dt, bb, cc = b.norm(dt, "ssm_dt_norm", il), b.norm(bb, "ssm_b_norm", il), b.norm(cc, "ssm_c_norm", il)
    else:
        dt = nodes.cont(dt)
    dt = b.product("ssm_dt", dt, il)
    by_head = nodes.reshape(x, 1, inner, each, count)
    scanned = _scanned(b, il, by_head, state, (dt, b.need("ssm_a", il), bb, cc))
    y = nodes.view(scanned, (inner, each, count), by_head.strides[2:4])
    y = nodes.add(y, nodes.mul(x, b.need("ssm_d", il)))
    y = nodes.glu(nodes.cont(z), y)
    made = b.product("ssm_out", y, il)
    return nodes.reshape(made, made.shape[0], each * count)


def mamba2(b: Build, x: Node, il: int) -> Node:
    """Return a Mamba-2 layer."""
    model, each, count = b.model, b.each, b.sequences
    inner, state = model.number("ssm.inner_size"), model.number("ssm.state_size")
    heads, taps, groups = (model.number(f"ssm.{key}") for key in ("time_step_rank", "conv_kernel", "group_count"))
    width, head, size = inner + 2 * groups * state, inner // heads, b.caches[il].shift
    before = nodes.reshape(load(b, "r", il, size), taps - 1, width, count)
    whole = b.product("ssm_in", x, il)
    whole = nodes.reshape(whole, whole.shape[0], each, count)
    z = nodes.view(whole, (head, heads, each, count), (4 * head, *whole.strides[1:3]))
    x_b_c = nodes.view(whole, (width, each, count), whole.strides[1:3])
    dt = nodes.view(whole, (heads, each, count), whole.strides[1:3])
    joined = nodes.concat(before, nodes.transpose(x_b_c), 0)
    last = nodes.view(joined, (taps - 1, width, count), joined.strides[1:3])
    b.graph.expand(nodes.copy_into(last, nodes.view(b.stored[f"cache r {il}"], (size, count))))
    x_b_c = _ssm_conv(b, joined, il)
    x = nodes.view(x_b_c, (head, heads, each, count), (4 * head, *x_b_c.strides[1:3]))
    bb, cc = (nodes.view(x_b_c, (state, groups, each, count), (4 * state, *x_b_c.strides[1:3])) for _ in range(2))
    dt = nodes.add(nodes.cont(dt), b.need("ssm_dt.bias", il))
    scanned = _scanned(b, il, x, state, (dt, b.need("ssm_a", il), bb, cc))
    row = 4 * head * heads
    y = nodes.view(scanned, (head, heads, each, count), (4 * head, row, row * each))
    y = nodes.add(y, nodes.mul(x, b.need("ssm_d", il)))
    y = nodes.glu(nodes.cont(z), y)
    if b.has("ssm_norm", il):
        y = b.norm(nodes.reshape(y, inner // groups, groups, each, count), "ssm_norm", il)
    return b.product("ssm_out", nodes.reshape(y, inner, each * count), il)


def short_convolution(b: Build, x: Node, il: int) -> Node:
    """Return a gated short convolution (LFM2)."""
    each, count, width = b.each, b.sequences, b.model.hparams.width
    taps, size = b.model.number("shortconv.l_cache"), b.caches[il].shift
    whole = b.product("shortconv.in_proj", nodes.reshape(x, x.shape[0], each, count), il)
    gate, after, x = (nodes.view(whole, (width, each, count), whole.strides[1:3]) for _ in range(3))
    product = nodes.transpose(nodes.mul(gate, x))
    before = nodes.reshape(load(b, "r", il, size), taps - 1, width, count)
    joined = nodes.concat(before, product, 0)
    last = nodes.view(joined, (taps - 1, width, count), joined.strides[1:3])
    b.graph.expand(nodes.copy_into(last, nodes.view(b.stored[f"cache r {il}"], (size, count))))
    kernel = b.need("shortconv.conv", il)
    made = nodes.result("ssm_conv", "F32", (kernel.shape[1], each, count), joined, kernel)
    made = b.product("shortconv.out_proj", nodes.mul(after, made), il)
    return nodes.reshape(made, made.shape[0], each * count)


def gated_delta(b: Build, x: Node, il: int) -> Node:
    """Return a gated delta net (Qwen3-Next, Qwen3.5)."""
    model, each, count = b.model, b.each, b.sequences
    inner, key_width = model.number("ssm.inner_size"), model.number("ssm.state_size")
    keys, heads, taps = (model.number(f"ssm.{key}") for key in ("group_count", "time_step_rank", "conv_kernel"))
    head, size, width = inner // heads, b.caches[il].shift, inner + 2 * keys * key_width
    mixed = b.product("attn_qkv", x, il)
    mixed = nodes.reshape(mixed, mixed.shape[0], each, count)
    z = b.product("attn_gate", x, il)
    beta, gate = _delta_gates(b, x, il, keys, heads)
    before = nodes.reshape(load(b, "r", il, size), taps - 1, width, count)
    joined = nodes.concat(before, nodes.transpose(mixed), 0)
    last = nodes.view(joined, (taps - 1, width, count), joined.strides[1:3])
    b.graph.expand(nodes.copy_into(last, nodes.view(b.stored[f"cache r {il}"], (size, count))))
    state = nodes.reshape(load(b, "s", il, b.caches[il].state), head, head, heads, count)
    convolved = _ssm_conv(b, joined, il)
    row = convolved.strides[1]
    q, k = (
        _normed_heads(nodes.view(convolved, (key_width, keys, each, count), (4 * key_width, row, row * each)))
        for _ in range(2)
    )
    v = nodes.view(convolved, (head, heads, each, count), (4 * head, row, row * each))
    if keys != heads:
        q, k = (_repeated(part, heads, each * count) for part in (q, k))
        q, k = (nodes.reshape(part, key_width, heads, each, count) for part in (q, k))
    made = nodes.result(
        "gated_delta_net", "F32", (head * heads, each * count + head * count), q, k, v, gate, beta, state
    )
    output = nodes.view(made, (head, heads, each, count), (4 * head, 4 * head * heads, 4 * head * heads * each))
    new = nodes.view(made, (head, head, heads, count))
    cache = b.stored[f"cache s {il}"]
    b.graph.expand(nodes.copy_into(new, nodes.view(cache, (b.caches[il].state, count), (cache.strides[1],))))
    normed = b.norm(output, "ssm_norm", il)
    gates = nodes.unary(nodes.reshape(z, head, heads, each, count))
    made = b.product("ssm_out", nodes.reshape(nodes.mul(normed, gates), head * heads, each, count), il)
    return nodes.reshape(made, made.shape[0], each * count)


def _normed_heads(x: Node) -> Node:
    return nodes.same("l2_norm", x)


def _repeated(x: Node, heads: int, tokens: int) -> Node:
    """Repeat key heads as often as values share them."""
    width, keys = x.shape[:2]
    return nodes.repeat(nodes.reshape(x, width, 1, keys, tokens), width, heads // keys, keys, tokens)


def _delta_gates(b: Build, x: Node, il: int, keys: int, heads: int) -> tuple[Node, Node]:
    """Return how much of each value is written, and how fast states fade."""
    each, count = b.each, b.sequences
    if b.has("ssm_ba", il):
        both = nodes.reshape(b.product("ssm_ba", x, il), 2 * heads // keys, keys, each, count)
        parts = [nodes.view(both, (heads // keys, keys, each, count), both.strides[1:]) for _ in range(2)]
        beta = nodes.unary(nodes.cont(parts[0]))
        alpha = nodes.cont(parts[1], heads, each, count)
    else:
        beta = nodes.unary(nodes.reshape(b.product("ssm_beta", x, il), 1, heads, each, count))
        alpha = nodes.reshape(b.product("ssm_alpha", x, il), heads, each, count)
    gate = nodes.mul(nodes.unary(nodes.add(alpha, b.need("ssm_dt.bias", il))), b.need("ssm_a", il))
    return nodes.reshape(beta, 1, heads, each, count), nodes.reshape(gate, 1, heads, each, count)
