"""Arcee (AFM): Llama's layers with an ungated squared ReLU.

Reference: transformers `models/arcee/modeling_arcee.py`.
"""

from archs.families.llama import LLAMA
from archs.spec import in_layers

ARCEE = LLAMA.derive(
    name="arcee",
    hf_classes=("ArceeForCausalLM", "ArceeModel"),
    defaults={"hidden_size": 2560, "intermediate_size": 18_432, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    tensors=in_layers({"mlp.gate_proj": None}),
    block={"activation": "relu2", "gated": False},
)  # fmt: skip
