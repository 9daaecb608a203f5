"""Build the tensors of attention: projections, rotation, caches, and the product with flash attention."""

from __future__ import annotations

from math import prod

from . import nodes
from .builder import Build
from .nodes import Node, row_bytes

ROTATED = 64  # quantized caches hold rotated rows, in parts of at least so many values


def attention(b: Build, x: Node, il: int) -> Node:
    """Return a layer's attention, without the residual."""
    own, block = b.model.hparams.layers[il], b.model.architecture.block
    gated = "gates" in block.qkv_steps
    q, k, v, gate = _projected(b, x, il, gated)
    q = _prepared(b, q, "attn_q_norm", il)
    if k is not None:
        k = _prepared(b, k, "attn_k_norm", il)
    if v is not None and "norm_values" in block.qkv_steps:
        v = nodes.rms_norm(v)
    if b.model.architecture.name in SCALES_QUERIES:
        q = nodes.scale(q)
    wide = own.key_width, own.value_width
    made = attend(b, q, k, v, il, wide, sinks=b.weight("attn_sinks", il))
    if gate is not None:
        made = nodes.mul(made, nodes.unary(nodes.cont(gate, made.shape[0], b.tokens)))
    made = _gated_output(b, made, x, il)
    if b.has("attn_sub_norm", il):
        made = b.norm(made, "attn_sub_norm", il)
    return b.product("attn_output", made, il)


SCALES_QUERIES = ("gemma", "gemma2", "gemma3", "phi2", "phi3", "minicpm3")


