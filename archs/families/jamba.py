"""Jamba: Mamba and attention layers, without positions, every second one with routed experts.

Reference: transformers `models/jamba/modeling_jamba.py`. The router's weights are not rescaled to sum to one.
"""


from archs.config import other_than
from archs.experts import fused_experts, separate_experts
from archs.families.mamba import time_step_rank
from archs.families.qwen2 import HALVES
from archs.layouts import MAMBA_BIASES, gated_net, mamba
from archs.spec import Config, ConfigKeys, GgufKeys, Tensors, in_layers
from quants.errors import ModelError


def kv_heads(config: Config) -> list[int]:
    """Key-value heads of each layer; none in those that are no attention layers."""
    period, offset = config["attn_layer_period"], config["attn_layer_offset"]
    count = config["num_key_value_heads"]
    return [count if layer % period == offset else 0 for layer in range(config["num_hidden_layers"])]


def _every(layers: list[bool]) -> tuple[int, int]:
    """The period of the layers that are true, and the first of them. Raises ModelError where they have none."""
    for period in range(1, len(layers) + 2):
        for offset in range(period):
            if layers == [layer % period == offset for layer in range(len(layers))]:
                return period, offset
    raise ModelError("its kinds of layers have no period")


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Where the attention layers are, and the experts: one in every period."""
    groups = keys["attention.head_count_kv"]
    attention = _every([bool(count) for count in groups])
    experts = _every([f"blk.{i}.ffn_gate_inp.weight" in tensors for i in range(len(groups))])
    return {
        "attn_layer_period": attention[0], "attn_layer_offset": attention[1], "num_key_value_heads": max(groups),
        "expert_layer_period": experts[0], "expert_layer_offset": experts[1],
        "mamba_dt_rank": keys["ssm.time_step_rank"], "mamba_expand": keys["ssm.inner_size"] / keys["embedding_length"],
    }  # fmt: skip


JAMBA = HALVES.derive(
    name="jamba",
    hf_classes=("JambaForCausalLM",),
    vocab=("sentencepiece", "bpe"),
    metadata={
        "attention.head_count_kv": kv_heads,
        "rope.freq_base": None,
        "ssm.conv_kernel": "mamba_d_conv",
        "ssm.inner_size": lambda config: int(config["mamba_expand"] * config["hidden_size"]),
        "ssm.state_size": "mamba_d_state",
        "ssm.time_step_rank": time_step_rank,
    },
    defaults={
        "intermediate_size": 14_336, "num_key_value_heads": 8, "max_position_embeddings": 262_144, "num_experts": 16,
        "num_experts_per_tok": 2, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_conv": 4,
        "mamba_d_state": 16, "mamba_dt_rank": "auto", "mamba_expand": 2, "vocab_size": 65_536,
    },
    refused={"hidden_act": other_than("silu", "swish")},
    config_from_gguf=config_from_gguf,
    flags_from_tensors=MAMBA_BIASES,
    tensors={
        **in_layers({
            **mamba("mamba"), "mamba.x_proj": "ssm_x", "mamba.dt_layernorm": "ssm_dt_norm",
            "mamba.b_layernorm": "ssm_b_norm", "mamba.c_layernorm": "ssm_c_norm", "mamba.dt_proj": "ssm_dt",
            "pre_ff_layernorm": "ffn_norm", **gated_net("feed_forward"), "feed_forward.router": "ffn_gate_inp",
            **fused_experts("feed_forward"), **separate_experts("feed_forward"),
        }),
        "final_layernorm": "output_norm",
    },
    layers_vary=True,
    block={"rope": "none"},
)  # fmt: skip
