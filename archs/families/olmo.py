"""OLMo: Llama's layers with layer norms that have no weights, and q, k, v that may be clipped.

Reference: transformers `models/olmo/modeling_olmo.py`.
"""

from archs.families.llama import LLAMA

OLMO = LLAMA.derive(
    name="olmo",
    hf_classes=("OlmoForCausalLM", "OlmoModel"),
    vocab=("bpe",),
    metadata={
        "attention.clamp_kqv": "clip_qkv",
        "attention.layer_norm_epsilon": lambda config: 1e-5,
        "vocab_size": None,
        "rope.dimension_count": None,
    },
    defaults={"head_dim": None, "rms_norm_eps": None, "vocab_size": 50_304},
    tensors={
        "layers.{i}.input_layernorm": None,
        "layers.{i}.post_attention_layernorm": None,
        "norm": None,
    },
    block={"norm": "layer_without_weights"},
)
