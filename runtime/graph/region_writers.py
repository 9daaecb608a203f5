"""Writers of regions, which compute a whole mixer or all experts of a layer for a few tokens."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archs.hparams.model_hparams import LayerHParams
from archs.spec import sum_factor

from ..kernels import context_state, dots
from ..layer import Layer, Network
from ..mixers import compiled_experts, delta_mixers, rwkv_mixers, state_mixers
from ..mixers.compiled_attention import (
    Bound,
    Writer,
    attention_spec,
    latent_attention_spec,
    write_attention,
    write_latent_attention,
)
from ..products.gemv import Vectors
from .builder import Region
from .lowering import Lowering
from .writers import add_norm, sum_of, supports_product

SLOTS = context_state.MAX_TOKENS  # maximum texts that run together
REGIONS: dict[str, Callable[[Lowering, Region], bool]] = {}


def _supports_attention(lowering: Lowering, region: Region) -> bool:
    network, layer = lowering.network, region.layer
    roles = [role.removesuffix(".weight") for role in layer.tensors if role.endswith(".weight")]
    products = [role for role in roles if role.startswith("attn_") and len(layer.need(f"{role}.weight").shape) == 2]
    matrices = [role for role in products if not role.endswith("norm")]
    scaling = network.scaling
    indexed = any(role.startswith("indexer") for other in network.layers for role in other.tensors)
    return bool(
        network.block.causal
        and not (indexed and region.type == "latent attention")  # layers without an indexer reuse others' selection
        and (scaling is None or scaling.type in ("none", "linear", "yarn", "longrope"))
        and not any(role.startswith("indexer") for role in roles)
        and network.keys.get("adapters.count") is None
        and all(supports_product(layer, role) for role in matrices)
    )


def _write_attention(lowering: Lowering, region: Region) -> bool:
    if not _supports_attention(lowering, region):
        return False
    network, layer, own = lowering.network, region.layer, lowering.network.hparams.layers[region.layer.index]
    latent = region.type == "latent attention"
    source = own.kv_source_layer
    if source is not None and source not in lowering.bound:
        return False
    bound = _bound(lowering, own)
    writer = Writer(lowering.list, layer, _Bytes(lowering), lowering.state, lowering.workspace, bound)
    x = lowering.packed(region.inputs[0])
    if latent:
        spec = latent_attention_spec(network, layer)
        if spec.absorbed:
            kept = (1, spec.latent_width + spec.rope_width), (1, 0)
        else:
            kept = (own.heads, own.key_width), (own.heads, spec.value_width)
        mixed = write_latent_attention(writer, spec, x)
    else:
        kept = (own.kv_heads, own.key_width), (own.kv_heads, own.value_width)
        mixed = write_attention(writer, attention_spec(network, layer.index), x)
    lowering.bound[layer.index] = bound
    if source is None:
        lowering.keys[layer.index] = kept
    lowering.put(region.output, mixed, True)
    return True


class _Bytes(dict[str, NDArray[np.uint8]]):
    """Bytes of weights by name, as a writer requests them."""

    def __init__(self, lowering: Lowering) -> None:
        super().__init__()
        self._lowering = lowering

    def __missing__(self, name: str) -> NDArray[np.uint8]:
        layers = self._lowering.network.layers
        tensor = next(each for layer in layers for each in layer.tensors.values() if each.name == name)
        return self._lowering.bytes_of(tensor)


def _bound(lowering: Lowering, own: LayerHParams) -> Bound:
    """Return addresses of keys and values by slot: the layer's own, or those of the layer that it reuses."""
    if own.kv_source_layer is not None:
        other = lowering.bound[own.kv_source_layer]
        return Bound(other.keys, other.values)
    return Bound(np.zeros(SLOTS, np.int64), np.zeros(SLOTS, np.int64))


REGIONS["attention"] = REGIONS["latent attention"] = _write_attention


def _write_experts(lowering: Lowering, region: Region) -> bool:
    network, layer = lowering.network, region.layer
    if not compiled_experts.supports(network, layer):
        return False
    spec = compiled_experts.experts_spec(network, layer, lowering.threads)
    x, router_input = map(lowering.packed, region.inputs)
    into = sum_of(lowering, region.output, region.stop)
    out = lowering.new(region.output) if into is None else lowering.vectors_of(into)
    choice = None
    if router_input is not x:
        choice = compiled_experts.add_choice(lowering.list, spec, router_input, lowering.state, lowering.rooms)
    factor = sum_factor(network.block.add_shared_expert) if spec.shared else None
    compiled_experts.add_experts(
        lowering.list,
        spec,
        x,
        compiled_experts.Output(out, into is not None, 1.0 if factor is None else factor),
        lowering.state,
        rooms=lowering.rooms,
        choice=choice,
    )
    lowering.put(region.output, out)
    return True


REGIONS["experts"] = _write_experts


