"""NeoBERT: an encoder with norms before its parts, rotation of adjacent pairs, and gated nets of two matrices.

Its fused q/k/v matrix is ordered head by head, as GPT-NeoX's. It is reordered to all q, all k, all v, as llama.cpp's
graph reads it; llama.cpp's converter does not reorder, so that its own files give other vectors. Reference: the
published model's own code.
"""

from archs.families.bert import labels
from archs.spec import BASE, Config, TensorMap
from archs.transforms import ungroup


def head_name(config: Config) -> str:
    """Return the name of a head's last matrix: the only one, as for llama.cpp, if the config names no labels."""
    return "cls.output" if labels(config) else "cls"


NEOBERT = BASE.derive(
    name="neo-bert",
    hf_classes=("NeoBERT", "NeoBERTLMHead", "NeoBERTForSequenceClassification"),
    vocab=("wordpiece",),
    metadata={
        "context_length": "max_position_embeddings|max_length",
        "feed_forward_length": lambda config: -(-int(2 * config["intermediate_size"] / 3) // 8) * 8,
        "rope.freq_base": lambda config: 10_000.0,
        "rope.scaling.type": lambda config: "none",
        "attention.layer_norm_rms_epsilon": "norm_eps",
        "attention.causal": lambda config: False,
        "pooling_type": lambda config: 2,
        "classifier.output_labels": labels,
    },
    defaults={
        "model_type": "neobert",
        "hidden_size": 768,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "norm_eps": 1e-6,
        "vocab_size": 30_522,
        "max_length": 1024,
    },
    config_from_gguf=lambda keys, tensors: {
        "intermediate_size": -(-keys["feed_forward_length"] * 3 // 2),
        "max_length": keys["context_length"],
    },
    layers="transformer_encoder",
    tensors={
        "encoder": "token_embd",
        ".attention_norm": "attn_norm",
        ".qkv": TensorMap("attn_qkv", ungroup("num_attention_heads", "num_attention_heads")),
        ".wo": "attn_output",
        ".ffn_norm": "ffn_norm",
        ".ffn.w12": "ffn_up",
        ".ffn.w3": "ffn_down",
        "layer_norm": "enc.output_norm",
        "dense": "cls",
        "classifier": TensorMap(head_name),
    },
    ignored=("decoder.*", "freqs_cis"),
    prefixes=("", "model"),
    block={
        "norm": "rms",
        "rope": "adjacent",
        "activation": "silu",
        "causal": False,
        "hidden_states": True,
        "output_norm": "enc.output_norm",
    },
)
