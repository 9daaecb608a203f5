"""Self-attention of a layer, with everything that families do to queries, keys and values before and after it."""

import numpy as np

from archs.hyper import LayerHyper

from . import few_queries, ops
from .arrays import Floats, Ids
from .attention import attend
from .few_queries import attend_few
from .indexer import block_keys, chosen_blocks, chosen_pools, pooled_keys
from .layer import Layer, Network, Pass
from .mixed_inputs import observe_mixed
from .rope import apply_rope


def attention(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """Self-attention of one layer over x (tokens, width), with its output projection: float32 (tokens, width)."""
    hyper, block, own, threads = forward.hyper, forward.block, forward.numbers(layer), forward.threads
    if own.kv_source_layer is not None:
        return _with_shared_keys(forward, layer, x)
    q, k, v = queries_keys_values(forward, layer, x)
    gate = None
    for step in block.qkv_steps:
        if step == "clamp" and hyper.clamp:
            q, k, v = (np.clip(part, -hyper.clamp, hyper.clamp, out=part) for part in (q, k, v))
        elif step == "gates":
            q, gate = (np.ascontiguousarray(half) for half in np.split(q, 2, axis=2))
        elif step == "norm":
            q, k = _head_norm(forward, layer, "attn_q_norm", q), _head_norm(forward, layer, "attn_k_norm", k)
        elif step == "norm_values":
            v = ops.rms_norm(v, None, hyper.eps, threads)
        elif step == "norm_without_weights" and own.qk_l2_norm:
            q, k = ops.rms_norm(q, None, hyper.eps, threads), ops.rms_norm(k, None, hyper.eps, threads)
        elif step == "rope" and own.rotates:
            with forward.timed("rotation"):
                cos, sin = forward.rope(own)
                apply_rope(q, cos, sin, hyper.rope, threads)
                apply_rope(k, cos, sin, hyper.rope, threads)
    factors = temperature(forward, own.rotates)
    if factors is not None:
        q *= factors[:, None, None]
    if hyper.value_scale != 1:
        v *= np.float32(hyper.value_scale)
    if forward.cache is not None and few_queries.serves(forward, layer, own):
        return projected(forward, layer, x, attend_few(forward, forward.cache, layer, own, q, k, v), gate)
    if forward.cache is not None:
        k, v = forward.cache.append(layer.index, k, v)
    observe_mixed(forward, layer, own, x, q, k)
    if any(other.kv_source_layer == layer.index for other in hyper.layers):
        forward.shared_keys[layer.index] = k, v

    def within(q: Floats, k: Floats, v: Floats, positions: Ids, texts: int) -> Floats:
        return attend(
            q, k, v, q_positions=positions, scale=own.attention_scale, window=own.window,
            softcap=hyper.attention_softcap, causal=block.causal, sinks=layer.array("attn_sinks.weight"),
            sequences=texts, chunk=own.chunk, threads=threads, keys_after=keys_after(forward, own.window),
            **distance_penalties(forward.network, own, len(q) // texts, len(k) // texts),
        )  # fmt: skip

    hidden_blocks = None
    if "indexer.k_proj.weight" in layer:
        pools = forward.keys.stored("attention.compress_ratios") is not None
        index = (pooled_keys if pools else block_keys)(forward, layer, x)
        if forward.cache is not None:  # beside the keys proper
            index, _ = forward.cache.append(-1 - layer.index, index, index[:, :, :0])
        hidden_blocks = (chosen_pools if pools else chosen_blocks)(forward, layer, x, index)
    if hidden_blocks is not None:
        texts = zip(*(np.split(each, forward.texts) for each in (q, k, v)), hidden_blocks, strict=True)
        mixed = np.concatenate([
            attend(
                *of_text, q_positions=forward.positions, scale=own.attention_scale, threads=threads,
                bias=np.broadcast_to(hidden, (own.heads, *hidden.shape[1:])),
            ) for *of_text, hidden in texts
        ])  # fmt: skip
    elif forward.tree is not None:
        seen = len(k) - len(q)
        hidden = forward.tree.bias(seen, own.window, own.chunk)
        mixed = attend(
            q, k, v, q_positions=seen + np.arange(len(q)), scale=own.attention_scale,
            sinks=layer.array("attn_sinks.weight"), bias=np.broadcast_to(hidden, (own.heads, *hidden.shape)),
            threads=threads,
        )  # fmt: skip
    elif forward.branches is None:
        mixed = within(q, k, v, forward.positions, forward.texts)
    else:
        mixed = forward.branches.attend(within, q, k, v)
    return projected(forward, layer, x, mixed, gate)


def keys_after(forward: Pass, window: int | None) -> Ids | None:
    """How many keys after each query are seen, too, in a layer with such a window."""
    return None if forward.block.pictures_in_windows and window is None else forward.keys_after


def projected(forward: Pass, layer: Layer, x: Floats, mixed: Floats, gate: Floats | None) -> Floats:
    """What attention found (tokens, heads * width), through gates where the layer has them, and its projection."""
    threads = forward.threads
    if "attn_gate.weight" in layer:
        gate = forward.project(layer, "attn_gate", x)
    if gate is not None:
        gates = gate.reshape(len(mixed), -1)
        softplus = forward.block.attention_gate == "softplus"
        gates = np.logaddexp(gates, np.float32(0)) if softplus else ops.sigmoid(gates, threads=threads)
        if gates.shape == mixed.shape:
            mixed *= gates
        else:  # one for each head
            mixed = (mixed.reshape(*gates.shape, -1) * gates[:, :, None]).reshape(mixed.shape)
    return forward.project(layer, "attn_output", forward.norm_if_there(layer, "attn_sub_norm", mixed))


def serves_branches(network: Network) -> bool:
    """Whether all layers mix tokens by `attention` alone, each with keys of its own, and positions stand for themselves
    (not so in absolute embeddings, and where a text's length decides how it is rotated).
    """
    others = ("attn_kv_a_mqa.weight", "shortconv.in_proj.weight", "ssm_in.weight", "ssm_ba.weight", "ssm_beta.weight",
              "indexer.k_proj.weight")  # fmt: skip
    return (
        network.block.causal and network.block.residual == "input" and network.keys.get("adapters.count") is None
        and (network.scaling is None or network.scaling.kind != "longrope")
        and "position_embd.weight" not in network.global_tensors
        and all("attn_output.weight" in layer and not any(map(layer.__contains__, others)) for layer in network.layers)
        and all(own.kv_source_layer is None for own in network.hyper.layers)
    )


def serves_trees(network: Network) -> bool:
    """Whether, besides, what a token sees is all that its place decides: scores are neither capped nor sloped."""
    return serves_branches(network) and not network.hyper.attention_softcap and not network.hyper.alibi


def _with_shared_keys(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """Self-attention of a layer that looks at the keys and values of an earlier one."""
    hyper, own = forward.hyper, forward.numbers(layer)
    q = forward.project(layer, "attn_q", x).reshape(len(x), own.heads, own.key_width)
    q = _head_norm(forward, layer, "attn_q_norm", q)
    if own.rotates:
        apply_rope(q, *forward.rope(own), hyper.rope, forward.threads)
    mixed = attend(
        q, *forward.shared_keys[own.kv_source_layer or 0], q_positions=forward.positions, scale=own.attention_scale,
        window=own.window, softcap=hyper.attention_softcap, sequences=forward.texts, threads=forward.threads,
        keys_after=keys_after(forward, own.window),
    )  # fmt: skip
    return forward.project(layer, "attn_output", mixed)


def temperature(forward: Pass, rotated: bool) -> Floats | None:
    """What each token's queries are multiplied by, float32 (tokens,); None where that is one."""
    query_scale = forward.block.query_scale
    factors = query_scale(forward.hyper, forward.positions, rotated) if query_scale else None
    return None if factors is None else np.tile(factors, forward.texts)


def queries_keys_values(forward: Pass, layer: Layer, x: Floats) -> tuple[Floats, Floats, Floats]:
    """(tokens, heads, head width) each, from one fused projection or three."""
    own = forward.numbers(layer)
    widths = (own.heads * own.key_width, own.kv_heads * own.key_width, own.kv_heads * own.value_width)
    if "attn_qkv.weight" in layer:
        parts = np.split(forward.project(layer, "attn_qkv", x), np.cumsum(widths)[:-1], axis=1)
        fused = zip(("attn_q", "attn_k", "attn_v"), parts, strict=True)
        parts = [forward.adapted(layer, name, x, part) for name, part in fused]
    else:
        names = ("attn_q", "attn_k", "attn_v") if "attn_v.weight" in layer else ("attn_q", "attn_k")
        inputs = forward.inputs(x)
        parts = [forward.project(layer, name, inputs) for name in names]
        parts += [parts[1].copy()] * (3 - len(parts))  # keys that are values as well
    heads = (own.heads, own.kv_heads, own.kv_heads)
    q, k, v = (np.ascontiguousarray(p).reshape(len(x), n, -1) for p, n in zip(parts, heads, strict=True))
    return q, k, v


def _head_norm(forward: Pass, layer: Layer, name: str, x: Floats) -> Floats:
    """The norm of q or k: the same weights for every head, weights for each, or one norm over all heads together."""
    weight = layer.array(f"{name}.weight")
    if weight is None:
        return x
    if weight.shape == x.shape[2:]:
        return forward.norm(layer, name, x)
    if weight.ndim == 1:
        return forward.norm(layer, name, x.reshape(len(x), -1)).reshape(x.shape)
    rms = forward.block.norm.startswith("rms") and not forward.block.head_norm_epsilon
    eps = forward.block.head_norm_epsilon or forward.hyper.eps
    normed = ops.rms_norm(x, None, eps, forward.threads) if rms else ops.layer_norm(x, None, None, eps, forward.threads)
    np.multiply(normed, weight, out=normed)
    bias = layer.array(f"{name}.bias")
    return normed if bias is None else np.add(normed, bias, out=normed)


def alibi_slopes(network: Network, heads: int) -> Floats | None:
    """The slope of each head's distance penalty (Press et al. 2021), float32 (heads,); None without ALiBi."""
    largest = network.hyper.alibi
    if not largest:
        return None
    power = 1 << (heads.bit_length() - 1)
    steps = np.arange(1, power + 1) / power
    between = (2 * np.arange(heads - power) + 1) / (2 * power)
    return np.exp2(-largest * np.concatenate([steps, between])).astype(np.float32)


def distance_penalties(network: Network, own: LayerHyper, queries: int, keys: int) -> dict[str, Floats]:
    """ALiBi as arguments of `attend`; none without it."""
    slopes, alibi_terms = alibi_slopes(network, own.heads), network.block.alibi_terms
    if slopes is None:
        return {}
    if alibi_terms is None:
        return {"alibi": slopes}
    terms = alibi_terms(slopes, keys, own.attention_scale)
    return {"bias": np.broadcast_to(terms[:, None], (own.heads, queries, keys))}
