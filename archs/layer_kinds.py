"""What a layer is made of, as its family declares it: a mixer of tokens, a net, and how both are arranged.

A family says each of the three by a name, by a function of the file's keys and the layer's number, or by several names,
where keys don't tell: then the layer is of the first of them whose tensors it has.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Mixer = Literal[
    "attention", "attention+mamba2", "compressed", "gated_delta", "kimi_delta", "lightning", "mamba", "mamba2",
    "mamba_heads", "mla", "mla_widened", "none", "rwkv6", "rwkv7", "shortconv",
]  # fmt: skip
Net = Literal["dense", "experts", "experts+dense", "channel_mix", "none"]
Arrangement = Literal[
    "sequential", "parallel", "normed", "streams", "mixed_streams", "residuals", "copies", "cycles"
]  # fmt: skip

TENSORS = {  # that tell which of several names a layer is of
    "mamba2": "ssm_in", "mla": "attn_kv_a_mqa", "mla_widened": "attn_kv_b",
    "dense": "ffn_up", "experts": "ffn_gate_inp", "experts+dense": "ffn_gate_inp ffn_up",
    "mixed_streams": "hc_attn_fn",
}  # fmt: skip


@dataclass(frozen=True)
class LayerKind:
    """A layer's mixer, net and arrangement."""

    mixer: Mixer = "attention"
    net: Net = "dense"
    arrangement: Arrangement = "sequential"


Keys = Any  # archs.file_keys.Keys, which imports archs.spec
Names = str | tuple[str, ...]
Rule = Callable[[Keys, int], Names]
Declared = Names | Rule


class DeclaresLayers(Protocol):
    """`archs.spec.Block`, which imports this module."""

    @property
    def mixer(self) -> Declared: ...
    @property
    def net(self) -> Declared: ...
    @property
    def arrangement(self) -> Declared: ...


def layer_kind(block: DeclaresLayers, keys: Keys, layer: int, roles: Collection[str]) -> LayerKind:
    """The kind of a layer with tensors of these names. Raises ModelError where a list of the keys lacks the layer.

    Of several names the first whose tensors are there, else the first.
    """
    declared = (block.mixer, block.net, block.arrangement)
    names: Any = [_chosen(each(keys, layer) if callable(each) else each, roles) for each in declared]
    return LayerKind(*names)


def _chosen(names: Names, roles: Collection[str]) -> str:
    if isinstance(names, str):
        return names
    return next((name for name in names if _has_tensors(name, roles)), names[0])


def _has_tensors(name: str, roles: Collection[str]) -> bool:
    return all(f"{role}.weight" in roles for role in TENSORS.get(name, "").split())


# Rules: kinds by a layer's keys


def with_kv_heads(mixer: Names, other: Names) -> Rule:
    """`mixer` in layers that have heads of keys and values, `other` in those that have none."""
    return lambda keys, layer: mixer if keys.of_layer("attention.head_count_kv", layer) else other


def recurrent_layers(mixer: str, period: int) -> Rule:
    """`mixer` in the layers of `attention.recurrent_layers`, or in all but the last of `full_attention_interval`, or of
    each period where the file has neither.
    """

    def rule(keys: Keys, layer: int) -> str:
        recurrent = keys.stored_of_layer("attention.recurrent_layers", layer)
        if recurrent is None:
            recurrent = (layer + 1) % int(keys.get("full_attention_interval") or period) != 0
        return mixer if recurrent else "attention"

    return rule


def after_dense(net: Names) -> Rule:
    """`net` behind the leading dense layers of a model with experts; all layers of others are dense."""

    def rule(keys: Keys, layer: int) -> Names:
        dense = not keys.get("expert_count") or layer < int(keys.get("leading_dense_block_count"))
        return "dense" if dense else net

    return rule


def where_wide(keys: Keys, layer: int) -> str:
    """A dense net in layers that `feed_forward_length` gives a width, none in others."""
    return "dense" if keys.of_layer("feed_forward_length", layer) else "none"


def experts_in_turn(keys: Keys, layer: int) -> Names:
    """Experts in one layer of each `interleave_moe_layer_step`, the last of them, behind the leading dense ones.

    No key says where the last experts are (ERNIE's `moe_layer_end_index`).
    """
    step = keys.get("interleave_moe_layer_step")
    turn = step is None or (step > 0 and (layer + 1) % step == 0)
    return EXPERTS_OR_DENSE(keys, layer) if turn else "dense"


def unless_one_stream(arrangement: str) -> Rule:
    """`arrangement`, but tensors may show one stream in the file's last layer, which may predict a token further, and
    in all layers where no key counts streams.
    """

    def rule(keys: Keys, layer: int) -> Names:
        counted = keys.get("hyper_connection.count") is not None
        last = layer == int(keys.need("block_count")) - 1
        return arrangement if counted and not last else (arrangement, "sequential")

    return rule


EXPERTS = after_dense("experts")
EXPERTS_OR_DENSE = after_dense(("experts", "dense"))  # where no key says which layers have experts
MLA = ("mla_widened", "mla")  # keys and values from one matrix, as llama.cpp converted them until 2025, or from two
