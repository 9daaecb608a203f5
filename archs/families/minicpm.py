"""MiniCPM: Llama's layers with scales on embedding, residual and logits.

MiniCPM 3: the same scales around DeepSeek V2's latent attention, whose latents are widened by one matrix, as stored;
halves rotate. llama.cpp computes with the scales of the 4B model; ours adds keys for others. PLM: such latent attention
without scales, adjacent pairs rotate; an ungated squared ReLU. Reference: the code of MiniCPM's checkpoints;
transformers `models/minicpm3/`; for PLM llama.cpp's graph.
"""

import math

from archs.config import lookup, unless_tied
from archs.families.deepseek2 import DEEPSEEK_V2, log_multiplier
from archs.families.llama import HALVES, LLAMA
from archs.hparams.file_keys import Derived
from archs.layer_types import MLA
from archs.rope import FACTORS, attention_factor, type_without_tensors, unusual_base, yarn_temperature
from archs.spec import Computed, Config, ConfigKeys, GgufKeys, TensorMap, Tensors
from quants.errors import ModelError


def residual_scale(config: Config) -> float:
    """Return the factor of each part's result."""
    root = math.sqrt(config["num_hidden_layers"])
    return float(config.get("scale_depth") or root) / root


def logit_scale(config: Config) -> float:
    """Return the divisor of logits."""
    return float(config["hidden_size"] / (config.get("dim_model_base") or config["hidden_size"]))


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    return {
        "scale_emb": keys["embedding_scale"],
        "scale_depth": keys["residual_scale"] * keys["block_count"] ** 0.5,
        "dim_model_base": keys["embedding_length"] / keys["logit_scale"],
    }


OF_4B = {  # default scales
    "embedding_scale": 12.0,
    "residual_scale": Derived("1.4 / √block_count", lambda keys: 1.4 / math.sqrt(max(1, keys.layer_count))),
    "logit_scale": Derived("embedding_length / 256", lambda keys: keys.need("embedding_length") / 256),
}

MINICPM = LLAMA.derive(
    name="minicpm",
    hf_classes=("MiniCPMForCausalLM",),
    vocab=("sentencepiece", "bpe"),
    metadata={
        "vocab_size": None,
        "rope.dimension_count": None,
        "embedding_scale": "scale_emb",
        "residual_scale": residual_scale,
        "logit_scale": logit_scale,
    },
    absent=OF_4B,
    defaults={"scale_emb": 1.0, "scale_depth": 1.0, "dim_model_base": 1, "head_dim": None},
    config_from_gguf=config_from_gguf,
    block={"logit_scale": "divide"},
)


def unless_of_4b(key: str, value: Computed, usual: Computed) -> dict[str, Computed]:
    """Return a key if its value is not that of the 4B model, llama.cpp's default."""
    return {key: lambda config: None if value(config) == usual(config) else value(config)}


def attention_scale(config: Config) -> float | None:
    """Return the score factor times the square of YaRN's attention factor for all dimensions, if there is one
    (llama.cpp drops it).
    """
    if (multiplier := log_multiplier(config)) is None:
        return None
    width = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    return float(width**-0.5 * yarn_temperature(config, 10 * multiplier) ** 2)


def config_from_gguf_3(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    layers, width = keys["block_count"], keys["embedding_length"]
    rows, heads = tensors["blk.0.attn_kv_b.weight"].shape[0], keys["attention.head_count"]
    plain = keys["attention.key_length"] - keys["rope.dimension_count"]
    return {
        "scale_emb": keys["embedding_scale"],
        "qk_nope_head_dim": plain,
        "v_head_dim": rows // heads - plain,
        "scale_depth": keys["residual_scale"] * math.sqrt(layers),
        "dim_model_base": round(width / keys["logit_scale"]),
        "head_dim": None,
    }


MINICPM3 = HALVES.derive(
    name="minicpm3",
    hf_classes=("MiniCPM3ForCausalLM",),
    vocab=("sentencepiece", "bpe"),
    metadata={
        "vocab_size": "vocab_size",
        "attention.q_lora_rank": "q_lora_rank",
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.key_length": lambda config: config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length": None,
        "rope.dimension_count": "qk_rope_head_dim",
        "attention.latent_norm_epsilon": DEEPSEEK_V2.metadata["attention.latent_norm_epsilon"],
        "rope.freq_base": unusual_base,
        "rope.scaling.attn_factor": attention_factor,
        "attention.scale": attention_scale,
        "rope.scaling.type": type_without_tensors,
        **unless_of_4b("embedding_scale", lambda config: float(config["scale_emb"]), lambda config: 12.0),
        **unless_of_4b("residual_scale", residual_scale, lambda config: 1.4 / math.sqrt(config["num_hidden_layers"])),
        **unless_of_4b("logit_scale", logit_scale, lambda config: config["hidden_size"] / 256),
    },
    defaults={
        "hidden_size": 2560,
        "intermediate_size": 6400,
        "num_hidden_layers": 62,
        "num_attention_heads": 40,
        "head_dim": lambda config: config["qk_rope_head_dim"],
        "rms_norm_eps": 1e-5,
        "kv_lora_rank": 256,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "scale_emb": 12.0,
        "scale_depth": 1.4,
        "dim_model_base": 256,
        "tie_word_embeddings": True,
        "vocab_size": 73_448,
    },
    tensors={
        **{name: target for name, target in DEEPSEEK_V2.tensors.items() if ".self_attn." in name},
        ".self_attn.k_proj": None,
        ".self_attn.v_proj": None,
        ".self_attn.kv_b_proj": "attn_kv_b",
        "lm_head": TensorMap(unless_tied("output")),
    },
    config_from_gguf=config_from_gguf_3,
    generated=FACTORS,
    layers_vary=True,
    flags_from_tensors={"attention_bias": "blk.*.attn_kv_a_mqa.bias"},
    absent=OF_4B,
    block={"logit_scale": "divide", "mixer": MLA},
)


def groups(config: Config) -> int | None:
    """Return key-value heads, which are unused here. Raises ModelError for an impossible number."""
    heads, count = (lookup(config, f"num_{each}_heads") for each in ("attention", "key_value"))
    if heads and count and heads % count:
        raise ModelError(f"config.json says {heads} heads and {count} of keys and values; they cannot share these")
    return None if count is None else int(count)


PLM = HALVES.derive(
    name="plm",
    hf_classes=("PLMForCausalLM",),
    metadata={
        "vocab_size": "vocab_size",
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.head_count_kv": groups,
        "attention.key_length": MINICPM3.metadata["attention.key_length"],
        "attention.value_length": "v_head_dim",
        "rope.dimension_count": "qk_rope_head_dim",
        "attention.latent_norm_epsilon": DEEPSEEK_V2.metadata["attention.latent_norm_epsilon"],
    },
    defaults={"head_dim": lambda config: config["qk_rope_head_dim"]},
    refused={"q_lora_rank": lambda rank: rank is not None},
    tensors={
        **{name: target for name, target in MINICPM3.tensors.items() if ".self_attn." in name},
        ".self_attn.k_proj": None,
        ".self_attn.v_proj": None,
        ".mlp.gate_proj": None,
        "lm_head": TensorMap(unless_tied("output")),
    },
    config_from_gguf=lambda keys, tensors: {
        "qk_nope_head_dim": keys["attention.key_length"] - keys["rope.dimension_count"],
        "q_lora_rank": None,
        "head_dim": None,
        "num_key_value_heads": keys["attention.head_count_kv"],
    },
    layers_vary=True,
    block={"rope": "adjacent", "activation": "relu2", "gated": False, "mixer": MLA},
)
