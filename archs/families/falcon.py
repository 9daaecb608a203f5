"""Falcon: layer norms, q/k/v fused by key-value head; attention beside the feed-forward net (with one norm or two).

Reference: transformers `models/falcon/modeling_falcon.py`. The RW models have ALiBi, biases, and the feed-forward net
after attention; llama.cpp doesn't convert them: two more keys say so.
"""


import numpy as np

from archs.config import required
from archs.rope import SCALING, llama3_freqs, longrope_factors, unusual_base
from archs.spec import COMMON, Architecture, Block, Config, ConfigKeys, Floats, GgufKeys, TensorMap, Tensors, in_layers
from archs.transforms import ungroup
from quants import format_named

HEADS = "num_attention_heads|n_head"


def kv_heads(config: Config) -> int:
    """One with multi_query, whatever `num_kv_heads` says, but in the newer architecture."""
    if config["multi_query"] and not config["new_decoder_architecture"]:
        return 1
    return int(required(config, f"num_kv_heads|n_head_kv|{HEADS}"))


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """The switches of the config, by what a file shows of them."""
    groups, heads = keys["attention.head_count_kv"], keys["attention.head_count"]
    return {
        "new_decoder_architecture": "blk.0.attn_norm_2.weight" in tensors, "multi_query": groups == 1,
        "num_kv_heads": groups, "num_attention_heads": heads, "alibi": "attention.max_alibi_bias" in keys,
        "parallel_attn": keys.get("use_parallel_residual", True), "bias": "blk.0.attn_qkv.bias" in tensors,
        "ffn_hidden_size": keys["feed_forward_length"],
    }  # fmt: skip


def alibi_terms(slopes: Floats, keys: int, scale: float) -> Floats:
    """Terms that grow with the key's position, which the softmax takes for the same as penalties of distances but for
    rounding: slopes, positions and their products are bfloat16 in the published code and in transformers, and scaled as
    q·k is.
    """
    positions = bfloat16(np.arange(keys, dtype=np.float32))
    terms: Floats = bfloat16(bfloat16(slopes)[:, None] * positions) * np.float32(scale)
    return terms


def bfloat16(x: Floats) -> Floats:
    """x, rounded."""
    form = format_named("BF16")
    rounded: Floats = form.decode(form.encode(np.atleast_2d(x)))
    return rounded.reshape(x.shape)


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
        "use_parallel_residual": lambda config: (
            None if config["parallel_attn"] or config["new_decoder_architecture"] else False
        ),
    },
    defaults={
        "hidden_size": 4544, "num_hidden_layers": lambda config: config.get("n_layer", 32),
        "num_attention_heads": lambda config: config.get("n_head", 71), "max_position_embeddings": 2048,
        "layer_norm_epsilon": 1e-5, "alibi": False,
        "multi_query": lambda config: "n_head_kv" not in config,  # the first 40B says no more
        "new_decoder_architecture": False, "parallel_attn": True, "rope_theta": 10_000.0, "vocab_size": 65_024,
    },
    tensors={
        "word_embeddings": "token_embd",
        **in_layers({
            "input_layernorm": "attn_norm", "ln_mlp": "attn_norm", "ln_attn": "attn_norm_2",
            "self_attention.query_key_value": TensorMap("attn_qkv", ungroup(HEADS, kv_heads)),
            "self_attention.dense": "attn_output", "post_attention_layernorm": "ffn_norm",
            "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
        }, "h"),
        "ln_f": "output_norm", "lm_head": "output",
    },
    generated=(llama3_freqs, longrope_factors),
    config_from_gguf=config_from_gguf,
    legacy_names=lambda tensors: () if "blk.0.attn_norm_2.weight" in tensors else ("h.{i}.ln_mlp",),
    prefixes=("transformer", "model", "language_model", "text_model"),
    activation="activation",
    eager_attention=False,  # it adds ALiBi twice
    block=Block(
        norm="layer", rope="halves", alibi="attention.max_alibi_bias", alibi_terms=alibi_terms, activation="gelu",
        gated=False, parallel="use_parallel_residual",
    ),
)  # fmt: skip
