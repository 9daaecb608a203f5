"""dots3-note (text): DeepSeek V3.2's layers with a gate for each head and a norm on the rotated key; most have a window
in place of the indexer, with heads and latents of their own.

The factors of latents are folded into their norms. The MTP layer has an embedding of its own. Encoders are left out.
Reference: transformers `models/dots3_note/`; llama.cpp's converter, whose runtime rotates halves in the indexer, so
that texts longer than the indexer's limit give other results there.
"""

import math
import re
from typing import Any

import numpy as np

from archs.config import other_than, rotary_of_all, windowed_layers
from archs.families.deepseek32 import DEEPSEEK_V32
from archs.families.deepseek32 import config_from_gguf as v32_from_gguf
from archs.rope import scaled_by_type
from archs.spec import Config, ConfigKeys, GgufKeys, TensorMap, Tensors
from archs.transforms import Invertible, chain, head_rows, scaled_rows, transpose
from quants import Tensor
from quants.errors import ModelError

PLACE = re.compile(r"(.*layers\.(\d+)\.self_attn\.)(q_a_layernorm|kv_a_layernorm|kv_b_proj)\.weight")
WIDTHS = ("num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
LAYER = re.compile(r"blk\.(\d+)\..*")
MTP = "mtp.embed_tokens.weight"


def windowed(config: Config) -> list[bool]:
    """Return which layers have a window instead of an indexer."""
    return windowed_layers(config, lambda layer: layer >= 2 and layer % 4 != 1)


def of_windows(config: Config) -> dict[str, int]:
    """Return the settings of windowed layers that transformers saves separately, under published names."""
    saved, local = config.get("per_layer_config") or {}, windowed(config)
    own = next((own for i, own in saved.items() if local[int(i)]), None)
    return {} if own is None else {f"swa_{key}": own.get(key, config[key]) for key in WIDTHS}


def prepare(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return the tensors with the MTP layer's embedding in that layer, factors in norms, matrices by layer type."""
    count, named = config["num_hidden_layers"], {}
    mtp_layers = int(any(name.endswith(MTP) for name in tensors))
    config = {**config, "num_nextn_predict_layers": mtp_layers, **of_windows(config)}
    config |= rotary_of_all(config) if any(windowed(config)) else {}
    local = [*windowed(config), *[True] * mtp_layers]
    for name, tensor in tensors.items():
        if name.endswith(MTP):
            name = f"{name.removesuffix(MTP)}layers.{count}.embed_tokens.weight"
        if (place := PLACE.fullmatch(name)) and int(place[2]) < len(local):
            own = "swa_" if local[int(place[2])] else ""
            if place[3] == "kv_b_proj":
                name = f"{place[1]}{own}kv_b_proj.weight"
            elif config.get("apply_mla_qkv_lora_rescale", True):
                rank = config["q_lora_rank"] if place[3][0] == "q" else config[f"{own}kv_lora_rank"]
                tensor = factor(tensor, rank)(tensor, config)
        named[name] = tensor
    return config, named


def published(config: Config, tensors: Tensors) -> Tensors:
    """Undo `prepare`."""
    last, local, named = config["num_hidden_layers"], windowed(config), {}
    local = [*local, *[True] * config["num_nextn_predict_layers"]]
    for name, tensor in tensors.items():
        name = f"model.{MTP}" if name == f"model.layers.{last}.embed_tokens.weight" else name
        if (place := PLACE.fullmatch(name.replace("swa_kv_b_proj", "kv_b_proj"))) and place[3] != "kv_b_proj":
            own = "swa_" if local[int(place[2])] else ""
            rank = config["q_lora_rank"] if place[3][0] == "q" else config[f"{own}kv_lora_rank"]
            tensor = factor(tensor, rank).invert(tensor, config)
        name = place[0] if place else name
        named[name] = tensor.renamed(name)
    return named


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return widths of both layer types by published names. Raises ModelError if layers of a type differ."""
    count = keys["block_count"] - keys.get("nextn_predict_layers")
    local = keys["attention.sliding_window_pattern"]
    all_heads: Any = keys["attention.head_count"]
    all_heads = all_heads if isinstance(all_heads, list) else [all_heads] * count
    full, own = (
        {n for n, each in zip(all_heads, local, strict=False) if each == is_local} for is_local in (False, True)
    )
    if len(full) > 1 or len(own) > 1:
        raise ModelError("its layers of one type have several numbers of heads; a config has one for each type")
    heads, rank = max(full, default=max(own, default=0)), keys["attention.kv_lora_rank_swa"]
    return {
        **v32_from_gguf(keys, tensors),
        **scaled_by_type(keys, "indexed_attention"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": keys["attention.key_length_mla"],
        "layer_types": ["sliding_attention" if each else "full_attention" for each in local],
        "swa_num_attention_heads": max(own, default=heads),
        "swa_num_key_value_heads": max(own, default=heads),
        "swa_q_lora_rank": keys["attention.q_lora_rank"],
        "swa_kv_lora_rank": rank,
        "swa_head_dim": keys["attention.key_length_mla_swa"],
        "swa_qk_nope_head_dim": keys["attention.key_length_mla_swa"] + rank - keys["attention.key_length_swa"],
        "swa_qk_rope_head_dim": keys["attention.key_length_swa"] - rank,
        "swa_v_head_dim": keys["attention.value_length_mla_swa"],
        "swa_rope_theta": keys["rope.freq_base_swa"],
        "moe_shared_expert_intermediate_size": shared_width(keys, tensors),
        "num_nextn_predict_layers": keys.get("nextn_predict_layers"),
    }


def shared_width(keys: GgufKeys, tensors: Tensors) -> int:
    """Return the width of each shared expert."""
    widths = (tensor.shape[0] for name, tensor in tensors.items() if name.endswith(".ffn_up_shexp.weight"))
    return next(widths, keys["expert_feed_forward_length"]) // (keys.get("expert_shared_count") or 1)


def factor(tensor: Tensor, rank: int) -> Invertible:
    """Return the factor of a norm of latents. rank: the width of the latents."""
    return scaled_rows(lambda config: np.full(tensor.shape[0], math.sqrt(config["hidden_size"] / rank), np.float32))


def other_type(tensors: Tensors) -> list[str]:
    """Return names of matrices of the other layer type: those with an indexer, and those without."""
    layers = {LAYER.sub(r"\1", name) for name in tensors if LAYER.match(name)}
    full = {LAYER.sub(r"\1", name) for name in tensors if name.endswith(".indexer.proj.weight")}
    return [f"layers.{i}.self_attn.{'swa_' if i in full else ''}kv_b_proj" for i in layers]


def heads(config: Config) -> list[int]:
    """Return the heads of each layer, MTP layers included."""
    local = [*windowed(config), *[True] * config["num_nextn_predict_layers"]]
    return [config["swa_num_attention_heads" if each else "num_attention_heads"] for each in local]


DOTS3 = DEEPSEEK_V32.derive(
    name="dots3note",
    hf_classes=("Dots3NoteForCausalLM", "Dots3NoteForConditionalGeneration", "Dots3NoteTextForCausalLM"),
    vocab_keys={"eot_token_id": "<|endofassistant|>"},
    prepare=prepare,
    config_from_gguf=config_from_gguf,
    prepare_export=published,
    legacy_names=other_type,
    metadata={
        "attention.head_count": heads,
        "attention.latent_norm_epsilon": None,
        "attention.sliding_window": "sliding_window|sliding_window_size",
        "attention.sliding_window_pattern": windowed,
        "attention.kv_lora_rank_swa": "swa_kv_lora_rank",
        "attention.value_length_swa": "swa_kv_lora_rank",
        "attention.key_length_swa": lambda config: config["swa_kv_lora_rank"] + config["swa_qk_rope_head_dim"],
        "attention.key_length_mla_swa": lambda config: config["swa_qk_nope_head_dim"] + config["swa_qk_rope_head_dim"],
        "attention.value_length_mla_swa": "swa_v_head_dim",
        "attention.indexer.types": lambda config: [not each for each in windowed(config)],
        "rope.freq_base_swa": "rope_local_base_freq|swa_rope_theta",
    },
    defaults={
        "model_type": "dots3_note_text",
        "hidden_size": 5120,
        "intermediate_size": 13_824,
        "num_hidden_layers": 46,
        "max_position_embeddings": 524_288,
        "rms_norm_eps": 1e-5,
        "q_lora_rank": 1024,
        "moe_intermediate_size": 1536,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "rope_theta": 80_000_000.0,
        "sliding_window_size": 512,
        "swa_num_attention_heads": 64,
        "swa_q_lora_rank": 1024,
        "swa_kv_lora_rank": 1024,
        "swa_qk_nope_head_dim": 192,
        "swa_qk_rope_head_dim": 64,
        "swa_v_head_dim": 128,
        "swa_rope_theta": 50_000.0,
        "vocab_size": 152_064,
    },
    refused={
        "use_dsa": False,
        "k_rope_only_layernorm": False,
        "use_dynamic_rsf": True,
        "moe_gating_fp32": True,
        "use_sliding_window": False,
        "attention_gate_type": other_than("headwise"),
        "swa_attention_gate_type": other_than("headwise"),
    },
    tensors={
        ".self_attn.k_rope_only_layernorm": "attn_k_norm",
        ".self_attn.g_proj": "attn_gate",
        ".self_attn.swa_kv_b_proj": (
            TensorMap("attn_k_b", chain(head_rows("swa_num_attention_heads", "", "swa_qk_nope_head_dim"), transpose)),
            TensorMap(
                "attn_v_b",
                head_rows("swa_num_attention_heads", "swa_qk_nope_head_dim", "swa_qk_nope_head_dim+swa_v_head_dim"),
            ),
        ),
    },
    block={"indexer_rope": "adjacent", "scales_windowed_rope": False},
)
