"""Check that a region of operations is what its writer assumes.

Writers of regions use the model's hyperparameters, as the builder does, and not the single operations. So a region is
compiled only if each operation in it is known with each of its attributes, and is in the expected place: all others are
run uncompiled, one by one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from archs.spec import sum_factor

from ..layer import Layer, Network
from ..mixers import compiled_experts
from ..mixers.compiled_attention import AttentionSpec, attention_spec, latent_attention_spec
from . import operations as op
from .builder import Graph, Node, Region
from .indexer_operations import CacheKeys
from .operations import Operation, Value


class Anything:
    """Matches any value, for attributes that only give a size."""

    def __contains__(self, value: Any) -> bool:
        return True


SIZES = Anything()
WHOLE = frozenset(
    {  # mixers, whose steps follow from tensors that their writers read, too
        "mamba",
        "mamba2",
        "mamba of heads",
        "short convolution",
        "gated delta",
        "kimi delta",
        "lightning",
        "time mix",
        "rwkv layer",
    }
)
Attributes = Mapping[str, Any]  # the allowed values of each attribute
Table = Mapping[type[Operation], Attributes]
_ALONG = (op.Clamp, op.Columns, op.HeadNorm, op.PlainNorm, op.Rope, op.ScaleQueries, op.Scale)


def is_known(network: Network, graph: Graph, region: Region) -> bool:
    """Return whether the region only holds what its writer knows."""
    if region.type in WHOLE:
        return True
    nodes = graph.nodes[region.start : region.stop]
    if not all(knows(TABLES[region.type](network, region.layer), region.layer, node.operation) for node in nodes):
        return False
    return ORDERS[region.type](network, region.layer, nodes)


def knows(table: Table, layer: Layer, operation: Operation) -> bool:
    """Return whether an operation is in the table, with these attributes, besides values and the layer."""
    attributes = table.get(type(operation))
    if attributes is None:
        return False
    for each in fields(operation):
        value = getattr(operation, each.name)
        if isinstance(value, Layer):
            if value is not layer:
                return False
        elif not isinstance(value, Value) and value not in attributes.get(each.name, (each.default, None)):
            return False
    return True


def attention_table(network: Network, layer: Layer) -> Table:
    hparams, block, own = network.hparams, network.block, network.hparams.layers[layer.index]
    return {
        op.Linear: {"role": ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_gate"), "split": SIZES},
        op.Columns: dict.fromkeys(("start", "stop", "split"), SIZES),
        op.Clamp: {"limit": (hparams.clamp,), "low": (None,)},
        op.HeadNorm: {"role": ("attn_q_norm", "attn_k_norm")},
        op.PlainNorm: {"eps": (hparams.eps,)},
        op.Rope: {"own": (own,)},
        op.ScaleQueries: {"rotated": (own.rotates,)},
        op.Scale: {"factor": (hparams.value_scale,)},
        op.Attention: {"own": (own,), "chosen": (None,)},
        op.SharedAttention: {"own": (own,)},
        op.ScaleByGate: {"function": (block.attention_gate,)},
        op.Norm: {"role": ("attn_sub_norm",), "eps": (0.0,)},
    }


def latent_table(network: Network, layer: Layer) -> Table:
    block, own, spec = network.block, network.hparams.layers[layer.index], latent_attention_spec(network, layer)
    roles = ("attn_q", "attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b", "attn_gate")
    return {
        op.Linear: {"role": roles, "split": SIZES},
        op.Columns: dict.fromkeys(("start", "stop", "split"), SIZES),
        op.Norm: {"role": ("attn_q_a_norm", "attn_kv_a_norm", "attn_k_norm", "attn_sub_norm"), "eps": (0.0, spec.eps)},
        op.Rope: {"own": (own,)},
        op.PerHead: {"role": ("attn_k_b", "attn_v_b")},
        op.Concat: {},
        op.ScaleQueries: {"rotated": (own.rotates,)},
        CacheKeys: {"v": (None,), "place": (layer.index,)},
        op.LatentAttention: {"latent": (spec.latent_width,), "chosen": (None,)},
        op.WidenedAttention: {},
        op.ScaleByGate: {"function": (block.attention_gate,)},
    }


def experts_table(network: Network, layer: Layer) -> Table:
    hparams, block, own = network.hparams, network.block, network.hparams.layers[layer.index]
    sums = sum_factor(block.add_shared_expert) is not None
    return {
        op.PlainLinear: {"role": ("ffn_gate_inp", "ffn_gate_inp_shexp")},
        op.Norm: {"role": ("ffn_gate_inp.scale",), "eps": (0.0,)},
        op.Scale: {"factor": SIZES},
        op.Softcap: {"cap": (hparams.router_softcap,)},
        op.Probabilities: {"scoring": (hparams.scoring, "softmax")},
        op.AddWeight: {"role": ("exp_probs_b", "exp_probs_b.bias")},
        op.BestGroups: {"groups": (hparams.expert_groups,), "used": (hparams.expert_groups_used,), "pairs": SIZES},
        op.TopExperts: {"used": (own.experts_used,), "size": (1,)},
        op.ExpertWeights: {},
        op.NormalizeWeights: {},
        op.ScaleByExpert: {},
        op.Experts: {"suffix": ("exps",)},
        op.ScaleByGate: {"function": ("sigmoid",)},
        op.Linear: {"role": compiled_experts.SHARED, "split": ((),)},
        op.Columns: dict.fromkeys(("start", "stop", "split"), SIZES),
        op.Activate: {"activation": (hparams.activation,), "parameters": ((),)},
        op.Gated: {
            "activation": (hparams.activation,),
            "limit": (own.net_limit or hparams.activation_limit,),
            "clamps_gate_first": (block.clamps_gate_first,),
            "clamps_both": (bool(own.net_limit),),
            "bounds": SIZES,
        },
        op.Combine: {"function": (block.add_shared_expert,) if sums else ()},
    }


def _is_attention(network: Network, layer: Layer, nodes: Sequence[Node]) -> bool:
    """Return whether queries, keys and values take the steps that the writer assumes, with one result."""
    spec, made = attention_spec(network, layer.index), {node.value.number: node.operation for node in nodes}
    attention_type = op.Attention if spec.keeps else op.SharedAttention
    mixed = [node.operation for node in nodes if isinstance(node.operation, attention_type)]
    following = [node.operation for node in nodes if isinstance(node.operation, (op.ScaleByGate, op.Norm))]
    gates = ("attn_gate.weight" in layer or "gates" in spec.steps) and spec.keeps
    wanted = [op.ScaleByGate] * gates + [op.Norm] * (spec.keeps and "attn_sub_norm.weight" in layer)
    if len(mixed) != 1 or [type(each) for each in following] != wanted:
        return False
    heads = {"attn_q": mixed[0].q}
    if isinstance(mixed[0], op.Attention):
        heads |= {"attn_k": mixed[0].k, "attn_v": mixed[0].v}
    return all(_steps_to(made, value) == _steps_of(spec, layer, name) for name, value in heads.items())


def _steps_to(made: Mapping[int, Operation], value: Value) -> list[type[Operation]]:
    """Return the steps on heads after their product, without columns of a fused product."""
    steps: list[type[Operation]] = []
    while isinstance(operation := made.get(value.number), _ALONG):
        before = made.get(operation.x.number)
        if not (isinstance(operation, op.Columns) and isinstance(before, op.Linear) and len(operation.x.shape) == 1):
            steps.insert(0, type(operation))
        value = operation.x
    return steps


def _steps_of(spec: AttentionSpec, layer: Layer, name: str) -> list[type[Operation]]:
    """Return the steps that the writer assumes."""
    values, steps = name == "attn_v", list[type[Operation]]()
    for step in spec.steps:
        if step == "clamp" and spec.clamp:
            steps.append(op.Clamp)
        elif step == "gates" and name == "attn_q":
            steps.append(op.Columns)
        elif step == "norm" and not values and f"{name}_norm.weight" in layer:
            steps.append(op.HeadNorm)
        elif step == ("norm_values" if values else "norm_without_weights") and (values or spec.l2_norm):
            steps.append(op.PlainNorm)
        elif step == "rope" and not values and spec.rope_width:
            steps.append(op.Rope)
    steps += [op.Scale] * (values and spec.value_scale != 1)
    return steps + [op.ScaleQueries] * (name == "attn_q" and spec.tempered)


def _is_latent_attention(network: Network, layer: Layer, nodes: Sequence[Node]) -> bool:
    """Return whether each operation occurs as often as the writer assumes."""
    spec, counts = latent_attention_spec(network, layer), _counts(nodes)
    gates, norms = "attn_gate.weight" in layer, ("attn_q_a_norm", "attn_kv_a_norm", "attn_k_norm", "attn_sub_norm")
    wanted = {
        op.Rope: 2 * spec.rotates,
        op.Concat: 2,
        op.PerHead: 2 * spec.absorbed,
        op.ScaleQueries: int(spec.tempered),
        op.LatentAttention: int(spec.absorbed),
        op.WidenedAttention: int(not spec.absorbed),
        op.ScaleByGate: int(gates),
        op.Norm: sum(f"{norm}.weight" in layer or norm in layer for norm in norms),
    }
    return all(counts[operation] == count for operation, count in wanted.items())


def _is_experts(network: Network, layer: Layer, nodes: Sequence[Node]) -> bool:
    counts, shared = _counts(nodes), "ffn_up_shexp.weight" in layer
    gated = shared and "ffn_gate_inp_shexp.weight" in layer
    wanted = {op.TopExperts: 1, op.Experts: 1, op.Combine: int(shared), op.ScaleByGate: int(gated)}
    activations = counts[op.Activate] + counts[op.Gated]
    return activations == shared and all(counts[operation] == count for operation, count in wanted.items())


def _counts(nodes: Iterable[Node]) -> Counter[type[Operation]]:
    return Counter(type(node.operation) for node in nodes)


TABLES = {"attention": attention_table, "latent attention": latent_table, "experts": experts_table}
ORDERS = {"attention": _is_attention, "latent attention": _is_latent_attention, "experts": _is_experts}
