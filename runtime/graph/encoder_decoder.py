"""Both sides of an encoder-decoder model (T5), and an audio decoder (WavTokenizer), as operations.

Sources: transformers `models/t5/modeling_t5.py`; llama.cpp b11434, `src/models/wavtokenizer-dec.cpp`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..layer import Layer, Network
from . import encoder_operations as enc
from . import operations as op
from .builder import Builder, Graph
from .layers import add_head
from .operations import Value


@dataclass(frozen=True)
class Side:
    """The encoder or the decoder. farthest: distances from here on share a bucket of relative positions. activations:
    of feed-forward nets without a gate, and with one.
    """

    layers: Sequence[Layer]
    farthest: int
    activations: tuple[str, str]
    is_decoder: bool


def side_graph(network: Network, side: Side) -> Graph:
    """Return one side, from embedded tokens, including the encoder's last norm."""
    b = Builder(network)
    _add_side(b, side, b.add("inp_embd", op.Input((network.hparams.width,))))
    return b.graph()


def cross_graph(network: Network, layer: Layer, role: str) -> Graph:
    """Return keys or values of a decoder's layer from encoded tokens: (tokens, heads, width)."""
    b = Builder(network)
    b.layer = layer
    _heads(b, layer, role, b.add("embd", op.Input((network.hparams.width,))), role)
    return b.graph()


def whole_graph(network: Network, encoder: Side, decoder: Side | None) -> Graph:
    """Return both sides from the ids of two texts to logits; of an encoder alone, its hidden states.

    It can be run only without a decoder.
    """
    b = Builder(network, side="enc." if decoder else "")
    embedded = op.Embed(network.global_tensors, (network.hparams.width,), float(network.hparams.embedding_scale))
    encoded = _add_side(b, encoder, b.add("embd", embedded))
    if decoder:
        b.side = ""
        add_head(b, _add_side(b, decoder, b.add("embd", embedded), encoded))
    return b.graph()


def _add_side(b: Builder, side: Side, x: Value, encoded: Value | None = None) -> Value:
    """Return the output of a side. encoded: the encoder's output; None where its keys and values come from the cache.

    Layers without relative positions use those of the last layer that has them.
    """
    bias = None
    for place, layer in enumerate(side.layers):
        b.layer = layer
        if "attn_rel_b.weight" in layer:
            bias = b.add("pos_bias", enc.RelativeBias(x, layer, side.farthest, side.is_decoder))
        normed = b.norm(layer, "attn_norm", x)
        q, k, v = (_heads(b, layer, f"attn_{n}", normed, f"{n.upper()}cur") for n in "qkv")
        mixed = b.add("kqv_out", enc.BiasedAttention(q, k, v, bias, layer, side.is_decoder))
        x = b.add("ffn_inp", op.Add(x, b.linear(layer, "attn_o", mixed, "attn_out")))
        if side.is_decoder:
            q = _heads(b, layer, "cross_attn_q", b.norm(layer, "cross_attn_norm", x, "attn_norm_cross"), "Qcur_cross")
            values = layer.need("cross_attn_o.weight").width
            memory = [_heads(b, layer, f"cross_attn_{n}", encoded, f"{n.upper()}cur_cross") for n in "kv" if encoded]
            mixed = b.add("kqv_cross", enc.CrossAttention(q, place, values, *memory))
            x = b.add("cross_inp", op.Add(x, b.linear(layer, "cross_attn_o", mixed, "cross_attn_out")))
        x = b.add("l_out", op.Add(x, _net(b, layer, b.norm(layer, "ffn_norm", x), side.activations)))
        b.checked[x.number] = layer.prefix
    b.layer = None
    return x if side.is_decoder else b.norm(b.network.global_tensors, "enc.output_norm", x, "result_norm")


def _heads(b: Builder, layer: Layer, role: str, x: Value, name: str) -> Value:
    return b.linear(layer, role, x, name, (b.network.hparams.layers[0].heads, -1))


def _net(b: Builder, layer: Layer, x: Value, activations: tuple[str, str]) -> Value:
    hidden = b.linear(layer, "ffn_up", x)
    if "ffn_gate.weight" in layer:
        gate = b.linear(layer, "ffn_gate", x)
        hidden = b.add("ffn_gate_par", op.Gated(gate, hidden, activations[1], b.network.hparams.activation_limit))
    else:
        hidden = b.add("ffn_act", op.Activate(hidden, activations[0]))
    return b.linear(layer, "ffn_down", hidden, "ffn_out")


def codes_graph(network: Network, units: Sequence[Layer], blocks: Sequence[Layer], groups: int, eps: float) -> Graph:
    """Return the graph from a clip's codes through units of a posnet and ConvNeXt's blocks."""
    b, outside = Builder(network), network.global_tensors
    x = b.add("conv1d", enc.FrameConvolution(b.add("inp_embd", enc.EmbedCodes(outside)), outside, "conv1d"))
    for unit in units:
        b.layer = unit
        x = _unit(b, unit, x, groups, eps)
        b.checked[x.number] = unit.prefix
    b.layer = None
    x = b.norm(outside, "token_embd_norm", x)
    for block in blocks:
        b.layer = block
        inner = b.norm(block, "norm", b.add("dw", enc.FrameConvolution(x, block, "dw", each=True)))
        inner = b.add("pw1_act", op.Activate(b.linear(block, "pw1", inner), network.hparams.activation))
        inner = b.add("gamma", op.ScaleBy(b.linear(block, "pw2", inner), block, "gamma.weight"))
        x = b.add("convnext_out", op.Add(x, inner))
        b.checked[x.number] = block.prefix
    b.layer = None
    b.linear(outside, "output", b.norm(outside, "output_norm", x, "result_norm"), "result_output")
    return b.graph()


def _unit(b: Builder, unit: Layer, x: Value, groups: int, eps: float) -> Value:
    """Return a unit: two convolutions as a residual, attention as a residual, or just a norm."""
    if "conv1.weight" in unit:
        inner = x
        for i in (1, 2):
            normed = b.add(f"norm{i}", enc.FrameNorm(inner, unit, f"norm{i}", groups, eps))
            inner = b.add(
                f"conv{i}", enc.FrameConvolution(b.add(f"silu{i}", op.Activate(normed, "silu")), unit, f"conv{i}")
            )
        return b.add("posnet_out", op.Add(x, inner))
    normed = b.add("attn_norm", enc.FrameNorm(x, unit, "attn_norm", groups, eps))
    if "attn_q.weight" not in unit:
        return normed
    q, k, v = (b.add(f"{n.upper()}cur", enc.FrameConvolution(normed, unit, f"attn_{n}")) for n in "qkv")
    mixed = b.add("kqv_out", enc.FrameAttention(q, k, v))
    return b.add("posnet_out", op.Add(x, b.add("attn_out", enc.FrameConvolution(mixed, unit, "attn_output"))))
