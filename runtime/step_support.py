"""What of a model the compiled list of operations (`runtime.token_step`) computes: all else takes the usual way.

Each field of `Block`, `Hyper` and `LayerHyper` is in a table below with the values that the operations serve, or it has
to have the value that its class gives it. So a field that is added to one of these classes, and set by a family, keeps
models off the compiled way until somebody has taught it the field, and said so here.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from archs.hyper import LayerHyper

from .kernels import dots
from .kernels import token_parts as parts
from .layer import Layer, Network

LAYER = frozenset({
    "attn_norm.weight", "attn_norm.bias", "attn_q.weight", "attn_q.bias", "attn_k.weight", "attn_k.bias",
    "attn_v.weight", "attn_v.bias", "attn_qkv.weight", "attn_qkv.bias", "attn_output.weight", "attn_output.bias",
    "attn_q_norm.weight", "attn_k_norm.weight", "post_attention_norm.weight", "ffn_norm.weight", "ffn_norm.bias",
    "ffn_gate.weight", "ffn_gate.bias", "ffn_up.weight", "ffn_up.bias", "ffn_down.weight", "ffn_down.bias",
    "post_ffw_norm.weight", "attn_norm_2.weight", "attn_norm_2.bias",
})  # fmt: skip
AROUND = frozenset({
    "token_embd.weight", "output.weight", "output_norm.weight", "output_norm.bias", "output.bias", "rope_freqs.weight",
})  # fmt: skip

Served = Callable[[Any], bool]


def anything(value: Any) -> bool:
    """Of a field that the operations take over, or that says something only of tensors which are refused by name."""
    return True


def nothing(value: Any) -> bool:
    """Of a field whose neutral value is 0, False or None."""
    return not value


def one_of(*values: Any) -> Served:
    return values.__contains__


BLOCK: Mapping[str, Served] = {
    "norm": one_of("rms", "layer"),
    "qkv_steps": lambda steps: set(steps) <= {"clamp", "norm", "rope"},
    **dict.fromkeys(("ffn_norm", "rope", "parallel", "gated", "never_written"), anything),
    # what the numbers of `Hyper` and its layers say
    **dict.fromkeys(("alibi", "alibi_terms", "activation", "window_period", "sees_all", "rope_layers", "rope_period",
                     "embedding_scale", "logit_scale", "numbers", "parallel_without", "scales_windowed_rope",
                     "sections_rotate_halves"), anything),
    # of a file's rows, pictures, experts, indexers, gates and delta nets
    **dict.fromkeys(("length_of_both", "interleaved_sections", "pictures_in_windows", "scaled_pictures", "scoring",
                     "normalize_experts", "weigh_expert", "add_shared_expert", "router_reads", "indexer_rope",
                     "indexer_rotates", "indexer_eps", "attention_gate", "delta_gate"), anything),
}  # fmt: skip
HYPER: Mapping[str, Served] = {
    "activation": parts.ACTIVATIONS.__contains__,
    "value_scale": one_of(1.0),
    **dict.fromkeys(("clamp", "alibi", "norms_behind"), nothing),
    **dict.fromkeys(("width", "context", "eps", "rope", "attention_softcap", "logit_softcap", "embedding_scale",
                     "residual_scale", "logit_scale", "tied_logit_scale", "parallel", "loops", "layers"), anything),
    # of pictures, of other activations, and of `Block.query_scale`
    **dict.fromkeys(("rope_sections", "activation_limit", "situ", "xielu", "temperature_scale", "temperature_length"),
                    anything),
    # of experts
    **dict.fromkeys(("experts_scale", "normalize_experts", "scoring", "expert_groups", "expert_groups_used",
                     "router_jitter", "router_softcap"), anything),
}  # fmt: skip
OF_LAYER: Mapping[str, Served] = {
    **dict.fromkeys(("key_width", "value_width"), lambda width: width % 16 == 0),
    **dict.fromkeys(("heads", "kv_heads", "window", "rotates", "rope_base", "rope_scaled", "rope_width",
                     "attention_scale", "stored", "experts_used", "experts_limit"), anything),
}  # fmt: skip
# Keys that the usual way asks for by itself, whatever the architecture is.
UNSERVED_KEYS = ("hyper_connection.count", "ple.layers", "adapters.count")


def serves(network: Network) -> bool:
    """Whether all that the network computes is among the operations."""
    scaling = network.scaling
    return bool(
        network.layers
        and not unserved(network.block, BLOCK)
        and not unserved(network.hyper, HYPER)
        and (scaling is None or scaling.kind in ("none", "linear", "yarn"))
        and all(network.keys.get(key) is None for key in UNSERVED_KEYS)
        and set(network.global_tensors.tensors) <= AROUND
        and all(_serves_layer(network, layer) for layer in network.layers)
    )


def unserved(numbers: Any, table: Mapping[str, Served]) -> list[str]:
    """Names of the fields of a dataclass with values that the operations do not know."""
    return [each.name for each in fields(numbers) if not _is_served(each, getattr(numbers, each.name), table)]


def _is_served(field: Field[Any], value: Any, table: Mapping[str, Served]) -> bool:
    return table[field.name](value) if field.name in table else is_default(field, value)


def is_default(field: Field[Any], value: Any) -> bool:
    """Whether a field has the value that its class gives it; a field without one never has."""
    if field.default_factory is not MISSING:
        return bool(value == field.default_factory())
    return field.default is not MISSING and bool(value == field.default)


def _serves_layer(network: Network, layer: Layer) -> bool:
    own, tensors = network.hyper.layers[layer.index], layer.tensors
    return (
        not unserved(own, OF_LAYER)
        and set(tensors) <= LAYER
        and {"attn_output.weight", "ffn_up.weight", "ffn_down.weight", "attn_norm.weight"} <= set(tensors)
        and ("attn_qkv.weight" in tensors or {"attn_q.weight", "attn_k.weight", "attn_v.weight"} <= set(tensors))
        and (network.hyper.parallel or f"{network.block.ffn_norm}.weight" in tensors)
        and ("ffn_gate.weight" in tensors) == network.block.gated
        and _serves_head_norms(network, own, layer)
        and all(tensors[name].format.name in dots.OF_FORMAT for name in tensors if len(tensors[name].shape) == 2)
    )


def _serves_head_norms(network: Network, own: LayerHyper, layer: Layer) -> bool:
    """Those of q and k are RMS norms with the same weights for each head."""
    norms = [layer.need(name) for name in ("attn_q_norm.weight", "attn_k_norm.weight") if name in layer]
    return all(network.block.norm == "rms" and norm.shape == (own.key_width,) for norm in norms)
