"""Metadata of mixtures of experts: how the router scores and rescales, and which experts all tokens share."""

from collections.abc import Mapping
from typing import Any

from .config import lookup
from .spec import Computed, Config, ConfigKeys, GgufKeys, Target, TensorMap, Tensors, Transform
from .tensor_maps import MATRICES, gated_net
from .transforms import chain, part

# Values of `expert_gating_func`.
GATING = {"softmax": 1, "sigmoid": 2, "softmax_of_top": 3, "sqrt_softplus": 4}


def gating(config: Config) -> int | None:
    """Return `expert_gating_func` by the config's `scoring_func`."""
    name = config.get("scoring_func")
    return GATING["sigmoid" if name == "noaux_tc" else name] if name else None


def always(scoring: str) -> Computed:
    """Return `expert_gating_func` of model types that always score the same way, whatever `scoring_func` says."""
    return lambda config: GATING[scoring]


def renormalized(usual: bool) -> Computed:
    """Return `expert_weights_norm` where it is not what the architecture's name implies (llama.cpp drops it)."""
    return lambda config: None if bool(config.get("norm_topk_prob", usual)) == usual else not usual


def shared_width(config: Config) -> int | None:
    """Return the width of all shared experts together."""
    count = lookup(config, "n_shared_experts|moe_num_shared_experts|num_shared_experts")
    width = config.get("moe_intermediate_size")
    return int(width * count) if width and count else None


def separate_experts(net: str, matrices: tuple[str, str, str] = MATRICES) -> dict[str, Target]:
    """Return experts with a tensor for each of their matrices: gate, up and down."""
    of_one = gated_net(f"{net}.experts.{{e}}", "_exps", matrices)
    return {name: TensorMap(str(target), stack=True) for name, target in of_one.items()}


def gate_and_up(suffix: str, before: Transform | None = None) -> tuple[TensorMap, TensorMap]:
    """Return the targets of a gate and an up projection that are stored as one. before: the transform applied first."""
    gate, up = (chain(before, part(i, 2)) if before else part(i, 2) for i in (0, 1))
    return TensorMap(f"ffn_gate{suffix}", gate), TensorMap(f"ffn_up{suffix}", up)


def fused_experts(net: str) -> dict[str, Target]:
    """Return the tensors of all experts in one, gate and up in one: as transformers 5 holds them, and writes on
    request.
    """
    return {
        f".{net}.experts.gate_up_proj": gate_and_up("_exps.weight"),
        f".{net}.experts.down_proj": "ffn_down_exps.weight",
    }


SEPARATE_EXPERTS, FUSED_EXPERTS = separate_experts("mlp"), fused_experts("mlp")

SHARED = gated_net("mlp.shared_experts", "_shexp")


def dense_layers(keys: GgufKeys | Mapping[str, Any], tensors: Tensors) -> ConfigKeys:
    """Return the config keys of layers with a dense net instead of experts, for the export to a checkpoint."""
    dense = [i for i in range(keys["block_count"]) if f"blk.{i}.ffn_gate_inp.weight" not in tensors]
    return {"decoder_sparse_step": 1, "mlp_only_layers": dense}


def net_types(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return `mlp_layer_types` ("dense" or "sparse" for each layer), without MTP layers."""
    count = keys["block_count"] - keys.get("nextn_predict_layers")
    dense = dense_layers({"block_count": count}, tensors)["mlp_only_layers"]
    return {"mlp_layer_types": ["dense" if layer in dense else "sparse" for layer in range(count)]}


# As DeepSeek V3 and its relatives write them.
ROUTING: dict[str, str | Computed | None] = {
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_gating_func": gating,
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "leading_dense_block_count": "first_k_dense_replace",
}
