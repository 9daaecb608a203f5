"""What a layer consists of, as its family declares it: a mixer, a net, and their arrangement.

A family gives each of the three as a name, as a function of the file's keys and the layer's number, or as several names
if keys don't tell: then the layer is of the first whose tensors it has. A layer without tensors of any mixer, or of any
net, has none, whatever is declared: small models leave parts out, and pruning removes them.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

from . import tensor_shapes
from .tensor_shapes import Part

Mixer = Literal[
    "attention",
    "attention+mamba2",
    "compressed",
    "gated_delta",
    "kimi_delta",
    "lightning",
    "mamba",
    "mamba2",
    "mamba_heads",
    "mla",
    "mla_widened",
    "none",
    "rwkv6",
    "rwkv7",
    "shortconv",
]
Net = Literal["dense", "experts", "experts+dense", "channel_mix", "none"]
Arrangement = Literal["sequential", "parallel", "normed", "streams", "mixed_streams", "residuals", "copies", "cycles"]

MIXERS: dict[Mixer, tuple[Part, ...]] = {
    "attention": (tensor_shapes.ATTENTION,),
    "attention+mamba2": (tensor_shapes.HEADS, tensor_shapes.ATTENTION),
    "compressed": (tensor_shapes.COMPRESSED,),
    "gated_delta": (tensor_shapes.DELTA,),
    "kimi_delta": (tensor_shapes.KIMI_DELTA,),
    "lightning": (tensor_shapes.LIGHTNING,),
    "mamba": (tensor_shapes.CHANNELS,),
    "mamba2": (tensor_shapes.HEADS,),
    "mamba_heads": (tensor_shapes.NARROW_HEADS,),
    "mla": (tensor_shapes.LATENT,),
    "mla_widened": (tensor_shapes.WIDENED,),
    "none": (),
    "rwkv6": (tensor_shapes.WKV,),
    "rwkv7": (tensor_shapes.WKV7,),
    "shortconv": (tensor_shapes.CONVOLUTION,),
}
NETS: dict[Net, tuple[Part, ...]] = {
    "dense": (tensor_shapes.DENSE,),
    "experts": (tensor_shapes.EXPERTS,),
    "experts+dense": (tensor_shapes.DENSE, tensor_shapes.EXPERTS),
    "channel_mix": (tensor_shapes.CHANNEL_MIX,),
    "none": (),
}
ARRANGEMENTS: dict[Arrangement, tuple[Part, ...]] = {
    "sequential": (),
    "parallel": (),
    "normed": (),
    "cycles": (),
    "copies": (tensor_shapes.COPIES,),
    "streams": (tensor_shapes.STREAMS,),
    "mixed_streams": (tensor_shapes.CONNECTIONS,),
    "residuals": (tensor_shapes.RESIDUALS,),
}
WITH_NONE = ("sequential", "cycles", "normed")  # arrangements of layers that may lack a mixer or a net


@dataclass(frozen=True)
class LayerType:
    """A layer's mixer, net and arrangement."""

    mixer: Mixer = "attention"
    net: Net = "dense"
    arrangement: Arrangement = "sequential"


Keys = Any  # archs.hparams.file_keys.Keys, which imports archs.spec
Names = str | tuple[str, ...]
Rule = Callable[[Keys, int], Names]
Declared = Names | Rule
Parts = tuple[Part, ...]


class DeclaresLayers(Protocol):
    """`archs.spec.Block`, which imports this module."""

    @property
    def mixer(self) -> Declared: ...
    @property
    def net(self) -> Declared: ...
    @property
    def arrangement(self) -> Declared: ...


def type_of_layer(
    block: DeclaresLayers, keys: Keys, layer: int, roles: Collection[str], parallel: bool = False
) -> LayerType:
    """Return the type of a layer with tensors of these names. Raises ModelError if a list in the keys lacks the layer.

    parallel: the model's layers are parallel instead of sequential.
    """
    mixer: Any = _chosen(block.mixer, keys, layer, roles, MIXERS)
    net: Any = _chosen(block.net, keys, layer, roles, NETS)
    arrangement: Any = _chosen(block.arrangement, keys, layer, roles, ARRANGEMENTS)
    if parallel and arrangement == "sequential":
        arrangement = "parallel"
    if arrangement in WITH_NONE:
        mixer = "none" if _mixer_tensors().isdisjoint(roles) else mixer
        net = "none" if _net_tensors().isdisjoint(roles) else net
    return LayerType(mixer, net, arrangement)


