"""BLOOM: ALiBi, layer norms (one on the embedding too), q/k/v fused head by head, tanh GELU.

Reference: transformers `models/bloom/modeling_bloom.py`.
"""

from archs.config import required
from archs.spec import BASE, TensorMap
from archs.transforms import ungroup

HEADS = "n_head|num_attention_heads"

WIDTH = "hidden_size|n_embed"

BLOOM = BASE.derive(
    name="bloom", hf_classes=("BloomForCausalLM", "BloomModel"),
    metadata={
        "context_length": f"seq_length|{WIDTH}",  # the model has no limit; llama.cpp's stand-in
        "embedding_length": WIDTH,
        "feed_forward_length": lambda config: 4 * required(config, WIDTH),
        "attention.head_count": HEADS, "attention.head_count_kv": HEADS,
    },
    defaults={
        "hidden_size": lambda config: config.get("n_embed", 64),
        "n_layer": lambda config: config.get("num_hidden_layers", 2),
        "n_head": lambda config: config.get("num_attention_heads", 8), "layer_norm_epsilon": 1e-5,
        "vocab_size": 250_880,
    },
    layers="h",
    tensors={
        "word_embeddings": "token_embd", "word_embeddings_layernorm": "token_embd_norm",
        ".input_layernorm": "attn_norm",
        ".self_attention.query_key_value": TensorMap("attn_qkv", ungroup(HEADS, HEADS)),
        ".self_attention.dense": "attn_output", ".post_attention_layernorm": "ffn_norm", ".mlp.dense_h_to_4h": "ffn_up",
        ".mlp.dense_4h_to_h": "ffn_down", "ln_f": "output_norm", "lm_head": "output",
    },
    config_from_gguf=lambda keys, tensors: {"seq_length": keys["context_length"]},
    refused={"apply_residual_connection_post_layernorm": True},
    activation="",
    prefixes=("transformer", "model", "language_model", "text_model"),
    block={"norm": "layer", "rope": "none", "alibi": True, "activation": "gelu_tanh", "gated": False},
)  # fmt: skip
