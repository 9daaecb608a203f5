"""Hunyuan (dense): Llama's layers with a norm on each head of q and k after rotation. Its rope scaling "dynamic" with
an `alpha` is a larger base, whatever the text's length; llama.cpp then writes the extended context. The end of a text
is `eos_token_id` of generation_config.json and config.json; run with transformers 5 llama.cpp writes 3 instead, the
default of the config class's key `eod_token_id`, which checkpoints omit.

Hunyuan-VL and HunyuanOCR (text): the dense Hunyuan's layers; multi-section rope of four sections for images. The file
has the base before scaling, and the factor (`rope.scaling.alpha`). Hunyuan A13B: the dense Hunyuan's layers with routed
experts and a shared one. Published configs list a number for each layer, all equal. Hunyuan 3 (Hy3): Qwen3's attention,
sigmoid routing with a correction bias after leading dense layers, a shared expert, MTP layers. Reference: transformers
`models/hunyuan_v1_dense/`, `models/hunyuan_v1_moe/`, `models/hy_v3/`, `models/hunyuan_vl/`.
"""

from archs.config import head_dim, rope_scaling, unless_tied
from archs.experts import FUSED_EXPERTS, SEPARATE_EXPERTS, SHARED, always, net_types, shared_width
from archs.families.llama import HALVES
from archs.hparams.config_keys import ROPE, SIZE
from archs.hparams.file_keys import Keys, with_experts
from archs.hparams.model_hparams import HParams
from archs.layer_types import EXPERTS_OR_DENSE
from archs.rope import SCALING
from archs.spec import Computed, Config, ConfigKeys, GgufKeys, TensorMap, Tensors
from archs.tensor_maps import MTP_KEYS, MTP_TENSORS, gated_net, head_norms
from archs.typed_json import Either, Fields, ListOf
from quants.errors import ModelError

STRETCHED = {  # written by llama.cpp for models with scaled rope
    "context_length": 256 * 1024,
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "rope.scaling.original_context_length": 256 * 1024,
    "rope.scaling.dynamic_factor": None,
}


def base(config: Config) -> float:
    alpha, width = rope_scaling(config, "alpha"), head_dim(config)
    return float(config["rope_theta"] * (alpha ** (width / (width - 2)) if alpha and width > 2 else 1.0))


def if_stretched(key: str, value: object) -> Computed:
    """Return the value for models with scaled rope; else that of `key`, as for other models."""
    other = {**SCALING, "context_length": lambda config: config["max_position_embeddings"]}[key]
    return lambda config: value if rope_scaling(config, "alpha") else other(config) if callable(other) else None


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the rotary settings, with a scaled base marked as such."""
    stretched = {"rope_type": "dynamic", "alpha": 1.0, "factor": 1.0}
    return {"rope_scaling": stretched} if keys.get("rope.scaling.type") == "none" else {}


def hparams_hook(keys: Keys, usual: HParams) -> HParams:
    """Apply `alpha` in files whose base is the unscaled one."""
    alpha = float(keys.get("rope.scaling.alpha"))
    if not alpha:
        return usual
    return usual.with_layers(
        lambda index, own: {"rope_base": own.rope_base * alpha ** (own.key_width / (own.key_width - 2))}
    )


HUNYUAN_DENSE = HALVES.derive(
    name="hunyuan-dense",
    hf_classes=("HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Model"),
    metadata={"rope.freq_base": base, **{key: if_stretched(key, value) for key, value in STRETCHED.items()}},
    config_from_gguf=config_from_gguf,
    defaults={
        "model_type": "hunyuan_v1_dense",
        "intermediate_size": 11_008,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "vocab_size": 290_943,
    },
    tensors={"lm_head": TensorMap(unless_tied("output")), **head_norms("query_layernorm", "key_layernorm")},
    block={"qkv_steps": ("clamp", "rope", "norm"), "hparams_hook": hparams_hook},
)


def vl_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the scaled rotation with sections."""
    rotary = {
        "rope_theta": keys["rope.freq_base"],
        "alpha": keys.stored("rope.scaling.alpha"),
        "mrope_section": keys["rope.dimension_sections"],
        "factor": 1.0,
    }
    return {
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "dynamic" if rotary["alpha"] else "default", **rotary},
    }


HUNYUAN_VL = HUNYUAN_DENSE.derive(
    name="hunyuan_vl",
    hf_classes=("HunYuanVLForConditionalGeneration",),
    keys={"rope_scaling": Fields({**ROPE, "xdrope_section": ROPE["mrope_section"]})},
    metadata={
        "rope.freq_base": "rope_theta",
        "context_length": "max_position_embeddings",
        "rope.scaling.original_context_length": "max_position_embeddings",
        "rope.scaling.alpha": "rope_scaling.alpha",
        "rope.scaling.attn_factor": None,
        "rope.dimension_sections": lambda config: (
            rope_scaling(config, "xdrope_section", "mrope_section") or config.get("mrope_section")
        ),
    },
    defaults={"tie_word_embeddings": True},
    config_from_gguf=vl_from_gguf,
)


def same_everywhere(key: str) -> Computed:
    """Return a number that config.json may list for each layer. Raises ModelError if layers differ."""

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
        "model_type": "hunyuan_v1_moe",
        "num_experts": 1,
        "moe_topk": 1,
        "num_shared_expert": 1,
        "moe_intermediate_size": lambda config: config["intermediate_size"],
    },
    config_from_gguf=lambda keys, tensors: {
        **config_from_gguf(keys, tensors),
        "num_experts": keys["expert_count"],
        "moe_topk": keys["expert_used_count"],
        "moe_intermediate_size": keys["expert_feed_forward_length"],
        "num_shared_expert": keys["expert_shared_count"],
    },
    tensors={".mlp.gate.wg": "ffn_gate_inp", **SEPARATE_EXPERTS, **gated_net("mlp.shared_mlp", "_shexp")},
    block={"normalize_experts": True, "hparams_hook": None},
)

HY_V3 = HALVES.derive(
    name="hy_v3",
    hf_classes=("HYV3ForCausalLM",),
    metadata={
        **MTP_KEYS,
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": shared_width,
        "expert_weights_scale": "router_scaling_factor",
        "expert_weights_norm": lambda config: True,
        "expert_gating_func": always("sigmoid"),
    },
    defaults={
        "model_type": "hy_v3",
        "intermediate_size": 13_312,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 11_158_840.0,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1536,
        "router_scaling_factor": 2.826,
        "num_nextn_predict_layers": 0,
        "vocab_size": 120_832,
    },
    absent={"expert_weights_norm": with_experts(False)},
    refused={"route_norm": False},
    config_from_gguf=net_types,
    tensors={
        **head_norms(),
        **FUSED_EXPERTS,
        ".mlp.gate": "ffn_gate_inp",
        ".mlp.router.gate": "ffn_gate_inp",
        ".mlp.e_score_correction_bias": "exp_probs_b",
        ".mlp.expert_bias": "exp_probs_b",
        **SEPARATE_EXPERTS,
        **SHARED,
        **gated_net("mlp.shared_mlp", "_shexp"),
        **MTP_TENSORS,
        ".final_layernorm": "nextn.shared_head_norm",
    },
    layers_vary=True,
    block={"scoring": "sigmoid", "normalize_experts": True, "net": EXPERTS_OR_DENSE},
)