def _mixer(
    specify: Callable[[Network, Layer], Any], write: Callable[[state_mixers.Mixer, Any], None]
) -> Callable[[Lowering, Region], bool]:
    def written(lowering: Lowering, region: Region) -> bool:
        layer = region.layer
        activations = ("silu", "situ") if region.type == "kimi delta" else ("silu",)
        if region.type in _ACTIVATED and lowering.network.hparams.activation not in activations:
            return False  # compiled convolutions include a silu
        roles = [role.removesuffix(".weight") for role in layer.tensors if role.endswith(".weight")]
        matrices = [
            role for role in roles if role.startswith(_PROJECTIONS) and len(layer.need(f"{role}.weight").shape) == 2
        ]
        if not all(supports_product(layer, role) for role in matrices):
            return False
        spec = specify(lowering.network, layer)
        tables = tuple(np.zeros(SLOTS, np.int64) for _ in spec.state_shapes)
        lowering.tables[layer.index], lowering.states[layer.index] = tables, spec.state_shapes
        into = sum_of(lowering, region.output, region.stop)
        out = lowering.new(region.output) if into is None else lowering.vectors_of(into)
        x = lowering.packed(region.inputs[0])
        write(state_mixers.Mixer(lowering.list, lowering.state, tables, x, out, into is not None), spec)
        lowering.put(region.output, out)
        return True

    return written


_ACTIVATED = ("gated delta", "kimi delta", "lightning")  # by the model's activation; others only by silu
_PROJECTIONS = (
    "ssm_in",
    "ssm_out",
    "ssm_x",
    "ssm_dt",
    "ssm_ba",
    "ssm_beta",
    "ssm_alpha",
    "ssm_f",
    "ssm_g",
    "attn_qkv",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_gate",
    "attn_output",
    "shortconv.in_proj",
    "shortconv.out_proj",
)


def _of_keys(specify: Callable[..., Any]) -> Callable[[Network, Layer], Any]:
    return lambda network, layer: specify(layer, network.keys, float(network.hparams.eps))


REGIONS["mamba"] = _mixer(_of_keys(state_mixers.mamba_spec), state_mixers.write_mamba)
REGIONS["mamba2"] = _mixer(_of_keys(state_mixers.mamba2_spec), state_mixers.write_mamba2)
REGIONS["mamba of heads"] = _mixer(_of_keys(state_mixers.mamba_of_heads_spec), state_mixers.write_mamba_of_heads)
REGIONS["short convolution"] = _mixer(
    lambda network, layer: state_mixers.short_convolution_spec(layer), state_mixers.write_short_convolution
)
REGIONS["gated delta"] = _mixer(delta_mixers.gated_delta_spec, delta_mixers.write_gated_delta)
REGIONS["kimi delta"] = _mixer(delta_mixers.kimi_delta_spec, delta_mixers.write_kimi_delta)
REGIONS["lightning"] = _mixer(delta_mixers.lightning_spec, delta_mixers.write_lightning)

_RWKV = re.compile(
    r"(time_mix_([wavg][12]|receptance|key|value|gate|decay_w[12]|output)|channel_mix_(key|value|receptance))\.weight"
)


def _serves_rwkv(network: Network) -> bool:
    """Return whether all layers with RWKV's mixer are supported; later layers read values of the first."""
    layers = [layer for layer in network.layers if network.layer_type(layer).mixer.startswith("rwkv")]
    matrices = [(layer, role) for layer in layers for role in layer.tensors if _RWKV.fullmatch(role)]
    return rwkv_mixers.supports(network) and all(
        layer.need(role).format.name in dots.OF_FORMAT and f"{role.removesuffix('.weight')}.scale" not in layer
        for layer, role in matrices
    )


def _write_time_mix(lowering: Lowering, layer: Layer, x: Vectors, out: Vectors, adds: bool) -> state_mixers.Mixer:
    """Write a time mix of RWKV over x to `out`; return its mixer."""
    network, seventh = lowering.network, lowering.network.layer_type(layer).mixer == "rwkv7"
    spec: Any = (rwkv_mixers.time_mix7_spec if seventh else rwkv_mixers.time_mix6_spec)(network, layer)
    tables = tuple(np.zeros(SLOTS, np.int64) for _ in spec.state_shapes)
    lowering.tables[layer.index], lowering.states[layer.index] = tables, spec.state_shapes
    mixer = state_mixers.Mixer(lowering.list, lowering.state, tables, x, out, adds)
    if not seventh:
        rwkv_mixers.write_time_mix6(mixer, spec)
        return mixer
    values = rwkv_mixers.write_time_mix7(mixer, spec, lowering.first_values if layer.index else None)
    lowering.first_values = lowering.first_values if layer.index else values
    return mixer


def _time_mix(lowering: Lowering, region: Region) -> bool:
    if not _serves_rwkv(lowering.network):
        return False
    into, x = sum_of(lowering, region.output, region.stop), lowering.packed(region.inputs[0])
    out = lowering.new(region.output) if into is None else lowering.vectors_of(into)
    _write_time_mix(lowering, region.layer, x, out, into is not None)
    lowering.put(region.output, out)
    return True


def _rwkv_layer(lowering: Lowering, region: Region) -> bool:
    network, layer, (value,) = lowering.network, region.layer, region.inputs
    if not _serves_rwkv(network):
        return False
    x = lowering.vectors_of(value)
    if lowering.is_last_reader(value, region.stop - 1):
        out = x
    else:
        out = lowering.new(region.output)
        lowering.copy(x.floats, out)

    def normed(role: str) -> Vectors:
        made = lowering.workspace.vectors(role, x.width)
        add_norm(lowering, layer, role, out, made, 0.0)
        return made

    mixer = _write_time_mix(lowering, layer, normed("attn_norm"), out, True)
    mixer = replace(mixer, x=normed("attn_norm_2"))
    rwkv_mixers.write_channel_mix(mixer, rwkv_mixers.channel_mix_spec(network, layer))
    lowering.put(region.output, out)
    return True


REGIONS["time mix"], REGIONS["rwkv layer"] = _time_mix, _rwkv_layer
