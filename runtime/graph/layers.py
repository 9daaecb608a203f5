"""A model's layers as operations, as the family declares them and by their optional tensors."""

from archs.layer_types import Arrangement, Mixer

from ..layer import Layer, Network
from ..streams import LAST
from . import operations as op
from .attention import attention
from .builder import Build, Builder, Graph, has
from .extended_text import FIRST_STATE
from .indexer import compressed_attention
from .latent_attention import latent_attention, widened_attention
from .linear_attention import gated_delta, kimi_delta, lightning
from .net import net
from .operations import Value
from .rwkv import rwkv_layer, time_mix
from .state_space import mamba, mamba2, mamba_of_heads, short_convolution
from .stream_operations import AddToOthers
from .streams import (
    HyperConnection,
    begin_copies,
    begin_streams,
    correct_copies,
    end_copies,
    end_streams,
    gated_mean,
    inject,
    predict_copies,
)


def decoder_graph(network: Network, predicts: bool = False) -> Graph:
    """Return all layers, from embedded tokens to the last norm's input. Raises ModelError if tensors do not fit.

    predicts: the file's predictor selects neurons.
    """
    b = Builder(network, predicts)
    x = begin(b, b.add("inp_embd", op.Input((network.hparams.width,))))
    return _through_layers(b, x)


def whole_graph(network: Network) -> Graph:
    """Return the graph from token ids to logits of all rows. Raises ModelError as `decoder_graph` does."""
    b = Builder(network)
    hparams = network.hparams
    embedded = op.Embed(network.global_tensors, (hparams.width,), float(hparams.embedding_scale))
    x = _write_layers(b, begin(b, b.add(_name_of_embedding(network), embedded)), keeps=False)
    add_head(b, end(b, x))
    return b.graph()


def add_head(b: Builder, x: Value) -> Value:
    """Return logits, or the normed output of the layers of a model without a head."""
    outside, hparams, block = b.network.global_tensors, b.network.hparams, b.network.block
    x = b.norm(outside, block.output_norm, x, "result_norm")
    if block.hidden_states:
        return x
    if has(outside, "output_proj"):
        x = b.linear(outside, "output_proj", x, "result_proj")
    tied = not has(outside, "output")
    scale = float(hparams.logit_scale * (hparams.tied_logit_scale if tied else 1))
    return b.add("result_output", op.Logits(x, outside, tied, scale, hparams.logit_softcap))


def _name_of_embedding(network: Network) -> str:
    """Return llama.cpp's name of the first layer's input."""
    outside, block = network.global_tensors, network.block
    if has(outside, "token_embd_norm") and block.output_norm != "token_embd_norm":
        return "inp_norm"
    if has(outside, "position_embd"):
        return "inpL"
    return "inp_scaled" if block.embedding_scale == "sqrt_width" else "embd"


def layers_graph(network: Network, width: int) -> Graph:
    """Return the graph from the first layer's input, (tokens, width)."""
    b = Builder(network)
    return _through_layers(b, b.add("inp_embd", op.Input((width,))))


def layer_graph(network: Network, layer: Layer, shape: tuple[int, ...], reads_blocks: bool = False) -> Graph:
    """Return the graph of a single layer over hidden states of this shape, keeping all rows. reads_blocks: it is a
    draft model's.
    """
    b = Builder(network, reads_blocks=reads_blocks)
    x = b.add("l_in", op.Input(shape))
    b.layer = layer
    write_layer(b, layer, x)
    return b.graph()


def begin(b: Builder, x: Value) -> Value:
    """Return the first layer's input from embedded tokens."""
    outside = b.network.global_tensors
    if "altup_proj.weight" in outside:
        return begin_copies(b, x)
    if b.network.keys.get("hyper_connection.count") is not None:
        return begin_streams(b, x)
    return x


def _through_layers(b: Builder, x: Value) -> Graph:
    b.kept(end(b, _write_layers(b, x, keeps=True)))
    return b.graph()


