"""Qwen3.5, dense and with experts: Qwen3-Next's layers with a projection for each kind.

Reference: transformers `models/qwen3_5/modeling_qwen3_5.py`, `models/qwen3_5_moe/`. Heads of values that share a key
are neighbours there; here keys take turns, as ggml repeats them.
"""

import numpy as np
from numpy.typing import NDArray

from archs.experts import SEPARATE_EXPERTS
from archs.families.qwen2vl import sections
from archs.families.qwen3next import QWEN3_NEXT, flat
from archs.spec import Config, TensorMap
from archs.transforms import Invertible, chain, channels_and_taps, negative_exp, reordered, transpose
from quants import FormatError


def taking_turns(width: str = "", after_keys: bool = False) -> Invertible:
    """Rows of heads of values re-ordered; width: the config key for rows of a head (one without). after_keys: behind
    the rows of queries and keys, which stay.
    """

    def order(total: int, config: Config) -> NDArray[np.intp]:
        groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        skipped = 2 * groups * config["linear_key_head_dim"] if after_keys else 0
        count = heads * (config[width] if width else 1)
        if heads % groups or skipped + count != total:
            raise FormatError(f"{total} rows; {groups} and {heads} heads of a linear attention have others")
        rows = np.arange(count).reshape(groups, heads // groups, -1)
        return np.concatenate([np.arange(skipped), skipped + rows.swapaxes(0, 1).reshape(-1)])

    return reordered(order)


VALUES = "linear_value_head_dim"

QWEN35_MOE = QWEN3_NEXT.derive(
    name="qwen35moe",
    hf_classes=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    metadata={"rope.dimension_sections": sections, "feed_forward_length": "intermediate_size"},
    defaults={
        "model_type": "qwen3_5_moe_text", "intermediate_size": None, "num_hidden_layers": 40, "num_experts": 256,
        "num_experts_per_tok": 8, "mrope_section": [11, 11, 10], "vocab_size": 248_320,
    },
    tensors={
        "layers.{i}.linear_attn.in_proj_qkvz": None,
        "layers.{i}.linear_attn.in_proj_ba": None,
        "layers.{i}.linear_attn.in_proj_qkv": TensorMap("blk.{i}.attn_qkv", taking_turns(VALUES, after_keys=True)),
        "layers.{i}.linear_attn.in_proj_z": TensorMap("blk.{i}.attn_gate", taking_turns(VALUES)),
        "layers.{i}.linear_attn.in_proj_a": TensorMap("blk.{i}.ssm_alpha", taking_turns()),
        "layers.{i}.linear_attn.in_proj_b": TensorMap("blk.{i}.ssm_beta", taking_turns()),
        "layers.{i}.linear_attn.conv1d": TensorMap(
            "blk.{i}.ssm_conv1d", chain(channels_and_taps, taking_turns(VALUES, after_keys=True))
        ),
        "layers.{i}.linear_attn.dt_bias": TensorMap("blk.{i}.ssm_dt.bias", taking_turns()),
        "layers.{i}.linear_attn.A_log": TensorMap("blk.{i}.ssm_a", chain(taking_turns(), negative_exp, flat)),
        "layers.{i}.linear_attn.out_proj": TensorMap(
            "blk.{i}.ssm_out", chain(transpose, taking_turns(VALUES), transpose)
        ),
    },
    rope_parameters="one",
    legacy_names=tuple(SEPARATE_EXPERTS),
)  # fmt: skip

QWEN35 = QWEN35_MOE.derive(
    name="qwen35",
    hf_classes=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    metadata={
        "expert_count": None,
        "expert_used_count": None,
        "expert_feed_forward_length": None,
        "expert_shared_feed_forward_length": None,
        "expert_weights_norm": None,
    },
    defaults={
        "model_type": "qwen3_5_text", "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 32,
        "num_key_value_heads": 4,
    },
)  # fmt: skip
