"""Falcon: layer norms, q/k/v fused by key-value head; attention parallel to the feed-forward net (with one norm or
two). The RW models have ALiBi, biases, and the feed-forward net after attention; llama.cpp doesn't convert them: two
more keys mark them.

Falcon-H1: attention and Mamba-2 in parallel in every layer; many multipliers, which are folded into the weights. The
norm before the feed-forward net lacks ".weight" in its GGUF name, as llama.cpp writes it. Reference: transformers
`models/falcon/`, `models/falcon_h1/`.
"""

import numpy as np

from archs.config import other_than, required
from archs.families.llama import LLAMA
from archs.rope import FACTORS, SCALING, unusual_base
from archs.spec import BASE, Config, ConfigKeys, Floats, GgufKeys, TensorMap, Tensors
from archs.tensor_maps import MAMBA2_KEYS, MAMBA_BIASES, NEOX_NET, mamba2
from archs.transforms import chain, scaled, scaled_rows, ungroup
from quants import format_named
from quants.errors import ModelError

HEADS = "num_attention_heads|n_head"


def kv_heads(config: Config) -> int:
    """Return the key-value heads: one with multi_query, whatever `num_kv_heads` says, except in the newer
    architecture.
    """
    if config["multi_query"] and not config["new_decoder_architecture"]:
        return 1
    return int(required(config, f"num_kv_heads|n_head_kv|{HEADS}"))


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the switches of the config that a file shows."""
    groups, heads = keys["attention.head_count_kv"], keys["attention.head_count"]
    return {
        "new_decoder_architecture": "blk.0.attn_norm_2.weight" in tensors,
        "multi_query": groups == 1,
        "num_kv_heads": groups,
        "num_attention_heads": heads,
        "alibi": "attention.max_alibi_bias" in keys,
        "parallel_attn": keys.get("use_parallel_residual"),
        "bias": "blk.0.attn_qkv.bias" in tensors,
        "ffn_hidden_size": keys["feed_forward_length"],
    }


def alibi_terms(slopes: Floats, keys: int, scale: float) -> Floats:
    """Return ALiBi terms that grow with the key's position. To the softmax they equal distance penalties except for
    rounding: slopes, positions and their products are bfloat16 in the published code and in transformers, and scaled as
    q·k is.
    """
    positions = bfloat16(np.arange(keys, dtype=np.float32))
    terms: Floats = bfloat16(bfloat16(slopes)[:, None] * positions) * np.float32(scale)
    return terms


def bfloat16(x: Floats) -> Floats:
    """Return x rounded to bfloat16."""
    form = format_named("BF16")
    rounded: Floats = form.decode(form.encode(np.atleast_2d(x)))
    return rounded.reshape(x.shape)


FALCON = BASE.derive(
    name="falcon",
    hf_classes=("FalconForCausalLM", "RWForCausalLM", "FalconModel"),
    metadata={
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
        "hidden_size": 4544,
        "num_hidden_layers": lambda config: config.get("n_layer", 32),
        "num_attention_heads": lambda config: config.get("n_head", 71),
        "max_position_embeddings": 2048,
        "layer_norm_epsilon": 1e-5,
        "alibi": False,
        "multi_query": lambda config: "n_head_kv" not in config,  # the first 40B model gives no more
        "new_decoder_architecture": False,
        "parallel_attn": True,
        "rope_theta": 10_000.0,
        "vocab_size": 65_024,
    },
    layers="h",
    tensors={
        "word_embeddings": "token_embd",
        ".input_layernorm": "attn_norm",
        ".ln_mlp": "attn_norm",
        ".ln_attn": "attn_norm_2",
        ".self_attention.query_key_value": TensorMap("attn_qkv", ungroup(HEADS, kv_heads)),
        ".self_attention.dense": "attn_output",
        ".post_attention_layernorm": "ffn_norm",
        **NEOX_NET,
        "ln_f": "output_norm",
        "lm_head": "output",
    },
    generated=FACTORS,
    config_from_gguf=config_from_gguf,
    legacy_names=lambda tensors: () if "blk.0.attn_norm_2.weight" in tensors else ("h.{i}.ln_mlp",),
    prefixes=("transformer", "model", "language_model", "text_model"),
    activation="activation",
    eager_attention=False,  # it adds ALiBi twice
    block={
        "norm": "layer",
        "rope": "halves",
        "alibi": True,
        "alibi_terms": alibi_terms,
        "activation": "gelu",
        "gated": False,
        "parallel": "use_parallel_residual",
    },
)

MAX_ROWS = 1 << 24  # far more than any model has


def inner_size(config: Config) -> int:
    return int(config.get("mamba_d_ssm") or config["mamba_expand"] * config["hidden_size"])


def projection_factors(config: Config) -> Floats:
    """Return the multiplier of each row of the Mamba projection: gate, input, B, C, time steps."""
    groups = config["mamba_n_groups"] * config["mamba_d_state"]
    rows = (inner_size(config), inner_size(config), groups, groups, config["mamba_n_heads"])
    if sum(rows) > MAX_ROWS:
        raise ModelError(f"config.json makes the Mamba projection {sum(rows)} rows")
    return np.repeat(np.array(config["ssm_multipliers"], np.float32), rows)


def tied_logit_scale(config: Config) -> float | None:
    """Return the factor of logits of a tied head, whose embedding includes the embedding's multiplier (the reference
    drops it).
    """
    scale = config["lm_head_multiplier"] / config["embedding_multiplier"] if config.get("tie_word_embeddings") else 1
    return scale if scale != 1 else None


FALCON_H1 = LLAMA.derive(
    name="falcon-h1",
    hf_classes=("FalconH1ForCausalLM",),
    vocab=("bpe",),
    metadata={
        "rope.dimension_count": None,
        **MAMBA2_KEYS,
        "ssm.inner_size": inner_size,
        "ssm.norm_before_gate": lambda config: (  # llama.cpp drops it
            bool(config["mamba_rms_norm"] and config["mamba_norm_before_gate"]) or None
        ),
        "tied_logit_scale": tied_logit_scale,
    },
    defaults={
        "model_type": "falcon_h1",
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "mamba_d_conv": 4,
        "mamba_d_ssm": 1024,
        "mamba_d_state": 256,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 128,
        "mamba_norm_before_gate": True,
        "mamba_rms_norm": False,
        "embedding_multiplier": 1.0,
        "attention_in_multiplier": 1.0,
        "attention_out_multiplier": 1.0,
        "key_multiplier": 1.0,
        "mlp_multipliers": lambda config: [1.0, 1.0],
        "ssm_in_multiplier": 1.0,
        "ssm_out_multiplier": 1.0,
        "ssm_multipliers": lambda config: [1.0] * 5,
        "lm_head_multiplier": 1.0,
        "vocab_size": 128_000,
    },
    refused={"hidden_act": other_than("silu", "swish")},
    config_from_gguf=lambda keys, tensors: {  # the multipliers are folded into the weights
        "mamba_rms_norm": "blk.0.ssm_norm.weight" in tensors,
        "mlp_multipliers": [1.0, 1.0],
        "mamba_norm_before_gate": keys.get("ssm.norm_before_gate"),
        "ssm_multipliers": [1.0] * 5,
        "lm_head_multiplier": keys.get("tied_logit_scale"),
    },
    flags_from_tensors={**MAMBA_BIASES, "projectors_bias": "blk.*.ssm_out.bias"},
    tensors={
        "embed_tokens": TensorMap("token_embd", scaled("embedding_multiplier")),
        **mamba2("mamba", "mamba_n_groups"),
        ".mamba.in_proj": TensorMap("ssm_in", chain(scaled("ssm_in_multiplier"), scaled_rows(projection_factors))),
        ".mamba.in_proj.bias": TensorMap("ssm_in.bias", scaled_rows(projection_factors)),
        ".mamba.out_proj": TensorMap("ssm_out", scaled("ssm_out_multiplier")),
        ".self_attn.q_proj": TensorMap("attn_q", scaled("attention_in_multiplier")),
        ".self_attn.k_proj": TensorMap("attn_k", scaled("key_multiplier", "attention_in_multiplier")),
        ".self_attn.v_proj": TensorMap("attn_v", scaled("attention_in_multiplier")),
        ".self_attn.q_proj.bias": "attn_q.bias",
        ".self_attn.k_proj.bias": TensorMap("attn_k.bias", scaled("key_multiplier")),
        ".self_attn.v_proj.bias": "attn_v.bias",
        ".self_attn.o_proj": TensorMap("attn_output", scaled("attention_out_multiplier")),
        ".pre_ff_layernorm.weight": "ffn_norm",
        ".feed_forward.gate_proj": TensorMap("ffn_gate", scaled("mlp_multipliers.0")),
        ".feed_forward.up_proj": "ffn_up",
        ".feed_forward.down_proj": TensorMap("ffn_down", scaled("mlp_multipliers.1")),
        "final_layernorm": "output_norm",
        "lm_head": TensorMap("output", scaled("lm_head_multiplier")),
    },
    block={"rope": "halves", "mixer": "attention+mamba2"},
)