def _write_layers(b: Builder, x: Value, keeps: bool) -> Value:
    """Build all layers. keeps: the last one only continues with the rows for the head."""
    network = b.network
    if FIRST_STATE in network.global_tensors:
        x = b.add("hrm_init", op.BeginHrmCycles(x, network.global_tensors, 2 * x.width))
    for layer in network.layers:
        b.layer, b.keeps = layer, keeps and layer is network.layers[-1]
        b.layer_inputs[layer.index] = x
        x = b.layer_outputs[layer.index] = write_layer(b, layer, x)
        b.checked[x.number] = layer.prefix
    b.layer = None
    return x


def end(b: Builder, x: Value) -> Value:
    """Return the last norm's input from the last layer's output."""
    outside, width = b.network.global_tensors, b.network.hparams.width
    if "altup_proj.weight" in outside:
        return end_copies(b, x)
    if "output_res_score.weight" in outside:
        return b.add("result_residuals", op.ReadResiduals(x, outside, width, "output_res_score"))
    several = b.network.keys.get("hyper_connection.count") is not None
    if several or has(outside, f"{LAST}_fn", f"{LAST}_down"):
        return end_streams(b, x)
    return x


def write_layer(b: Builder, layer: Layer, x: Value) -> Value:
    """Build one layer over x."""
    out = _written(b, layer, x)
    if b.numbers(layer).ends_loop:
        out = b.norm(b.network.global_tensors, "output_norm", out, "loop_norm")
    return out


def _written(b: Builder, layer: Layer, x: Value) -> Value:
    layer_type = b.network.layer_type(layer)
    if layer_type.net == "channel_mix":
        return rwkv_layer(b, layer, x)
    return ARRANGEMENTS[layer_type.arrangement](b, layer, x)


def _sequential(b: Builder, layer: Layer, x: Value) -> Value:
    """Build a token mixer, then a net; each reads a norm of the residual stream and is added to it."""
    block, hparams = b.network.block, b.network.hparams
    scale, eps, layer_type = float(hparams.residual_scale), block.post_norm_eps, b.network.layer_type(layer)
    if layer_type.mixer == "none":  # in some hybrids a layer has only one part
        x = b.kept(x)
        if layer_type.net == "none":
            return x  # some layers are empty
        norm = "attn_norm" if has(layer, "attn_norm") else block.ffn_norm
        return b.add("l_out", op.Add(x, net(b, layer, b.norm(layer, norm, x), x), scale))
    post_norm = hparams.post_norm
    mixed = token_mixer(b, layer, x if post_norm else b.norm(layer, "attn_norm", x))
    mixed = b.norm(layer, "attn_norm", mixed, "attn_post_norm") if post_norm else mixed
    if block.ffn_norm != block.attn_post_norm:
        mixed = b.norm_if_there(layer, block.attn_post_norm, mixed, "attn_post_norm", eps)
    with_input = has(layer, "inp_gate")
    before = b.kept(x) if block.router_reads == "layer_input" else None
    x = b.add("l_out" if layer_type.net == "none" else "ffn_inp", op.Add(x, mixed, scale))
    x = _norm_of_sum(b, layer, "attn_output_norm", x if with_input else b.kept(x))
    if layer_type.net == "none":
        return x
    given = net(b, layer, x if post_norm else b.norm(layer, block.ffn_norm, x, "ffn_norm"), x, before)
    given = b.norm(layer, block.ffn_norm, given, "ffn_post_norm") if post_norm else given
    for role in dict.fromkeys(("post_ffw_norm", block.ffn_post_norm)):
        given = b.norm_if_there(layer, role, given, "ffn_post_norm", eps)
    x = _norm_of_sum(b, layer, "layer_output_norm", b.add("l_out", op.Add(x, given, scale)))
    if with_input:
        x = b.kept(b.add("per_layer_embd_out", op.Add(x, layer_input(b, layer, x))))
    return b.add("out_scaled", op.ScaleAndSkip(x, layer)) if "layer_output_scale.weight" in layer else x


