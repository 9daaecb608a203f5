"""Mistral Small 3.1, Ministral 3 and Mistral 4, with or without their wrapper: Mistral's layers, or DeepSeek's (4).

If the config has `llama_4_scaling_beta`, queries grow with the logarithm of their position in original contexts, and
YaRN is always used. Reference: transformers `models/ministral3/`, `models/mistral3/`, `models/mistral4/`.
"""

from archs.config import rope_scaling
from archs.experts import SEPARATE_EXPERTS
from archs.families.deepseek2 import DEEPSEEK_V3, attn_factor, v3_config_from_gguf
from archs.families.llama import MISTRAL
from archs.hparams.model_hparams import growing_queries
from archs.rope import yarn_settings
from archs.spec import Architecture, Computed, Config, ConfigKeys, GgufKeys, Tensors, in_layers
from archs.tensor_maps import becomes

YARN = {
    "rope_type": "yarn",
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def of_yarn(key: str) -> Computed:
    def value(config: Config) -> object:
        return rope_scaling(config, key) if rope_scaling(config, "rope_type") == "yarn" else None

    return value


def config_from_gguf(keys: GgufKeys, tensors: Tensors, scale: float = 1) -> ConfigKeys:
    """Return rotary settings with those of YaRN and the queries' growth. scale: see `yarn_settings`."""
    settings: ConfigKeys = {
        "rope_type": "default",
        "rope_theta": keys["rope.freq_base"],
        "llama_4_scaling_beta": keys.get("attention.temperature_scale"),
        "original_max_position_embeddings": keys["context_length"],
    }
    if "rope.scaling.type" in keys:
        settings |= yarn_settings(keys, scale)
    if (dynamic := keys.stored("rope.scaling.dynamic_factor")) is not None:
        settings |= {"rope_type": "dynamic", "factor": dynamic}
    return {"rope_parameters": settings, "rope_scaling": None}


MISTRAL3 = MISTRAL.derive(
    name="mistral3",
    hf_classes=("Mistral3ForConditionalGeneration",),
    # the wrapper's class does not tell which text model is in it
    variant=lambda config: MISTRAL4 if config.get("model_type") == "mistral4" else None,
    config_from_gguf=becomes("Ministral3ForCausalLM"),
    block={"query_scale": growing_queries},
)

MINISTRAL3 = MISTRAL3.derive(
    hf_classes=("Ministral3ForCausalLM", "Ministral3Model"),
    config_from_gguf=config_from_gguf,
    metadata={
        "rope.scaling.attn_factor": attn_factor,
        "rope.scaling.yarn_log_multiplier": of_yarn("mscale_all_dim"),
        "attention.temperature_scale": lambda config: of_yarn("llama_4_scaling_beta")(config) or None,
    },
    defaults={
        "num_hidden_layers": 34,
        "head_dim": 128,
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "rope_scaling": YARN | {"rope_theta": 1_000_000.0, "factor": 16.0, "original_max_position_embeddings": 16_384},
        "sliding_window": None,
        "vocab_size": 131_072,
    },
)

MISTRAL4: Architecture = DEEPSEEK_V3.derive(
    name="mistral4",
    variant=None,
    hf_classes=("Mistral4ForCausalLM", "Mistral4Model"),
    metadata={
        "attention.temperature_scale": of_yarn("llama_4_scaling_beta"),  # llama.cpp drops it
        "expert_gating_func": None,
    },
    defaults={
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "max_position_embeddings": 1_048_576,
        "first_k_dense_replace": 0,
        "kv_lora_rank": 256,
        "q_lora_rank": 1024,
        "qk_nope_head_dim": 64,
        "n_routed_experts": 128,
        "num_experts_per_tok": 4,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "rope_scaling": YARN | {"rope_theta": 10_000.0, "factor": 128.0, "original_max_position_embeddings": 8192},
        "vocab_size": 131_072,
    },
    config_from_gguf=lambda keys, tensors: {
        **v3_config_from_gguf(keys, tensors),
        **config_from_gguf(keys, tensors, scale=10),
    },
    legacy_names=tuple(in_layers(SEPARATE_EXPERTS)),
    refused={"n_group": lambda count: (count or 1) > 1},
    tensors={".mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight"},
    block={"query_scale": growing_queries, "hparams_hook": None},
)
