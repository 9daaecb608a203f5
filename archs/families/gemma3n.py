"""Gemma 3n (text): alternating updates of four copies, low-rank residuals, sparse activations in the first layers.

Reference: transformers `models/gemma3n/modeling_gemma3n.py`. As in Gemma 4 each layer gets an input apart, and the last
layers share keys and values of earlier ones. Tokens without such an input (those of pictures and sounds) get zeros.
"""

import math
from statistics import NormalDist

import numpy as np

from archs.config import windowed_layers
from archs.config_keys import NET_WIDTH
from archs.families.gemma4 import GEMMA4
from archs.rope import SCALING, llama3_freqs, longrope_factors
from archs.spec import COMMON, Config, TensorMap
from archs.transforms import concatenated, zeros
from archs.typed_json import Either, ListOf
from quants import Tensor


def sparsity(config: Config) -> list[float]:
    """Of each layer, which multiple of the standard deviation an activation has to exceed; as torch computes it."""
    shares, count = config.get("activation_sparsity_pattern"), config["num_hidden_layers"]
    if shares is None:
        sparse = 10 if count > 10 else 0
        shares = [0.95] * sparse + [0.0] * (count - sparse)
    return [_multiple(share) for share in (shares if isinstance(shares, list) else [shares] * count)]


def _multiple(share: float) -> float:
    if share <= 0:
        return -math.inf
    at = np.float32(2) * np.float32(share) - np.float32(1)
    root = np.float32(math.sqrt(2))
    return float(np.float32(NormalDist().inv_cdf((1 + float(at)) / 2) / math.sqrt(2)) * root)


def feed_forward_lengths(config: Config) -> list[int]:
    width = config["intermediate_size"]
    return list(width) if isinstance(width, list) else [width] * config["num_hidden_layers"]


def for_each_token(tensor: Tensor, config: Config) -> Tensor:
    """Zeros below, for tokens that the table has no row for."""
    missing = int(config["vocab_size"]) - tensor.shape[0]
    if missing <= 0:
        return tensor
    return concatenated([tensor, zeros(tensor, missing)], tensor.name)


GEMMA3N = GEMMA4.derive(
    name="gemma3n", hf_classes=("Gemma3nForConditionalGeneration", "Gemma3nForCausalLM", "Gemma3nTextModel"),
    vocab=("sentencepiece", "bpe"),
    generated=(llama3_freqs, longrope_factors),
    keys={"intermediate_size": Either((NET_WIDTH, ListOf(NET_WIDTH, per_layer=True)))},
    float32=("*.altup_correct_coef.weight", "*.altup_predict_coef.weight"),
    metadata={
        **SCALING,
        **{key: COMMON[key] for key in ("attention.head_count_kv", "attention.key_length", "attention.value_length")},
        **dict.fromkeys(key for key in GEMMA4.metadata if key.endswith("_swa") and key != "rope.freq_base_swa"),
        "feed_forward_length": feed_forward_lengths,
        "attention.sliding_window_pattern": lambda config: windowed_layers(config, lambda layer: (layer + 1) % 5 != 0),
        "rope.dimension_count": None, "expert_used_count": None, "expert_feed_forward_length": None,
        "altup.active_idx": "altup_active_idx",
        "altup.num_inputs": "altup_num_inputs",
        "activation_sparsity_scale": sparsity,
    },
    defaults={
        "hidden_size": 2048, "intermediate_size": 16_384, "num_hidden_layers": 35, "num_key_value_heads": 2,
        "max_position_embeddings": 32_768, "rope_scaling": None, "partial_rotary_factor": None,
        "final_logit_softcapping": 30.0, "altup_active_idx": 0, "altup_num_inputs": 4, "num_kv_shared_layers": 15,
        "vocab_size": 262_400,
    },
    refused={"altup_correct_scale": False, "altup_num_inputs": lambda count: count != 4},
    tensors={
        "embed_tokens": TensorMap("token_embd", for_each_token),
        "embed_tokens_per_layer": TensorMap("per_layer_token_embd", for_each_token),
        "altup_projections.{e}": TensorMap("altup_proj", stack=True),
        "altup_unembed_projections.{e}": TensorMap("altup_unembd_proj", stack=True),
        ".altup.correct_output_scale": "altup_correct_scale.weight", ".altup.correction_coefs": "altup_correct_coef",
        ".altup.prediction_coefs": "altup_predict_coef", ".altup.modality_router": "altup_router",
        ".altup.router_norm": "altup_router_norm", ".laurel.linear_left": "laurel_l",
        ".laurel.linear_right": "laurel_r", ".laurel.post_laurel_norm": "laurel_post_norm",
    },
)  # fmt: skip
