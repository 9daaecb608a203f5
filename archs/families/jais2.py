"""Jais 2: layer norms, biases everywhere, an ungated squared ReLU.

Reference: transformers `models/jais2/modeling_jais2.py`.
"""

from archs.config import head_dim
from archs.families.qwen2 import HALVES
from archs.spec import in_layers

JAIS2 = HALVES.derive(
    name="jais2",
    hf_classes=("Jais2ForCausalLM", "Jais2Model"),
    metadata={"rope.dimension_count": head_dim},
    defaults={
        "hidden_size": 3328, "intermediate_size": 26_624, "num_attention_heads": 26, "head_dim": head_dim,
        "max_position_embeddings": 8192, "rms_norm_eps": None, "layer_norm_eps": 1e-5, "vocab_size": 150_272,
    },
    tensors=in_layers({"mlp.gate_proj": None}),
    block={"norm": "layer", "activation": "relu2", "gated": False},
)  # fmt: skip
