"""Granite: Llama's layers with scales on embedding, attention, residual and logits.

Reference: transformers `models/granite/modeling_granite.py`.
"""

from archs.families.llama import LLAMA
from archs.hyper import Hyper, Keys


def numbers(keys: Keys, usual: Hyper) -> Hyper:
    """Files of models without rope say so by a key."""
    rope = bool(keys.get("rope.scaling.finetuned", True))
    return usual.with_layers(lambda index, own: {"rotates": own.rotates and rope})


GRANITE = LLAMA.derive(
    name="granite",
    hf_classes=("GraniteForCausalLM", "GraniteModel"),
    metadata={
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    },
    defaults={
        "head_dim": None, "attention_multiplier": 1.0, "embedding_multiplier": 1.0, "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    block={"logit_scale": "divide", "numbers": numbers},
)  # fmt: skip
