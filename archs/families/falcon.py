"""Falcon: layer norms, q/k/v fused by key-value head; attention beside the feed-forward net (with one norm or two).

Reference: transformers `models/falcon/modeling_falcon.py`. The RW models have ALiBi, biases, and the feed-forward net
after attention; the reference doesn't convert them: two more keys say so.
"""

from collections.abc import Mapping
from typing import Any

from archs.config import required
from archs.rope import SCALING, llama3_freqs, longrope_factors, unusual_base
from archs.spec import COMMON, Architecture, Block, Config, Map
from archs.transforms import ungroup
from quants import Tensor

HEADS = "num_attention_heads|n_head"


def kv_heads(config: Config) -> int:
    """One with multi_query, whatever `num_kv_heads` says, but in the newer architecture."""
    if config["multi_query"] and not config["new_decoder_architecture"]:
        return 1
    return int(required(config, f"num_kv_heads|n_head_kv|{HEADS}"))


def parallel(config: Config) -> bool | None:
    return None if config["parallel_attn"] or config["new_decoder_architecture"] else False


def restored(keys: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The switches of the config, by what a file shows of them."""
    groups, heads = keys["attention.head_count_kv"], keys["attention.head_count"]
    return {
        "new_decoder_architecture": "blk.0.attn_norm_2.weight" in tensors, "multi_query": groups == 1,
        "num_kv_heads": groups, "num_attention_heads": heads, "alibi": "attention.max_alibi_bias" in keys,
        "parallel_attn": keys.get("use_parallel_residual", True), "bias": "blk.0.attn_qkv.bias" in tensors,
        "ffn_hidden_size": keys["feed_forward_length"],
    }  # fmt: skip


FALCON = Architecture(
    name="falcon",
    hf_classes=("FalconForCausalLM", "RWForCausalLM", "FalconModel"),
    metadata={
        **COMMON,
        **SCALING,
        "tensor_data_layout": lambda config: "jploski",
        "feed_forward_length": lambda config: config.get("ffn_hidden_size") or 4 * config["hidden_size"],
        "attention.head_count_kv": kv_heads,
        "attention.max_alibi_bias": lambda config: 8.0 if config["alibi"] else None,
        "rope.freq_base": unusual_base,
        "use_parallel_residual": parallel,
    },
    defaults={
        "hidden_size": 4544,
        "num_hidden_layers": lambda config: config.get("n_layer", 32),
        "num_attention_heads": lambda config: config.get("n_head", 71),
        "max_position_embeddings": 2048,
        "layer_norm_epsilon": 1e-5,
        "alibi": False,
        "multi_query": lambda config: "n_head_kv" not in config,  # the first 40B says no more
        "new_decoder_architecture": False,
        "parallel_attn": True,
        "rope_theta": 10_000.0,
        "vocab_size": 65_024,
    },
    tensors={
        "word_embeddings": "token_embd",
        "h.{i}.input_layernorm": "blk.{i}.attn_norm",
        "h.{i}.ln_mlp": "blk.{i}.attn_norm",
        "h.{i}.ln_attn": "blk.{i}.attn_norm_2",
        "h.{i}.self_attention.query_key_value": Map("blk.{i}.attn_qkv", ungroup(HEADS, kv_heads)),
        "h.{i}.self_attention.dense": "blk.{i}.attn_output",
        "h.{i}.post_attention_layernorm": "blk.{i}.ffn_norm",
        "h.{i}.mlp.dense_h_to_4h": "blk.{i}.ffn_up",
        "h.{i}.mlp.dense_4h_to_h": "blk.{i}.ffn_down",
        "ln_f": "output_norm",
        "lm_head": "output",
    },
    generated=(llama3_freqs, longrope_factors),
    restored=restored,
    other_spellings=lambda tensors: () if "blk.0.attn_norm_2.weight" in tensors else ("h.{i}.ln_mlp",),
    activation="activation",
    block=Block(
        norm="layer", rope="halves", alibi="attention.max_alibi_bias", alibi_scaled=True, activation="gelu",
        gated=False, parallel="use_parallel_residual",
    ),
)  # fmt: skip
