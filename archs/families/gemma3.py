"""Gemma 3 (text): norms before and after each part, q/k norms, windows with a rope base of their own.

Reference: transformers `models/gemma3/modeling_gemma3.py`. Norm weights are stored minus one; the embedding is scaled
by the square root of its width; five of six layers see a window only.
"""

import math

from archs.config import unusual_windows
from archs.rope import SCALING, llama3_freqs, longrope_factors
from archs.spec import COMMON, Architecture, Block, Config, TensorMap
from archs.transforms import add_one

PERIOD = 6  # what files without `attention.sliding_window_pattern` mean


def attention_scale(config: Config) -> float | None:
    """The factor of q·k, where it is not the head's width that decides (llama.cpp drops it)."""
    scalar = config["query_pre_attn_scalar"]
    return 1 / math.sqrt(scalar) if scalar != config["head_dim"] else None


GEMMA3 = Architecture(
    name="gemma3",
    hf_classes=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    vocab=("sentencepiece", "bpe"),
    metadata={
        **COMMON,
        **SCALING,
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": unusual_windows(PERIOD),  # llama.cpp drops it
        "attention.scale": attention_scale,
        "final_logit_softcapping": "final_logit_softcapping",
    },
    defaults={
        "model_type": "gemma3_text", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0, "sliding_window": 4096, "sliding_window_pattern": PERIOD,
        "query_pre_attn_scalar": 256, "vocab_size": 262_208,
    },
    tensors={
        "embed_tokens": "token_embd",
        "layers.{i}.input_layernorm": TensorMap("blk.{i}.attn_norm", add_one),
        "layers.{i}.self_attn.q_proj": "blk.{i}.attn_q",
        "layers.{i}.self_attn.k_proj": "blk.{i}.attn_k",
        "layers.{i}.self_attn.v_proj": "blk.{i}.attn_v",
        "layers.{i}.self_attn.q_norm": TensorMap("blk.{i}.attn_q_norm", add_one),
        "layers.{i}.self_attn.k_norm": TensorMap("blk.{i}.attn_k_norm", add_one),
        "layers.{i}.self_attn.o_proj": "blk.{i}.attn_output",
        "layers.{i}.post_attention_layernorm": TensorMap("blk.{i}.post_attention_norm", add_one),
        "layers.{i}.pre_feedforward_layernorm": TensorMap("blk.{i}.ffn_norm", add_one),
        "layers.{i}.mlp.gate_proj": "blk.{i}.ffn_gate",
        "layers.{i}.mlp.up_proj": "blk.{i}.ffn_up",
        "layers.{i}.mlp.down_proj": "blk.{i}.ffn_down",
        "layers.{i}.post_feedforward_layernorm": TensorMap("blk.{i}.post_ffw_norm", add_one),
        "norm": TensorMap("output_norm", add_one),
        "lm_head": "output",
    },
    generated=(llama3_freqs, longrope_factors),
    refused={"use_bidirectional_attention": True},
    flags_from_tensors={"attention_bias": "blk.*.attn_q.bias"},
    block=Block(rope="halves", activation="gelu_tanh", window_period=PERIOD, embedding_scale="sqrt_width"),
)  # fmt: skip
