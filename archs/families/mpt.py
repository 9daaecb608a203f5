"""MPT: ALiBi, layer norms without biases, fused q/k/v that may be clipped.

Reference: transformers `models/mpt/modeling_mpt.py`.
"""

from archs.config import lookup
from archs.config_keys import ANYTHING
from archs.spec import BASE, Config


def largest_bias(config: Config) -> float:
    """The largest distance penalty's exponent, 0 without ALiBi."""
    if lookup(config, "attn_config.alibi") is False:
        return 0.0
    return float(lookup(config, "attn_config.alibi_bias_max") or 8)


MPT = BASE.derive(
    name="mpt", hf_classes=("MptForCausalLM", "MPTForCausalLM", "MptModel"),
    metadata={
        "feed_forward_length": lambda config: config["expansion_ratio"] * config["d_model"],
        "attention.head_count_kv": "attn_config.kv_n_heads", "attention.clamp_kqv": "attn_config.clip_qkv",
        "attention.max_alibi_bias": largest_bias, "attention.scale": "attn_config.softmax_scale",
    },
    defaults={
        "d_model": 2048, "n_heads": 16, "n_layers": 24, "expansion_ratio": 4, "max_seq_len": 2048,
        "layer_norm_epsilon": 1e-5, "vocab_size": 50_368,
    },
    layers="blocks",
    tensors={
        "wte": "token_embd", "wpe": "position_embd", ".norm_1": "attn_norm", ".attn.Wqkv": "attn_qkv",
        ".attn.q_ln": "attn_q_norm", ".attn.k_ln": "attn_k_norm", ".attn.out_proj": "attn_output",
        ".norm_2": "ffn_norm", ".ffn.up_proj": "ffn_up", ".ffn.down_proj": "ffn_down", "norm_f": "output_norm",
        "lm_head": "output",
    },
    keys={"logit_scale": ANYTHING},
    config_from_gguf=lambda keys, tensors: {"expansion_ratio": keys["feed_forward_length"] / keys["embedding_length"]},
    prefixes=("transformer", "model", "language_model", "text_model"),
    activation="",
    block={"norm": "layer", "rope": "none", "alibi": "attention.max_alibi_bias", "activation": "gelu", "gated": False},
)  # fmt: skip
