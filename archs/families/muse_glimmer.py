"""Muse Glimmer (text): norms before and after each part, gated attention, windows in three of four layers and rope only
in those, queries, keys and embeddings normed without weights.

Norm weights are stored minus one except the last one. The factor of normed queries is stored in a norm of theirs.
Reference: transformers `models/muse_glimmer/`.
"""

from collections.abc import Iterable

import numpy as np

from archs.config import other_than
from archs.families.llama import LLAMA
from archs.rope import FACTORS
from archs.spec import Config, ConfigKeys, GgufKeys, TensorMap, Tensors
from archs.transforms import add_one
from quants import Tensor, from_array
from quants.errors import ModelError


def windowed(config: Config) -> list[bool]:
    """Return which layers are windowed, counted from the last if the config doesn't say."""
    count = config["num_hidden_layers"]
    layer_types = config.get("layer_types") or ["" if (count - 1 - i) % 4 else "full_attention" for i in range(count)]
    return [layer_type != "full_attention" for layer_type in layer_types]


def rotating(config: Config) -> list[bool] | None:
    """Return which layers rotate, if other than the windowed ones (llama.cpp drops it). Only the model's rotary
    settings give the base.
    """
    rotates = [bool(base) for base in config.get("layer_rope_theta") or []]
    return rotates if rotates and rotates != windowed(config) else None


def head_norms(config: Config) -> Iterable[Tensor]:
    """Return the norms of q and k: q's includes the factor."""
    for name, value in (("q", config["qk_scale_factor"]), ("k", 1.0)):
        weight = np.full(config["head_dim"], value, np.float32)
        for i in range(config["num_hidden_layers"]):
            yield from_array(f"blk.{i}.attn_{name}_norm.weight", weight)


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the factor of queries from their norms. Raises ModelError for norms with unequal weights."""
    count, base = keys["block_count"], keys["rope.freq_base"]
    values = {float(each) for i in range(count) for each in tensors[f"blk.{i}.attn_q_norm.weight"].float32()}
    ones = {float(each) for i in range(count) for each in tensors[f"blk.{i}.attn_k_norm.weight"].float32()}
    if len(values) != 1 or ones != {1.0}:
        raise ModelError("norms of queries and keys have weights, and are more than the one factor that a config has")
    windowed = keys["attention.sliding_window_pattern"]
    rotating = keys.get("attention.rope_pattern") or windowed
    return {
        "qk_scale_factor": float(str(np.float32(values.pop()))),
        "post_norm_eps": 1e-8,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in windowed],
        "layer_rope_theta": [base if each else 0 for each in rotating],
    }


MUSE_GLIMMER = LLAMA.derive(
    name="muse-glimmer",
    hf_classes=("MuseGlimmerForConditionalGeneration",),
    vocab=("bpe",),
    vocab_keys={"eot_token_id": "<|eot|>"},
    wrappers_refused=("MuseGlimmerForConditionalGeneration",),
    config_from_gguf=config_from_gguf,
    part=True,
    metadata={
        "rope.dimension_count": None,
        "vocab_size": None,
        "final_logit_softcapping": "final_logit_softcapping",
        "logit_scale": "output_multiplier",
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": windowed,
        "attention.rope_pattern": rotating,
    },
    defaults={
        "model_type": "muse_glimmer_text",
        "hidden_size": 6656,
        "intermediate_size": 19_968,
        "num_hidden_layers": 52,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "sliding_window": 2048,
        "final_logit_softcapping": 20.0,
        "qk_scale_factor": 3.87,
        "output_multiplier": 0.19611613513818404,
        "vocab_size": 202_048,
    },
    refused={"post_norm_eps": other_than(1e-8)},
    generated=(*FACTORS, head_norms),
    tensors={
        ".input_layernorm": TensorMap("attn_norm", add_one),
        ".self_attn.gate_proj": "attn_gate",
        ".post_attention_layernorm": TensorMap("post_attention_norm", add_one),
        ".pre_feedforward_layernorm": TensorMap("ffn_norm", add_one),
        ".post_feedforward_layernorm": TensorMap("post_ffw_norm", add_one),
    },
    absent={"final_logit_softcapping": 30.0},
    block={
        "rope_layers": "windowed",
        "window_period": 4,
        "post_norm_eps": 1e-8,
        "normed_embedding": True,
        "scales_windowed_rope": False,
    },
)
