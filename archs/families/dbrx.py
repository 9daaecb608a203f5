"""DBRX: experts in every layer, layer norms without biases, q, k and v that are clipped.

Reference: transformers `models/dbrx/`.
"""

from archs.config import lookup
from archs.rope import FACTORS, SCALING
from archs.spec import BASE, Config, ConfigKeys, GgufKeys, TensorMap, Tensors, Transform
from archs.transforms import Invertible, reshape, transposed
from quants import Tensor
from quants.errors import ModelError


def sums_to_one(config: Config) -> bool | None:
    """Return `expert_weights_norm` if the chosen experts' weights are not rescaled (llama.cpp drops it)."""
    power = config["ffn_config"].get("moe_normalize_expert_weights", 1)
    if power not in (None, 1):
        raise ModelError(f"config.json makes the {power}-norm of experts' weights one; files can express a sum alone")
    return None if power else False


def of_experts(turned: bool) -> Transform:
    """Return rows of all experts as (experts, rows, width). turned: transposed to (experts, width, rows)."""

    def forward(tensor: Tensor, config: Config) -> Tensor:
        count = lookup(config, "ffn_config.moe_num_experts")
        split = reshape(tensor, (count, tensor.shape[0] // count, tensor.shape[1]))
        return transposed(split) if turned else split

    def invert(tensor: Tensor, config: Config) -> Tensor:
        rows = transposed(tensor) if turned else tensor
        return reshape(rows, (rows.shape[0] * rows.shape[1], rows.shape[2]))

    return Invertible(forward, invert)


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    norm = keys["expert_weights_norm"]
    return {
        "attn_config": {
            "clip_qkv": keys.stored("attention.clamp_kqv"),
            "kv_n_heads": keys["attention.head_count_kv"],
            "rope_theta": keys["rope.freq_base"],
        },
        "ffn_config": {
            "ffn_hidden_size": keys["feed_forward_length"],
            "moe_num_experts": keys["expert_count"],
            "moe_top_k": keys["expert_used_count"],
            "moe_normalize_expert_weights": 1.0 if norm else None,
            "ffn_act_fn": {"name": keys.get("hidden_activation") or "silu"},
        },
    }


DBRX = BASE.derive(
    name="dbrx",
    hf_classes=("DbrxForCausalLM", "DbrxModel"),
    layers="blocks",
    prefixes=("transformer", "model"),
    metadata={
        "feed_forward_length": "ffn_config.ffn_hidden_size",
        "attention.head_count_kv": "attn_config.kv_n_heads",
        **SCALING,
        "rope.freq_base": "rope_theta|attn_config.rope_theta",
        "attention.clamp_kqv": "attn_config.clip_qkv",
        "attention.layer_norm_epsilon": lambda config: 1e-5,
        "expert_count": "ffn_config.moe_num_experts",
        "expert_used_count": "ffn_config.moe_top_k",
        "expert_weights_norm": sums_to_one,
    },
    defaults={
        "d_model": 2048,
        "n_heads": 16,
        "n_layers": 24,
        "max_seq_len": 2048,
        "vocab_size": 32_000,
        "attn_config": {"kv_n_heads": 1},
        "ffn_config": {"ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1},
    },
    tensors={
        "wte": "token_embd",
        ".norm_attn_norm.norm_1": "attn_norm",
        ".norm_attn_norm.attn.Wqkv": "attn_qkv",
        ".norm_attn_norm.attn.out_proj": "attn_output",
        ".norm_attn_norm.norm_2": "attn_output_norm",
        ".ffn.router.layer": "ffn_gate_inp",
        ".ffn.experts.mlp.w1": TensorMap("ffn_gate_exps.weight", of_experts(False)),
        ".ffn.experts.mlp.v1": TensorMap("ffn_up_exps.weight", of_experts(False)),
        ".ffn.experts.mlp.w2": TensorMap("ffn_down_exps.weight", of_experts(True)),
        "norm_f": "output_norm",
        "lm_head": "output",
    },
    generated=FACTORS,
    activation="ffn_config.ffn_act_fn.name",
    config_from_gguf=config_from_gguf,
    absent={"expert_weights_norm": True},
    block={"norm": "layer", "rope": "halves", "ffn_norm": "attn_output_norm"},
)
