"""GPT-NeoX and Pythia: layer norms, partly rotating heads, attention beside the feed-forward net or before it.

Reference: transformers `models/gpt_neox/modeling_gpt_neox.py`. q, k and v come fused head by head.
"""

from archs.rope import FACTORS, SCALING, rotated_width, unusual_base
from archs.spec import BASE, TensorMap
from archs.transforms import ungroup
from archs.typed_json import Unread

GPTNEOX = BASE.derive(
    name="gptneox", hf_classes=("GPTNeoXForCausalLM", "GPTNeoXModel"),
    metadata={
        **SCALING, "rope.dimension_count": rotated_width, "rope.freq_base": unusual_base,
        "use_parallel_residual": "use_parallel_residual",
    },
    keys={"rope_theta": Unread(), "partial_rotary_factor": Unread()},
    defaults={
        "model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24_576, "num_hidden_layers": 44,
        "num_attention_heads": 64, "max_position_embeddings": 2048, "layer_norm_eps": 1e-5,
        "rope_theta": lambda config: config.get("rotary_emb_base", 10_000.0),
        "partial_rotary_factor": lambda config: config.get("rotary_pct", 0.25), "use_parallel_residual": True,
        "vocab_size": 50_432,
    },
    tensors={
        "embed_in": "token_embd", ".input_layernorm": "attn_norm",
        ".attention.query_key_value": TensorMap("attn_qkv", ungroup("num_attention_heads", "num_attention_heads")),
        ".attention.dense": "attn_output", ".post_attention_layernorm": "ffn_norm", ".mlp.dense_h_to_4h": "ffn_up",
        ".mlp.dense_4h_to_h": "ffn_down", "final_layer_norm": "output_norm", "lm_head": "output", "embed_out": "output",
    },
    ignored=("layers.*.attention.bias",),
    prefixes=("gpt_neox",),
    generated=FACTORS,
    config_from_gguf=lambda keys, tensors: {  # transformers takes `rope_theta`, `partial_rotary_factor` from elsewhere
        "rotary_emb_base": keys.get("rope.freq_base", 10_000),
        "rotary_pct": keys["rope.dimension_count"] / (keys["embedding_length"] // keys["attention.head_count"]),
    },
    flags_from_tensors={"attention_bias": "blk.*.attn_qkv.bias"},
    block={
        "norm": "layer", "rope": "halves", "activation": "gelu", "gated": False, "parallel":
        "use_parallel_residual",
    },
)  # fmt: skip