def layer_input(b: Builder, layer: Layer, x: Value) -> Value:
    """Return the layer's own embedding of each token, gated by x (Gemma 3n and 4)."""
    gate = b.add("per_layer_gelu", op.Activate(b.linear(layer, "inp_gate", x), b.network.hparams.activation))
    own = b.add("inp_per_layer_selected", op.LayerInput(x, layer))
    gated = b.add("per_layer_gated", op.Multiply(gate, own))
    return b.norm(layer, "post_norm", b.linear(layer, "proj", gated, "per_layer_proj"), "per_layer_embd")


def _norm_of_sum(b: Builder, layer: Layer, role: str, x: Value) -> Value:
    """Return a norm of the sum after a part, unless the family uses its name for another one."""
    block = b.network.block
    return x if role in (block.ffn_norm, block.attn_post_norm, block.ffn_post_norm) else b.norm_if_there(layer, role, x)


def _parallel(b: Builder, layer: Layer, x: Value) -> Value:
    """Build attention and feed-forward net in parallel; each may have a norm of its own."""
    normed = b.norm(layer, "attn_norm", x)
    second, third = (b.norm(layer, role, x) if has(layer, role) else normed for role in ("attn_norm_2", "ffn_norm"))
    mixed = b.add("ffn_inp", op.Add(x, attention(b, layer, second)))
    mixed, third, x = (b.kept(part) for part in (mixed, third, x))
    return b.add("l_out", op.Add(mixed, net(b, layer, third, x)))


def _from_normed(b: Builder, layer: Layer, x: Value) -> Value:
    """Build parts whose residual is their normed input, times a constant."""
    scale, layer_type = float(b.network.hparams.residual_scale), b.network.layer_type(layer)
    if layer_type.mixer != "none":
        normed = b.norm(layer, "attn_norm", x)
        x = b.add("ffn_inp", op.Add(token_mixer(b, layer, normed), normed, scale))
    x = b.kept(x)
    if layer_type.net == "none":
        return x
    normed = b.norm(layer, b.network.block.ffn_norm, x, "ffn_norm")
    return b.add("l_out", op.Add(net(b, layer, normed, x), normed, scale))


def _in_streams(b: Builder, layer: Layer, x: Value) -> Value:
    """Build parts that read a mean of several streams, and are added to all of them."""
    if "ple_key.weight" in layer:
        x = b.add("ple_out", op.AddNgrams(x, layer, x.width))
    read, normed = gated_mean(b, layer, "hc_attn", x)
    x = b.kept(inject(b, layer, "hc_attn", x, normed, token_mixer(b, layer, read), "hc_attn_post"))
    read, normed = gated_mean(b, layer, "hc_ffn", x)
    return inject(b, layer, "hc_ffn", x, normed, net(b, layer, read, x), "l_out")


def _in_mixed_streams(b: Builder, layer: Layer, x: Value) -> Value:
    """Build parts that read and write several streams, which they mix."""
    around = HyperConnection(b, layer, "attn", x)
    mixed = token_mixer(b, layer, b.norm(layer, "attn_norm", around.read))
    x = b.kept(around.write(mixed, "hc_attn_post"))
    around = HyperConnection(b, layer, "ffn", x)
    normed = b.norm(layer, b.network.block.ffn_norm, around.read, "ffn_norm")
    return around.write(net(b, layer, normed, around.read), "l_out")


