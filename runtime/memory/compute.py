"""Compute the size of the compute buffers: the graph of one step of a whole model, and the plan of its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import nodes, per_layer, rwkv, states
from .allocation import Allocator
from .attention import attention, latent_attention
from .builder import Build
from .description import Described, Settings
from .feed_forward import net
from .nodes import Node
from .placement import IN_RAM, Placement
from .scheduling import scheduled

ALIGNMENT = 32  # of buffers in RAM
DEVICE_ALIGNMENT = 128  # as CUDA's
Mixer = Callable[[Build, Node, int], Node]
MIXERS: dict[str, Mixer] = {
    "attention": attention,
    "mla": latent_attention,
    "mla_widened": latent_attention,
    "mamba": states.mamba,
    "mamba2": states.mamba2,
    "gated_delta": states.gated_delta,
    "shortconv": states.short_convolution,
}


def build(model: Described, settings: Settings, placement: Placement = IN_RAM) -> Build:
    """Return the graph of one step."""
    b = Build(model, settings, placement)
    x = b.embedded()
    x = _scaled_embeddings(b, x)
    own = per_layer.embeddings(b, x) if b.weight("per_layer_model_proj") is not None else None
    copied = own is not None and b.weight("altup_proj") is not None
    if copied:
        x = per_layer.copies(b, x)
    for il in range(model.count):
        if copied and own is not None:
            x = per_layer.layer(b, x, own, il)
        elif model.layers[il].mixer.startswith("rwkv"):
            x = rwkv.layer(b, x, il)
        else:
            x = _layer(b, x, il)
            if il < model.number("n_deepstack_layers"):
                x = nodes.add(x, nodes.view(b.wide, x.shape[:2], b.wide.strides[1:2]))
            if own is not None:
                x = per_layer.with_embeddings(b, x, own, il)
            if b.has("layer_output_scale", il):
                x = nodes.mul(x, b.need("layer_output_scale", il))
    if copied:
        x = per_layer.joined(b, x)
    _head(b, x)
    return b


def _scaled_embeddings(b: Build, x: Node) -> Node:
    """Scale the embeddings."""
    name = b.model.architecture.name
    if b.model.hparams.embedding_scale != 1.0:
        scales_tokens = name.startswith(("gemma3", "gemma4")) or b.model.number("n_deepstack_layers")
        x = nodes.mul(x, b.input("scales", "F32", 1, b.tokens)) if scales_tokens else nodes.scale(x)
        b.graph.expand(x)
    if b.weight("token_embd_norm") is not None and "lfm2" not in name:
        x = b.norm(x, "token_embd_norm")
    if (table := b.weight("position_embd")) is not None:
        x = nodes.add(x, nodes.get_rows(table, b.positions()))
    return x


def _layer(b: Build, x: Node, il: int) -> Node:
    """Return a layer's output."""
    model, block, kind = b.model, b.model.architecture.block, b.model.layers[il]
    normed = b.norm(x, "attn_norm", il) if b.has("attn_norm", il) else x
    made, before = _mixed(b, x, normed, il), x
    if kind.arrangement == "parallel":
        return _parallel(b, made, normed, before, il)
    if kind.mixer == "attention+mamba2":
        made = before = nodes.add(made, before)
        if il == model.count - 1:
            made, before = b.last_rows(made, before)
        return nodes.add(net(b, b.norm(made, block.ffn_norm, il), il), before)
    if il == model.count - 1 and model.architecture.name not in LATE_ROWS:
        made, before = b.last_rows(made, before)
    if kind.mixer == "none":
        return nodes.add(made, before)
    if b.has(block.attn_post_norm, il) and block.attn_post_norm != block.ffn_norm:
        made = b.norm(made, block.attn_post_norm, il)
    made = _summed(before, _scaled(b, made), model.architecture.name in STREAM_FIRST)
    if kind.net == "none":
        return made
    return _with_net(b, made, il)


def _mixed(b: Build, x: Node, normed: Node, il: int) -> Node:
    """Return what a layer's mixer makes, or its net if it has no mixer."""
    kind = b.model.layers[il]
    if kind.mixer == "none":
        return net(b, normed, il) if kind.net != "none" else normed
    if kind.mixer == "gated_delta" or (kind.mixer == "attention" and "gates" in b.model.architecture.block.qkv_steps):
        b.graph.expand(normed)
    read = b.norm(x, "attn_norm_2", il) if b.has("attn_norm_2", il) else normed
    if kind.mixer == "attention+mamba2":
        attended = attention(b, read, il)
        return nodes.add(attended, states.mamba2(b, b.norm(x, "attn_norm", il), il))
    return MIXERS[kind.mixer](b, read, il)


