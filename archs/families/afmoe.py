"""AFMoE (Trinity): norms before and after each part, gated attention, windows in three of four layers and rope in those
alone, experts after leading dense layers.

Reference: transformers `models/afmoe/modeling_afmoe.py`. With `mup_enabled` the embedding is scaled by the square root
of its width, which files without `embedding_scale` mean. The chosen experts' weights always sum to one.
"""

from archs.config import changed, unusual_windows
from archs.experts import SEPARATE_EXPERTS, SHARED
from archs.families.llama import LLAMA
from archs.hparams.file_keys import with_experts
from archs.tensor_maps import head_norms

PERIOD = 4  # default without `attention.sliding_window_pattern`

AFMOE = LLAMA.derive(
    name="afmoe",
    hf_classes=("AfmoeForCausalLM",),
    metadata={
        "attention.sliding_window": "sliding_window",
        "expert_count": "num_experts|num_local_experts",
        "attention.sliding_window_pattern": lambda config: unusual_windows(PERIOD)(  # llama.cpp drops it
            changed(config, sliding_window_pattern=config["global_attn_every_n_layers"])
        ),
        "embedding_scale": lambda config: None if config["mup_enabled"] else 1.0,  # llama.cpp drops it
        "expert_group_count": "n_group",
        "expert_group_used_count": "n_group",  # transformers considers all groups
        "expert_gating_func": lambda config: 2 if config.get("score_func") else None,
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "num_shared_experts",
        "expert_weights_scale": "route_scale",
        "expert_weights_norm": lambda config: None if config.get("route_norm") is None else True,
        "leading_dense_block_count": "num_dense_layers",
    },
    defaults={
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 16,
        "head_dim": 128,
        "max_position_embeddings": 16_384,
        "rms_norm_eps": 1e-5,
        "sliding_window": 1024,
        "global_attn_every_n_layers": PERIOD,
        "mup_enabled": False,
        "moe_intermediate_size": 1408,
        "num_dense_layers": 1,
        "num_experts": 64,
        "num_experts_per_tok": 6,
        "num_shared_experts": 2,
        "route_scale": 1.0,
        "vocab_size": 200_192,
    },
    absent={"expert_weights_norm": with_experts(False)},
    config_from_gguf=lambda keys, tensors: {
        "mup_enabled": "embedding_scale" not in keys,
        "topk_group": keys["expert_group_used_count"],
        **({"route_norm": True} if "expert_weights_norm" in keys else {}),
        **({"score_func": "sigmoid"} if "expert_gating_func" in keys else {}),
    },
    refused={"score_func": "softmax"},
    tensors={
        ".self_attn.q_proj": "attn_q",
        ".self_attn.k_proj": "attn_k",
        ".self_attn.gate_proj": "attn_gate",
        **head_norms(),
        ".post_attention_layernorm": "post_attention_norm",
        ".pre_mlp_layernorm": "ffn_norm",
        ".post_mlp_layernorm": "post_ffw_norm",
        ".mlp.router.gate": "ffn_gate_inp",
        ".mlp.expert_bias": "exp_probs_b.bias",
        **SEPARATE_EXPERTS,
        **SHARED,
    },
    layers_vary=True,
    block={
        "rope": "halves",
        "window_period": PERIOD,
        "rope_layers": "windowed",
        "rope_period": PERIOD,
        "scoring": "sigmoid",
        "embedding_scale": "sqrt_width",
    },
)
