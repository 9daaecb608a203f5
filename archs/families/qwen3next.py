"""Qwen3-Next: gated delta nets in three of four layers, gated attention in the fourth, experts with a shared one.

Reference: transformers `models/qwen3_next/modeling_qwen3_next.py`. Norm weights are stored minus one, but for those
in the delta nets. One projection makes, for each head of keys, its query, key, values and gates; here each kind is
together.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archs.experts import dense_layers, renormalized
from archs.families.qwen3moe import QWEN3_MOE
from archs.rope import rotated_width
from archs.spec import Block, Computed, Config, Map
from archs.transforms import Reversible, add_one, chain, channels_and_taps, column, negative_exp, take
from quants import FormatError, Tensor

FURTHER = {
    "fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm",
}  # fmt: skip
LINEAR: dict[str, str | Computed | None] = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "ssm.inner_size": lambda config: config["linear_value_head_dim"] * config["linear_num_value_heads"],
    "full_attention_interval": "full_attention_interval",
}


def predicting_further(config: Config, tensors: Mapping[str, Tensor]) -> tuple[Config, Mapping[str, Tensor]]:
    """Layers that predict further tokens, `mtp.…`, as layers after the last; how many there are, tensors tell."""
    last, count, renamed = config["num_hidden_layers"], 0, {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"(?:model\.)?mtp\.(?:layers\.(\d+)\.)?(\w+)(.*)", name)
        if found:
            number = int(found[1] or 0)
            count = max(count, number + 1)
            place = found[2] if found[1] else FURTHER.get(found[2], found[2])
            name = f"model.layers.{last + number}.{place}{found[3]}"
        renamed[name] = tensor
    return {**config, "num_nextn_predict_layers": count}, renamed


def published(config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What predicts further tokens under its own names again."""
    last, count = config["num_hidden_layers"], config["num_nextn_predict_layers"]
    outside, found = {after: before for before, after in FURTHER.items()}, {}
    for name, tensor in tensors.items():
        part = re.fullmatch(r"model\.layers\.(\d+)\.(.*?)(\.weight|\.bias|)", name)
        if part and last <= int(part[1]) < last + count:
            layer = f"layers.{int(part[1]) - last}.{part[2]}"
            name = f"mtp.{outside.get(part[2], layer)}{part[3]}"
        found[name] = tensor.renamed(name)
    return found


def recurrent(config: Config) -> list[bool]:
    kinds, every = config.get("layer_types"), config["full_attention_interval"]
    kinds = kinds or [i % every == every - 1 and "full_attention" for i in range(config["num_hidden_layers"])]
    return [kind != "full_attention" for kind in kinds] + [False] * config["num_nextn_predict_layers"]


def of_groups(pick: str) -> Reversible:
    """Rows stored by head of keys (its query, its key, its values, their gates) → those of `pick`, kind by kind."""

    def picked(count: int, config: Config) -> NDArray[np.intp]:
        groups, size = config["linear_num_key_heads"], config["linear_key_head_dim"]
        if count % groups:
            raise FormatError(f"{count} rows of a linear attention are not the same for each of {groups} heads of keys")
        values = config["linear_num_value_heads"] // groups * config["linear_value_head_dim"]
        kinds = np.split(np.arange(count).reshape(groups, -1), [size, 2 * size, 2 * size + values], axis=1)
        return np.concatenate([kinds["qkvz".index(kind)].reshape(-1) for kind in pick])

    return Reversible(
        lambda tensor, config: take(tensor, picked(tensor.shape[0], config)),
        lambda tensor, config: tensor,
        lambda total, shape, config: (picked(total, config), (total, *shape[1:])),
    )


flat = Reversible(column.undo, column.forward)

def restored(keys: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    further, rotated = keys.get("nextn_predict_layers", 0), keys["rope.dimension_count"]
    kinds = ["linear_attention" if is_so else "full_attention" for is_so in keys["attention.recurrent_layers"]]
    return {
        "num_hidden_layers": keys["block_count"] - further, "num_nextn_predict_layers": further,
        "linear_value_head_dim": keys["ssm.inner_size"] // keys["ssm.time_step_rank"],
        "layer_types": kinds[: keys["block_count"] - further],
        "partial_rotary_factor": rotated / keys["attention.key_length"],
        **dense_layers({**keys, "block_count": keys["block_count"] - further}, tensors),
    }  # fmt: skip


QWEN3_NEXT = QWEN3_MOE.but(
    name="qwen3next",
    hf_classes=("Qwen3NextForCausalLM",),
    vocab=("bpe",),
    arranged=predicting_further,
    published=published,
    restored=restored,
    metadata={
        **LINEAR,
        "block_count": lambda config: config["num_hidden_layers"] + config["num_nextn_predict_layers"],
        "nextn_predict_layers": lambda config: config["num_nextn_predict_layers"] or None,
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        "expert_weights_norm": renormalized(usual=True),
        "attention.recurrent_layers": recurrent,
        "attention.sliding_window": None,
        "attention.sliding_window_pattern": None,
        "rope.dimension_count": rotated_width,
    },
    defaults={
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 0,
    },
    tensors={
        "layers.{i}.input_layernorm": Map("blk.{i}.attn_norm", add_one),
        "layers.{i}.self_attn.q_norm": Map("blk.{i}.attn_q_norm", add_one),
        "layers.{i}.self_attn.k_norm": Map("blk.{i}.attn_k_norm", add_one),
        "layers.{i}.linear_attn.in_proj_qkvz": (
            Map("blk.{i}.attn_qkv", of_groups("qkv")), Map("blk.{i}.attn_gate", of_groups("z")),
        ),
        "layers.{i}.linear_attn.in_proj_ba": "blk.{i}.ssm_ba",
        "layers.{i}.linear_attn.conv1d": Map("blk.{i}.ssm_conv1d", channels_and_taps),
        "layers.{i}.linear_attn.dt_bias": "blk.{i}.ssm_dt.bias",
        "layers.{i}.linear_attn.A_log": Map("blk.{i}.ssm_a", chain(negative_exp, flat)),
        "layers.{i}.linear_attn.norm": "blk.{i}.ssm_norm",
        "layers.{i}.linear_attn.out_proj": "blk.{i}.ssm_out",
        "layers.{i}.post_attention_layernorm": Map("blk.{i}.post_attention_norm", add_one),
        "layers.{i}.eh_proj": "blk.{i}.nextn.eh_proj",
        "layers.{i}.enorm": Map("blk.{i}.nextn.enorm", add_one),
        "layers.{i}.hnorm": Map("blk.{i}.nextn.hnorm", add_one),
        "layers.{i}.shared_head.norm": Map("blk.{i}.nextn.shared_head_norm", add_one),
        "norm": Map("output_norm", add_one),
    },
    block=Block(rope="halves", ffn_norm="post_attention_norm", normalize_experts=True, query_gates=True),
)  # fmt: skip
