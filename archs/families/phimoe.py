"""Phi-3.5-MoE: layer norms and biases, two experts a token chosen one after the other by a sparse mixer.

Reference: transformers `models/phimoe/modeling_phimoe.py`. The norms are layer norms, though their key says RMS.
"""

from archs.config import other_than, rope_scaling, unless_usual
from archs.experts import FUSED_EXPERTS
from archs.families.mixtral import MIXTRAL
from archs.rope import longrope_factors, type_without_tensors
from archs.spec import Config
from quants.errors import ModelError


def attention_factor(config: Config) -> float | None:
    """What longrope multiplies cos and sin by; all published models have one number for texts short and long."""
    short, long = (rope_scaling(config, f"{length}_mscale") for length in ("short", "long"))
    if long is not None and long != short:
        raise ModelError(f"config.json has long_mscale = {long} beside short_mscale = {short}; phimoe files have one")
    return None if short is None else float(short)


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
        "expert_router_jitter": unless_usual("router_jitter_noise", 0.01),
    },
    defaults={"intermediate_size": 6400, "num_local_experts": 16, "router_jitter_noise": 0.01, "vocab_size": 32_064},
    tensors={
        "layers.{i}.mlp.router": "blk.{i}.ffn_gate_inp",
        "layers.{i}.self_attn.q_proj": "blk.{i}.attn_q",
        "layers.{i}.self_attn.k_proj": "blk.{i}.attn_k",
    },
    legacy_names=(*FUSED_EXPERTS, "layers.{i}.mlp.gate", "layers.{i}.mlp.router"),
    refused={"num_experts_per_tok": other_than(2)},  # its mixer chooses two
    generated=(longrope_factors,),
    config_from_gguf=lambda keys, tensors: {
        "router_jitter_noise": keys.get("expert_router_jitter", 0.01),
        "max_position_embeddings": keys["context_length"],
        "original_max_position_embeddings": keys["rope.scaling.original_context_length"],
    },
    flags_from_tensors={"lm_head_bias": "output.bias"},
    block={"norm": "layer", "rope": "halves", "scoring": "sparsemixer", "normalize_experts": False},
)
