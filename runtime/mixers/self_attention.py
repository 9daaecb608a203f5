"""Self-attention of a layer over whole texts, with masks, distance penalties and head norms."""

import numpy as np

from archs.hparams.model_hparams import LayerHParams

from .. import ops
from ..arrays import Floats, Ids
from ..layer import ForwardContext, Layer, Network
from ..mixed_inputs import observe_mixed
from . import decode_attention
from .attention import AttentionOptions, attend
from .decode_attention import attend_few


def attend_in_cache(
    forward: ForwardContext,
    layer: Layer,
    own: LayerHParams,
    x: Floats,
    heads: tuple[Floats, Floats, Floats],
    chosen: Floats | None = None,
) -> Floats:
    """Return a layer's attention output, float32 (tokens, heads * value width); keys and values are added to the cache.

    x (tokens, width): the input of the projections. heads: queries, keys and values, (tokens, heads, width). chosen: 0
    for the keys that each token sees, -inf for others, (texts, heads or 1, tokens, keys); None for all.
    """
    q, k, v = heads
    if forward.cache is not None and decode_attention.supports(forward, layer, own):
        return attend_few(forward, forward.cache, layer, own, q, k, v)
    if forward.cache is not None:
        k, v = forward.cache.append(layer.index, k, v)
    observe_mixed(forward, layer, own, x, q, k)
    if any(other.kv_source_layer == layer.index for other in forward.hparams.layers):
        forward.shared_keys[layer.index] = k, v
    if chosen is not None:
        return _attend_to_chosen(forward, own, q, k, v, chosen)
    if forward.tree is not None:
        return _attend_in_tree(forward, layer, own, q, k, v)

    def within(q: Floats, k: Floats, v: Floats, positions: Ids, texts: int) -> Floats:
        alibi, bias = distance_penalties(forward.network, own, len(q) // texts, len(k) // texts)
        options = AttentionOptions(
            window=own.window,
            softcap=forward.hparams.attention_softcap,
            causal=forward.block.causal,
            sinks=layer.array("attn_sinks.weight"),
            chunk=own.chunk,
            keys_after=keys_after(forward, own.window),
            alibi=alibi,
            bias=bias,
        )
        return attend(q, k, v, positions, own.attention_scale, options, sequences=texts, threads=forward.threads)

    if forward.branches is not None:
        return forward.branches.attend(within, q, k, v)
    return within(q, k, v, forward.positions, forward.texts)


def _attend_to_chosen(
    forward: ForwardContext, own: LayerHParams, q: Floats, k: Floats, v: Floats, hidden: Floats
) -> Floats:
    mixed, at, scale = [], forward.positions, own.attention_scale
    texts = zip(*(np.split(each, forward.texts) for each in (q, k, v)), hidden, strict=True)
    for queries, keys, values, bias in texts:
        options = AttentionOptions(bias=np.broadcast_to(bias, (own.heads, *bias.shape[1:])))
        mixed.append(attend(queries, keys, values, at, scale, options, threads=forward.threads))
    return np.concatenate(mixed)


def _attend_in_tree(
    forward: ForwardContext, layer: Layer, own: LayerHParams, q: Floats, k: Floats, v: Floats
) -> Floats:
    assert forward.tree is not None
    seen = len(k) - len(q)
    bias = forward.tree.bias(seen, own.window, own.chunk)
    options = AttentionOptions(
        sinks=layer.array("attn_sinks.weight"), bias=np.broadcast_to(bias, (own.heads, *bias.shape))
    )
    return attend(q, k, v, seen + np.arange(len(q)), own.attention_scale, options, threads=forward.threads)


def attend_to_shared(forward: ForwardContext, own: LayerHParams, q: Floats) -> Floats:
    """Return attention of queries (tokens, heads, width) to the keys and values of an earlier layer."""
    cap, (k, v) = forward.hparams.attention_softcap, forward.shared_keys[own.kv_source_layer or 0]
    options = AttentionOptions(window=own.window, softcap=cap, keys_after=keys_after(forward, own.window))
    scale, texts, threads = own.attention_scale, forward.texts, forward.threads
    return attend(q, k, v, forward.positions, scale, options, sequences=texts, threads=threads)


def keys_after(forward: ForwardContext, window: int | None) -> Ids | None:
    """Return how many keys after each query are visible in a layer with such a window."""
    return None if forward.block.images_in_windows and window is None else forward.keys_after


def supports_branches(network: Network) -> bool:
    """Return whether all layers mix tokens only by `attention`, each with keys of its own, and rotation does not depend
    on the text's length or on absolute position embeddings.
    """

    def supports(layer: Layer) -> bool:
        return network.layer_type(layer).mixer == "attention" and "indexer.k_proj.weight" not in layer

    return (
        network.block.causal
        and network.block.arrangement != "normed"
        and network.keys.get("adapters.count") is None
        and (network.scaling is None or network.scaling.type != "longrope")
        and "position_embd.weight" not in network.global_tensors
        and all(map(supports, network.layers))
        and all(own.kv_source_layer is None for own in network.hparams.layers)
    )


def supports_trees(network: Network) -> bool:
    """Return whether, in addition, scores have neither a cap nor distance penalties."""
    return supports_branches(network) and not network.hparams.attention_softcap and not network.hparams.alibi


def temperature(forward: ForwardContext, rotated: bool) -> Floats | None:
    """Return the factor of each token's queries, float32 (tokens,); None if all are 1."""
    query_scale = forward.block.query_scale
    factors = query_scale(forward.hparams, forward.positions, rotated) if query_scale else None
    return None if factors is None else np.tile(factors, forward.texts)


def scaled_queries(forward: ForwardContext, q: Floats, rotated: bool) -> Floats:
    """Return queries (tokens, heads, width) times the factors of their positions, in place."""
    factors = temperature(forward, rotated)
    if factors is not None:
        q *= factors[:, None, None]
    return q


def head_norm(forward: ForwardContext, layer: Layer, name: str, x: Floats) -> Floats:
    """Return the norm of q or k: the same weights for every head, weights for each, or one norm over all heads
    together.
    """
    weight = layer.array(f"{name}.weight")
    if weight is None:
        return x
    if weight.shape == x.shape[2:]:
        return forward.norm(layer, name, x)
    if weight.ndim == 1:
        return forward.norm(layer, name, x.reshape(len(x), -1)).reshape(x.shape)
    rms = forward.block.norm.startswith("rms") and not forward.block.head_norm_epsilon
    eps = forward.block.head_norm_epsilon or forward.hparams.eps
    normed = ops.rms_norm(x, None, eps, forward.threads) if rms else ops.layer_norm(x, None, None, eps, forward.threads)
    np.multiply(normed, weight, out=normed)
    bias = layer.array(f"{name}.bias")
    return normed if bias is None else np.add(normed, bias, out=normed)


def alibi_slopes(network: Network, heads: int) -> Floats | None:
    """Return the slope of each head's distance penalty (Press et al. 2021), float32 (heads,); None without ALiBi."""
    largest = network.hparams.alibi
    if not largest:
        return None
    power = 1 << (heads.bit_length() - 1)
    steps = np.arange(1, power + 1) / power
    between = (2 * np.arange(heads - power) + 1) / (2 * power)
    return np.exp2(-largest * np.concatenate([steps, between])).astype(np.float32)


def distance_penalties(
    network: Network, own: LayerHParams, queries: int, keys: int
) -> tuple[Floats | None, Floats | None]:
    """Return ALiBi's slopes, or its terms as a bias where the model rounds them; nothing without ALiBi."""
    slopes, alibi_terms = alibi_slopes(network, own.heads), network.block.alibi_terms
    if slopes is None or alibi_terms is None:
        return slopes, None
    terms = alibi_terms(slopes, keys, own.attention_scale)
    return None, np.broadcast_to(terms[:, None], (own.heads, queries, keys))
