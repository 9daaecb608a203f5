"""Phi-1, 1.5 and 2: layer norms, attention parallel to the feed-forward net, partly rotating heads, biases everywhere.

Phi-3 and Phi-4: Llama's layers with q/k/v fused and gate and up fused; longrope in the long-context models. A window of
0 means none, as llama.cpp writes it. Phi-3.5-MoE: layer norms and biases, two experts a token chosen one after the
other by a sparse mixer. The norms are layer norms, though their key says RMS. Reference: transformers `models/phi/`,
`models/phi3/`, `models/phimoe/`.
"""

from archs.config import UnlessUsual, other_than, rope_scaling
from archs.families.llama import HALVES, MIXTRAL
from archs.rope import (
    FACTORS,
    SCALING,
    longrope_attention,
    longrope_settings,
    rotated_width,
    type_without_tensors,
    unusual_base,
)
from archs.spec import BASE, Config, ConfigKeys, GgufKeys, Tensors
from archs.tensor_maps import QKV, head_norms
from quants.errors import ModelError

PHI2 = BASE.derive(
    name="phi2",
    hf_classes=("PhiForCausalLM", "PhiModel"),
    metadata={**SCALING, "rope.dimension_count": rotated_width, "rope.freq_base": unusual_base},
    defaults={
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": lambda config: config["num_attention_heads"],
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
        "vocab_size": 51_200,
    },
    tensors={
        "embed_tokens": "token_embd",
        ".input_layernorm": "attn_norm",
        **QKV,
        **head_norms("q_layernorm", "k_layernorm"),
        ".self_attn.dense": "attn_output",
        ".mlp.fc1": "ffn_up",
        ".mlp.fc2": "ffn_down",
        "final_layernorm": "output_norm",
        "lm_head": "output",
    },
    generated=FACTORS,
    flags_from_tensors={"qk_layernorm": "blk.*.attn_q_norm.weight"},
    block={"norm": "layer", "rope": "halves", "activation": "gelu_tanh", "gated": False, "parallel": True},
)

PHI3 = HALVES.derive(
    name="phi3",
    hf_classes=("Phi3ForCausalLM", "Phi3Model", "Phi4ForCausalLMV"),
    vocab=("sentencepiece", "bpe"),
    metadata={
        "rope.dimension_count": rotated_width,
        "rope.scaling.type": type_without_tensors,
        "rope.scaling.original_context_length": "original_max_position_embeddings",
        "rope.scaling.attn_factor": longrope_attention,
        "attention.sliding_window": lambda config: config.get("sliding_window") or 0,
    },
    defaults={
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "vocab_size": 32_064,
    },
    tensors={
        **dict.fromkeys(QKV),
        ".self_attn.qkv_proj": "attn_qkv",
        ".mlp.gate_proj": None,
        ".mlp.up_proj": None,
        ".mlp.gate_up_proj": "ffn_up",
    },
    generated=FACTORS,
)


def attention_factor(config: Config) -> float | None:
    """Return longrope's factor of cos and sin; published models have one number for short and long texts."""
    short, long = (rope_scaling(config, f"{length}_mscale") for length in ("short", "long"))
    if long is not None and long != short:
        raise ModelError(f"config.json has long_mscale = {long} and short_mscale = {short}; phimoe files have one")
    return None if short is None else float(short)


def phimoe_config(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the config; its longrope has the factor of cos and sin under two keys of its own, which are required."""
    context = {
        "max_position_embeddings": keys["context_length"],
        "original_max_position_embeddings": keys["rope.scaling.original_context_length"],
    }
    if not (settings := longrope_settings(keys, tensors)):
        return context
    factor = settings.pop("attention_factor")
    by_length = dict.fromkeys(("short_mscale", "long_mscale"), 1.0 if factor is None else factor)
    trained = context["original_max_position_embeddings"]
    return {**context, "rope_scaling": {**settings, **by_length, "original_max_position_embeddings": trained}}


PHIMOE = MIXTRAL.derive(
    name="phimoe",
    hf_classes=("PhimoeForCausalLM", "PhiMoEForCausalLM", "PhimoeModel"),
    metadata={
        "vocab_size": None,
        "rope.scaling.type": type_without_tensors,
        "rope.scaling.original_context_length": (
            "rope_scaling.original_max_position_embeddings|original_max_position_embeddings|max_position_embeddings"
        ),
        "rope.scaling.attn_factor": attention_factor,
        "attention.sliding_window": lambda config: config.get("sliding_window") or 0,
        "expert_router_jitter": UnlessUsual("router_jitter_noise", 0.01),
    },
    defaults={"intermediate_size": 6400, "num_local_experts": 16, "router_jitter_noise": 0.01, "vocab_size": 32_064},
    tensors={".mlp.router": "ffn_gate_inp", ".self_attn.q_proj": "attn_q", ".self_attn.k_proj": "attn_k"},
    legacy_names=("layers.{i}.mlp.router",),
    refused={"num_experts_per_tok": other_than(2)},  # its mixer chooses two
    generated=FACTORS,
    config_from_gguf=phimoe_config,
    flags_from_tensors={"lm_head_bias": "output.bias"},
    block={"norm": "layer", "rope": "halves", "scoring": "sparsemixer", "normalize_experts": False},
)