def _chosen(declared: Declared, keys: Keys, layer: int, roles: Collection[str], made_of: Mapping[Any, Parts]) -> str:
    """Return the first of several names whose tensors are there, else the first."""
    names = declared(keys, layer) if callable(declared) else declared
    if isinstance(names, str):
        return names
    return next((name for name in names if all(part.shown_by(roles) for part in made_of[name])), names[0])


@cache
def _mixer_tensors() -> frozenset[str]:
    return tensors_of(*MIXERS.values())


@cache
def _net_tensors() -> frozenset[str]:
    return tensors_of(*NETS.values(), tensor_shapes.WITH_EXPERTS)


def tensors_of(*made_of: Parts) -> frozenset[str]:
    """Return the names of all tensors that these parts may have."""
    return frozenset(role for each in made_of for part in each for role in part.table)


# Rules: layer types by keys


def with_kv_heads(mixer: Names, other: Names) -> Rule:
    """Return `mixer` in layers with key-value heads, `other` in those without."""
    return lambda keys, layer: mixer if keys.of_layer("attention.head_count_kv", layer) else other


def recurrent_layers(mixer: str, period: int) -> Rule:
    """Return `mixer` in the layers of `attention.recurrent_layers`, or in all but the last of
    `full_attention_interval`, or of each period where the file has neither.
    """

    def rule(keys: Keys, layer: int) -> str:
        recurrent = keys.stored_of_layer("attention.recurrent_layers", layer)
        if recurrent is None:
            recurrent = (layer + 1) % int(keys.get("full_attention_interval") or period) != 0
        return mixer if recurrent else "attention"

    return rule


def after_dense(net: Names) -> Rule:
    """Return `net` after the leading dense layers of a model with experts; all layers of others are dense.

    If no key counts experts, tensors show which layers have any.
    """
    either = ("dense", net) if isinstance(net, str) else ("dense", *net)

    def rule(keys: Keys, layer: int) -> Names:
        count, dense = keys.stored("expert_count"), int(keys.get("leading_dense_block_count"))
        return "dense" if count == 0 or layer < dense else either if count is None else net

    return rule


def where_wide(keys: Keys, layer: int) -> Names:
    """Return a dense net in layers that `feed_forward_length` gives a width, none in others; no key: as tensors
    show.
    """
    if keys.stored("feed_forward_length") is None:
        return "dense", "none"
    return "dense" if keys.of_layer("feed_forward_length", layer) else "none"


def experts_in_turn(keys: Keys, layer: int) -> Names:
    """Return experts in one layer of each `interleave_moe_layer_step`, the last of them, after the leading dense ones.

    No key says where the last experts are (ERNIE's `moe_layer_end_index`).
    """
    step = keys.get("interleave_moe_layer_step")
    turn = step is None or (step > 0 and (layer + 1) % step == 0)
    return EXPERTS_OR_DENSE(keys, layer) if turn else "dense"


def unless_one_stream(arrangement: str) -> Rule:
    """Return `arrangement`; but a single stream if tensors show that in the file's last layer, which may be an MTP
    layer, or in any layer where no key counts streams.
    """

    def rule(keys: Keys, layer: int) -> Names:
        counted = keys.get("hyper_connection.count") is not None
        last = layer == int(keys.need("block_count")) - 1
        return arrangement if counted and not last else (arrangement, "sequential")

    return rule


EXPERTS = after_dense("experts")
EXPERTS_OR_DENSE = after_dense(("experts", "dense"))  # where no key gives the layers with experts
MLA = ("mla_widened", "mla")  # keys and values from one matrix, as llama.cpp converted them until 2025, or from two