def _gated_output(b: Build, made: Node, x: Node, il: int) -> Node:
    """Multiply with the gates of a matrix of their own."""
    if not b.has("attn_gate", il):
        return made
    gate = nodes.unary(b.product("attn_gate", x, il))
    if gate.shape[0] != made.shape[0]:
        heads = gate.shape[0]
        made = nodes.mul(
            nodes.reshape(made, made.shape[0] // heads, heads, b.tokens), nodes.reshape(gate, 1, heads, b.tokens)
        )
        return nodes.reshape(made, -1, b.tokens)
    return nodes.mul(made, gate)


def _projected(b: Build, x: Node, il: int, gated: bool) -> tuple[Node, Node | None, Node | None, Node | None]:
    """Return queries, keys and values (width, heads, tokens), and gates; no keys where an earlier layer's are used."""
    own, block = b.model.hparams.layers[il], b.model.architecture.block
    heads, kv_heads = own.heads, own.kv_heads
    kw, vw, count = own.key_width, own.value_width, b.tokens
    if b.has("attn_qkv", il):
        qkv = b.product("attn_qkv", x, il)
        if b.model.hparams.clamp:
            qkv = nodes.same("clamp", qkv)
        size = qkv.strides[0]
        q = nodes.view(qkv, (kw, heads, count), (size * kw, qkv.strides[1]))
        if own.kv_source_layer is not None:
            return q, None, None, None
        k = nodes.view(qkv, (kw, kv_heads, count), (size * kw, qkv.strides[1]))
        v = nodes.view(qkv, (vw, kv_heads, count), (size * vw, qkv.strides[1]))
        return q, k, v, None

    def projected(role: str) -> Node:
        made = b.product(role, x, il)
        return nodes.same("clamp", made) if b.model.hparams.clamp and "clamp" in block.qkv_steps else made

    q, gate = projected("attn_q"), None
    if gated:
        whole = nodes.reshape(q, 2 * kw, heads, count)
        q = nodes.view(whole, (kw, heads, count), whole.strides[1:])
        gate = nodes.view(whole, (kw, heads, count), whole.strides[1:])
    elif not _norms_whole_rows(b, "attn_q_norm", q, il):
        q = nodes.reshape(q, kw, heads, count)
    if own.kv_source_layer is not None:
        return q, None, None, None
    k = projected("attn_k")
    v = projected("attn_v") if b.has("attn_v", il) else k
    if not _norms_whole_rows(b, "attn_k_norm", k, il):
        k = nodes.reshape(k, kw, kv_heads, count)
    return q, k, nodes.reshape(v, vw, kv_heads, count), gate


def _norms_whole_rows(b: Build, role: str, x: Node, il: int) -> bool:
    """Return whether a norm counts all heads together."""
    weight = b.weight(role, il)
    return weight is not None and weight.shape[0] == x.shape[0] and weight.shape[1] == 1 and x.shape[1] == b.tokens


def _prepared(b: Build, x: Node, norm: str, il: int) -> Node:
    """Normalize and rotate queries or keys, in the family's order."""
    own, steps = b.model.hparams.layers[il], b.model.architecture.block.qkv_steps
    for step in steps:
        if step == "norm" and b.has(norm, il):
            x = b.norm(x, norm, il)
            if x.shape[2] != b.tokens or x.shape[1] == b.tokens:
                x = nodes.reshape(x, own.key_width, -1, b.tokens)
        elif step == "norm_without_weights" and own.qk_l2_norm:
            x = nodes.rms_norm(x)
        elif step == "rope" and own.rotates:
            x = nodes.rope(x, b.positions(), _factors(b, il))
    return x


def _factors(b: Build, il: int) -> Node | None:
    """Return the rotation's factors, if the layer has any."""
    if not b.model.hparams.layers[il].rope_scaled:
        return None
    if (factors := b.outer_weight(il, "rope_freqs")) is not None:
        return factors
    original = b.model.number("rope.scaling.original_context_length")
    name = "rope_factors_long" if original and b.settings.cells > original else "rope_factors_short"
    return b.outer_weight(il, name)


def attend(
    b: Build, q: Node, k: Node | None, v: Node | None, il: int, widths: tuple[int, int], sinks: Node | None = None
) -> Node:
    """Write keys and values into the caches, and return what queries read (width of all heads, tokens)."""
    own = b.model.hparams.layers[il]
    if not b.model.cached and k is not None and v is not None:
        return _at_once(b, q, k, v, il)
    source = il if own.kv_source_layer is None else own.kv_source_layer
    cells, streams = b.caches[source].cells, b.settings.streams
    windowed = b.model.windowed(own)
    k_rotation, v_rotation = _rotations(b, windowed, widths)
    if k_rotation is not None:
        q = rotated(q, k_rotation)
        k = rotated(k, k_rotation) if k is not None else None
    if v_rotation is not None and v is not None:
        v = rotated(v, v_rotation)
    order = (q, k, v) if b.model.windows else (q, v, k)
    b.expand([each for each in order if each is not None])
    kw, vw = widths
    k_cache = b.cache("k", source, b.settings.cache_type_k, b.caches[source].keys, cells, streams)
    v_cache = b.cache("v", source, b.settings.cache_type_v, b.caches[source].values, cells, streams)
    suffix = " window" if windowed else ""
    for name, rows, cache in (("k", k, k_cache), ("v", v, v_cache)):
        if rows is not None:
            b.graph.expand(stored(b, rows, cache, f"{name} places{suffix}"))
    keys = cached(k_cache, b.settings.cache_type_k, kw, own.kv_heads, cells, streams)
    values = cached(v_cache, b.settings.cache_type_v, vw, own.kv_heads, cells, streams)
    made = flash_attention(b, q, keys, values, mask(b, cells, windowed), sinks)
    b.graph.expand(made)
    return made if v_rotation is None else rotated(made, v_rotation)


def _at_once(b: Build, q: Node, k: Node, v: Node, il: int) -> Node:
    """Return attention of a model without caches: among the tokens of the step."""
    b.expand([q, k, v])
    name = "mask window" if b.model.windowed(b.model.hparams.layers[il]) else "mask"
    seen = b.input(name, "F16", b.tokens, b.tokens)
    q = nodes.view(q, (*q.shape[:3], 1), (q.strides[1], q.strides[2], q.strides[2] * q.shape[2]))
    q, keys, values = (nodes.permute(each, 0, 2, 1, 3) for each in (q, k, v))
    keys, values = (nodes.result("cast", "F16", each.shape, each) for each in (keys, values))
    sizes = values.shape[0], q.shape[2], q.shape[1], q.shape[3]
    made = nodes.result("flash_attention", "F32", sizes, q, keys, values, seen)
    made = nodes.reshape(made, made.shape[0] * made.shape[1], made.shape[2])
    b.graph.expand(made)
    return made


def mask(b: Build, cells: int, windowed: bool) -> Node:
    """Return the mask of a cache."""
    streams = b.settings.streams
    name = "mask window" if windowed else "mask"
    return b.input(name, "F16", cells, b.tokens // streams, 1, streams)


def stored(b: Build, rows: Node, cache: Node, places: str) -> Node:
    """Return the step that writes rows into a cache."""
    rows = nodes.view(rows, (rows.shape[0] * rows.shape[1], b.tokens), (rows.strides[2],))
    if cache.shape[2] > 1:
        cache = nodes.reshape(cache, cache.shape[0], cache.shape[1] * cache.shape[2])
    return nodes.set_rows(cache, rows, b.input(places, "I64", b.tokens))


def cached(cache: Node, kind: str, width: int, heads: int, cells: int, streams: int) -> Node:
    """Return a cache's rows by head."""
    row = row_bytes(kind, cache.shape[0])
    return nodes.view(cache, (width, heads, cells, streams), (row_bytes(kind, width), row, row * cells))


def flash_attention(b: Build, q: Node, keys: Node, values: Node, mask: Node, sinks: Node | None = None) -> Node:
    """Return attention (width of all heads, tokens)."""
    streams = keys.shape[3]
    tokens = q.shape[2] // streams
    q = nodes.view(q, (*q.shape[:2], tokens, streams), (q.strides[1], q.strides[2], q.strides[2] * tokens))
    q, keys, values = (nodes.permute(each, 0, 2, 1, 3) for each in (q, keys, values))
    sizes = values.shape[0], q.shape[2], q.shape[1], q.shape[3]
    made = nodes.result("flash_attention", "F32", sizes, q, keys, values, mask, sinks)
    made.scratch = half_copies(b, keys, values)
    return nodes.reshape(made, made.shape[0] * made.shape[1], made.shape[2] * made.shape[3])


def half_copies(b: Build, *each: Node) -> int:
    """Return the bytes of float16 copies that a device makes of quantized keys and values."""
    if not b.placement.gpu_layers:
        return 0
    return sum(2 * prod(rows.shape) for rows in each if nodes.block_of(rows.type)[0] > 1)


def _rotations(b: Build, windowed: bool, widths: tuple[int, int]) -> tuple[Node | None, Node | None]:
    """Return the matrices that rotate keys and values before they are quantized, or none."""
    suffix = " window" if windowed else ""
    of_cache = [each for i, each in enumerate(b.model.hparams.layers) if _shares_cache(b, i, windowed)]
    first = b.model.hparams.layers[0]
    made: list[Node | None] = []
    for name, kind in (("key", b.settings.cache_type_k), ("value", b.settings.cache_type_v)):
        all_widths = {getattr(each, f"{name}_width") for each in of_cache}
        quantized = nodes.block_of(kind)[0] > 1
        if not quantized or len(all_widths) != 1 or getattr(first, f"{name}_width") % ROTATED:
            made.append(None)
            continue
        size, (width,) = ROTATED, all_widths
        while name == "key" and width % (2 * size) == 0:
            size *= 2
        made.append(b.input(f"{name} rotation{suffix}", "F32", size, size))
    return made[0], made[1]


def _shares_cache(b: Build, il: int, windowed: bool) -> bool:
    """Return whether a layer's keys are in the cache of layers with windows, or in that of those without."""
    own = b.model.hparams.layers[il]
    return b.caches[il].cells > 0 and b.model.windowed(own) == windowed


def rotated(x: Node, rotation: Node) -> Node:
    """Return a tensor whose rows are rotated in parts."""
    size, count = rotation.shape[0], x.shape[0] * x.shape[1] * x.shape[2] * x.shape[3]
    parts = nodes.reshape(x, size, count // size) if x.contiguous else nodes.cont(x, size, count // size)
    return nodes.reshape(nodes.mul_mat(rotation, parts), *x.shape)


# Latent attention (DeepSeek)


def latent_attention(b: Build, x: Node, il: int) -> Node:
    """Return attention over latent keys, or over keys and values made of them."""
    own, model = b.model.hparams.layers[il], b.model
    rank, rotating = model.number("attention.kv_lora_rank"), own.rope_width
    heads, count = own.heads, b.tokens
    kw = model.number("attention.key_length_mla") or own.key_width
    vw = model.number("attention.value_length_mla") or own.value_width
    plain = kw - rotating
    if b.has("attn_q_a", il):
        q = b.norm(b.product("attn_q_a", x, il), "attn_q_a_norm", il)
        q = b.product("attn_q_b", q, il)
    else:
        q = b.product("attn_q", x, il)
    q = nodes.reshape(q, kw, heads, count)
    both = b.product("attn_kv_a_mqa", x, il)
    row = both.strides[1]
    compressed = nodes.view(both, (rank, count), (row,))
    k_rotating = nodes.view(both, (rotating, 1, count), (row, row))
    k_rotating = nodes.rope(k_rotating, b.positions())
    compressed = b.norm(compressed, "attn_kv_a_norm", il)
    if not model.latent or not b.has("attn_k_b", il):
        return _widened(b, q, compressed, k_rotating, il, (plain, rotating, vw))
    q_plain = nodes.permute(nodes.view(q, (plain, heads, count), q.strides[1:3]), 0, 2, 1, 3)
    q_rotating = nodes.rope(nodes.view(q, (rotating, heads, count), q.strides[1:3]), b.positions())
    absorbed = nodes.permute(nodes.mul_mat(b.need("attn_k_b", il), q_plain), 0, 2, 1, 3)
    query = nodes.concat(absorbed, q_rotating, 0)
    compressed = nodes.reshape(compressed, rank, 1, count)
    key = nodes.concat(compressed, k_rotating, 0)
    b.expand([query, compressed, key])
    cells, streams, kind = b.caches[il].cells, b.settings.streams, b.settings.cache_type_k
    cache = b.cache("k", il, kind, b.caches[il].keys, cells, streams)
    b.graph.expand(stored(b, key, cache, "k places"))
    keys = cached(cache, kind, b.caches[il].keys, 1, cells, streams)
    values = nodes.view(keys, (rank, *keys.shape[1:]), keys.strides[1:])
    sizes = rank, heads, count // streams, streams
    turned = _turned(query, keys, values)
    made = nodes.result("flash_attention", "F32", sizes, *turned, mask(b, cells, False))
    made.scratch = half_copies(b, keys)
    made = nodes.mul_mat(b.need("attn_v_b", il), nodes.permute(made, 0, 2, 1, 3))
    made = nodes.cont(nodes.permute(made, 0, 2, 1, 3))
    made = nodes.reshape(made, made.shape[0] * made.shape[1], count)
    b.graph.expand(made)
    return b.product("attn_output", made, il)


def _turned(q: Node, keys: Node, values: Node) -> tuple[Node, Node, Node]:
    """Return all three with tokens before heads."""
    streams = keys.shape[3]
    tokens = q.shape[2] // streams
    q = nodes.view(q, (*q.shape[:2], tokens, streams), (q.strides[1], q.strides[2], q.strides[2] * tokens))
    return nodes.permute(q, 0, 2, 1, 3), nodes.permute(keys, 0, 2, 1, 3), nodes.permute(values, 0, 2, 1, 3)


def _widened(b: Build, q: Node, compressed: Node, k_rotating: Node, il: int, widths: tuple[int, int, int]) -> Node:
    """Return attention over keys and values of all heads, made of the latent ones."""
    plain, rotating, vw = widths
    heads, count = b.model.hparams.layers[il].heads, b.tokens
    kv = b.product("attn_kv_b", compressed, il)
    head = row_bytes(kv.type, plain + vw)
    k_plain = nodes.view(kv, (plain, heads, count), (head, head * heads))
    v = nodes.cont(nodes.view(kv, (vw, heads, count), (head, head * heads)))
    q = nodes.rope(q, b.positions())
    k = nodes.concat(k_plain, nodes.repeat(k_rotating, rotating, heads, count), 0)
    made = attend(b, q, k, v, il, (plain + rotating, vw))
    return b.product("attn_output", made, il)
