"""Encoder-decoder models (T5): the encoder reads one text, the decoder continues another with cross-attention to it.

Source: transformers `models/t5/modeling_t5.py`. Scores are not scaled; a learned bias for each distance is added to
them, usually the first layer's in all layers. The keys and values for cross-attention (`KVCache.context`) are computed
once a text.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from archs.hparams.file_keys import Keys
from archs.spec import ACTIVATIONS
from quants.errors import ModelError

from .arrays import Floats, Ids
from .embedding import embed
from .graph.builder import Graph
from .graph.encoder_decoder import Side, cross_graph, side_graph, whole_graph
from .graph.executors import run
from .layer import ForwardContext, Layer, Network

Context = tuple[tuple[Floats, Floats], ...]


@dataclass(frozen=True)
class EncoderDecoder:
    """Both sides; an encoder alone has none of the decoder's layers."""

    encoder: Side
    decoder: Side


def encoder_decoder(keys: Keys, layers: Mapping[str, Layer]) -> EncoderDecoder | None:
    """Return both sides of a model whose file has them, or None. layers: by prefix."""
    if "dec.output_norm.weight" not in layers[""]:
        return None
    return _both(keys, layers, int(keys.need("decoder_block_count")))


def encoder_alone(keys: Keys, layers: Mapping[str, Layer]) -> EncoderDecoder | None:
    """Return the encoder of a model without a decoder, or None."""
    alone = "enc.blk.0." in layers and "dec.output_norm.weight" not in layers[""]
    return _both(keys, layers, 0) if alone else None


def _both(keys: Keys, layers: Mapping[str, Layer], decoding: int) -> EncoderDecoder:
    count, activation = int(keys.need("block_count")), keys.get("hidden_activation")
    farthest = int(keys.get("attention.relative_max_distance"))
    activations = (ACTIVATIONS[activation], ACTIVATIONS[activation]) if activation else ("relu", "gelu_tanh")
    return EncoderDecoder(
        Side(tuple(layers[f"enc.blk.{i}."] for i in range(count)), farthest, activations, False),
        Side(tuple(layers[f"dec.blk.{i}."] for i in range(decoding)), farthest, activations, True),
    )


def encode(forward: ForwardContext, both: EncoderDecoder, ids: Ids) -> Context:
    """Encode a text: return for each layer of the decoder keys and values for cross-attention, (tokens, heads,
    width).
    """
    x = read(forward, both, ids)
    return tuple(
        (_crossed(forward, layer, "cross_attn_k", x), _crossed(forward, layer, "cross_attn_v", x))
        for layer in both.decoder.layers
    )


def _crossed(forward: ForwardContext, layer: Layer, role: str, x: Floats) -> Floats:
    graphs, name = forward.network.graphs, (f"{layer.prefix}{role}",)
    if name not in graphs:
        graphs[name] = cross_graph(forward.network, layer, role)
    result: Floats = run(graphs[name], forward, x)
    return result


def read(forward: ForwardContext, both: EncoderDecoder, ids: Ids) -> Floats:
    """Return the encoder's last hidden states of a text: float32 (tokens, width)."""
    return _through(forward, both.encoder, embed(forward, ids))


def decode(forward: ForwardContext, both: EncoderDecoder, x: Floats) -> Floats:
    """Return the decoder's output: float32 (tokens, width). Raises ModelError if no text was encoded."""
    if forward.cache is None or not forward.cache.context or forward.texts > 1:
        raise ModelError("this model has an encoder: its decoder runs a single text, from the cache `encode` returns")
    return _through(forward, both.decoder, x)


def _through(forward: ForwardContext, side: Side, x: Floats) -> Floats:
    """Return the output of one side's layers, whose graph is built once."""
    graphs, name = forward.network.graphs, ("decoder side" if side.is_decoder else "encoder side",)
    if name not in graphs:
        graphs[name] = side_graph(forward.network, side)
    result: Floats = run(graphs[name], forward, x)
    return result


def graph_of(network: Network, both: EncoderDecoder) -> Graph:
    """Return the graph of both sides from token ids on; of an encoder alone, one that can be run."""
    return whole_graph(network, both.encoder, both.decoder if both.decoder.layers else None)