def _over_residuals(b: Builder, layer: Layer, x: Value) -> Value:
    """Build parts that read a mean of the hidden states and of stored residuals, which come after them in x."""
    width = b.network.hparams.width
    read = b.add("attn_res", op.ReadResiduals(x, layer, width, "attn_res_score"))
    mixed = token_mixer(b, layer, b.norm(layer, "attn_norm", read))
    if not layer.index % int(b.network.keys.need("attn_res.block_size")):
        x = b.add("res_left", op.LeaveResidual(x, layer, x.width + width))
    x = b.kept(b.add("ffn_inp", op.AddHidden(x, layer, x.width, mixed)))
    read = b.add("ffn_res", op.ReadResiduals(x, layer, width, "ffn_res_score"))
    return b.add("l_out", op.AddHidden(x, layer, x.width, net(b, layer, b.norm(layer, "ffn_norm", read), x)))


def _in_cycles(b: Builder, layer: Layer, x: Value) -> Value:
    """Build a layer of one of two alternating stacks (HRM)."""
    width = b.network.hparams.width
    out = _sequential(b, layer, b.add("hrm_state", op.ReadState(x, layer, width)))
    if layer.index + 1 == len(b.network.layers):
        return out
    return b.add("l_out_states", op.NextState(x, layer, 2 * width, out))


def _in_copies(b: Builder, layer: Layer, x: Value) -> Value:
    """Build a layer that one of several copies goes through; the others are predicted before and corrected after (Gemma
    3n).
    """
    expected, now = predict_copies(b, layer, x)
    normed = b.norm(layer, "attn_norm", now)
    low = b.linear(layer, "laurel_r", b.linear(layer, "laurel_l", normed))
    laurel = b.add("laurel_out", op.Add(normed, b.norm(layer, "laurel_post_norm", low)))
    mixed = b.norm(layer, "post_attention_norm", attention(b, layer, normed), "attn_post_norm")
    both = b.add("attn_laurel", op.Add(b.add("attn_gated", op.Add(now, mixed)), laurel))
    x = b.add("ffn_inp", op.Scale(both, 1 / 2**0.5))
    given = net(b, layer, b.norm(layer, "ffn_norm", x), x)
    x = b.add("ffn_out_added", op.Add(x, b.norm(layer, "post_ffw_norm", given, "ffn_post_norm")))
    corrected, first = correct_copies(b, layer, expected, now, x)
    return b.add("l_out", AddToOthers(corrected, layer_input(b, layer, first)))


def token_mixer(b: Builder, layer: Layer, x: Value) -> Value:
    """Return the output of the layer's token mixer."""
    mixer = b.network.layer_type(layer).mixer
    if mixer == "attention+mamba2":
        return b.add("layer_out", op.Add(_recurrent(b, layer, x, mamba2), attention(b, layer, x)))
    if mixer in RECURRENT:
        return _recurrent(b, layer, x, RECURRENT[mixer])
    return ATTENDING[mixer](b, layer, x)


def _recurrent(b: Builder, layer: Layer, x: Value, mixer: Build) -> Value:
    with b.counted_as("recurrence and convolution"):
        return mixer(b, layer, x)


def _compressed(b: Builder, layer: Layer, x: Value) -> Value:
    with b.counted_as("attention"):
        return compressed_attention(b, layer, x)


ARRANGEMENTS: dict[Arrangement, Build] = {
    "sequential": _sequential,
    "parallel": _parallel,
    "normed": _from_normed,
    "streams": _in_streams,
    "mixed_streams": _in_mixed_streams,
    "residuals": _over_residuals,
    "cycles": _in_cycles,
    "copies": _in_copies,
}
ATTENDING: dict[Mixer, Build] = {
    "attention": attention,
    "compressed": _compressed,
    "mla": latent_attention,
    "mla_widened": widened_attention,
}
RECURRENT: dict[Mixer, Build] = {  # mixers with a state
    "gated_delta": gated_delta,
    "kimi_delta": kimi_delta,
    "lightning": lightning,
    "mamba": mamba,
    "mamba2": mamba2,
    "mamba_heads": mamba_of_heads,
    "rwkv6": time_mix,
    "rwkv7": time_mix,
    "shortconv": short_convolution,
}