def _with_net(b: Build, x: Node, il: int) -> Node:
    """Return the sum of a stream and what the layer's net makes of it."""
    block, name = b.model.architecture.block, b.model.architecture.name
    made = x
    if b.has(block.ffn_norm, il) and not b.has("pre_ffw_norm_2", il):
        made = b.norm(made, block.ffn_norm, il)
    made = net(b, made, il)
    after = next((role for role in (block.ffn_post_norm, "post_ffw_norm") if b.has(role, il)), None)
    if after is not None:
        made = b.norm(made, after, il)
    return _summed(x, _scaled(b, made), name in STREAM_FIRST or name in STREAM_FIRST_IN_NETS)


def _scaled(b: Build, x: Node) -> Node:
    """Scale what is added to the stream, in models that do."""
    return x if b.model.hparams.residual_scale == 1.0 else nodes.scale(x)


STREAM_FIRST = ("jamba", "lfm2", "lfm2moe", "openelm")  # llama.cpp's sums begin with the stream in them
STREAM_FIRST_IN_NETS = ("phi3", "phimoe")


def _summed(stream: Node, made: Node, stream_first: bool) -> Node:
    """Return a sum; the first of both is the one that it may overwrite."""
    return nodes.add(stream, made) if stream_first else nodes.add(made, stream)


def _parallel(b: Build, made: Node, normed: Node, before: Node, il: int) -> Node:
    """Return the output of a layer whose net reads what its attention reads."""
    if il == b.model.count - 1:
        made, before, normed = b.last_rows(made, before, normed)
    block = b.model.architecture.block
    source = normed
    if b.has(block.ffn_norm, il):
        source = b.norm(before, block.ffn_norm, il)
    if b.model.architecture.name in SUM_WITH_ATTENTION:
        return nodes.add(nodes.add(made, net(b, source, il)), before)
    if b.has("attn_norm_2", il):
        return nodes.add(nodes.add(net(b, source, il), made), before)
    return nodes.add(nodes.add(net(b, source, il), before), made)


SUM_WITH_ATTENTION = ("phi2",)  # begins with what attention made


LATE_ROWS = (  # llama.cpp takes the rows of outputs after the last norm, as a draft reads all of them
    *("qwen3next", "qwen35", "qwen35moe", "gemma4", "nemotron_h", "nemotron_h_moe", "gpt-oss", "cohere2moe", "hy_v3"),
    "step35",
)


def _head(b: Build, x: Node) -> None:
    """Append the last norm and the logits."""
    block = b.model.architecture.block
    role = block.output_norm
    if b.weight(role) is None and b.weight("token_embd_norm") is not None:
        role = "token_embd_norm"
    if b.weight(role) is not None or block.norm.endswith("without_weights"):
        x = b.norm(x, role)
    if b.model.architecture.name in LATE_ROWS:
        x.output = True
        (x,) = b.last_rows(x)
    x.output = True
    if (matrix := b.output_matrix()) is not None and not block.hidden_states:
        x = nodes.mul_mat(matrix, x)
        if (bias := b.weight("output.bias")) is not None:
            x = nodes.add(x, bias)
        if b.model.hparams.logit_scale != 1.0:
            x = nodes.scale(x)
        if b.model.hparams.logit_softcap:
            x = nodes.scale(nodes.unary(nodes.scale(x)))
        x.output = True
    b.graph.expand(x)


@dataclass(frozen=True)
class ComputeBuffers:
    """Bytes of the compute buffers of a device and of RAM."""

    device: int
    ram: int


def compute_buffers(model: Described, settings: Settings, placement: Placement = IN_RAM) -> ComputeBuffers:
    """Return the sizes of the compute buffers."""
    b = build(model, settings, placement)
    if not placement.gpu_layers:
        for node in (*b.graph.leaves, *b.graph.nodes):
            node.place = 0
        return ComputeBuffers(0, Allocator([ALIGNMENT]).plan(b.graph.leaves, b.graph.nodes)[0])
    device, ram = Allocator([DEVICE_ALIGNMENT, ALIGNMENT]).plan(*scheduled(b.graph, placement.copies_weights))
    return ComputeBuffers(device, ram)
