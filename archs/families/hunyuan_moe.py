"""Hunyuan A13B: the dense Hunyuan's layers with routed experts beside a shared one.

Reference: transformers `models/hunyuan_v1_moe/modeling_hunyuan_v1_moe.py`. Published configs have a number for each
layer where there is but one.
"""

from archs.config_keys import SIZE
from archs.experts import SEPARATE_EXPERTS
from archs.families.hunyuan import HUNYUAN_DENSE, config_from_gguf
from archs.layouts import gated_net
from archs.spec import Computed, Config
from archs.typed_json import Either, ListOf
from quants.errors import ModelError


def same_everywhere(key: str) -> Computed:
    """A number that config.json may have for each layer. Raises ModelError where layers differ."""

    def value(config: Config) -> int:
        numbers = config[key] if isinstance(config[key], list) else [config[key]]
        if len(set(numbers)) != 1:
            raise ModelError(f"config.json has {key} that differ by layer, which hunyuan-moe files cannot express")
        return int(numbers[0])

    return value


HUNYUAN_MOE = HUNYUAN_DENSE.derive(
    name="hunyuan-moe",
    hf_classes=("HunYuanMoEV1ForCausalLM", "HunYuanMoEV1Model"),
    metadata={
        "expert_count": same_everywhere("num_experts"),
        "expert_used_count": same_everywhere("moe_topk"),
        "expert_shared_count": same_everywhere("num_shared_expert"),
        "expert_feed_forward_length": same_everywhere("moe_intermediate_size"),
        "expert_shared_feed_forward_length": "intermediate_size",
    },
    keys=dict.fromkeys(
        ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size"), Either((SIZE, ListOf(SIZE)))
    ),
    defaults={
        "model_type": "hunyuan_v1_moe", "num_experts": 1, "moe_topk": 1, "num_shared_expert": 1,
        "moe_intermediate_size": lambda config: config["intermediate_size"],
    },
    config_from_gguf=lambda keys, tensors: {
        **config_from_gguf(keys, tensors), "num_experts": keys["expert_count"],
        "moe_topk": keys["expert_used_count"], "moe_intermediate_size": keys["expert_feed_forward_length"],
        "num_shared_expert": keys["expert_shared_count"],
    },
    tensors={
        "layers.{i}.mlp.gate.wg": "blk.{i}.ffn_gate_inp",
        **SEPARATE_EXPERTS,
        **gated_net("mlp.shared_mlp", "_shexp"),
    },
    block={"normalize_experts": True},
)  # fmt: skip
