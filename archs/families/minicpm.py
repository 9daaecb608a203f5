"""MiniCPM: Llama's layers with scales on embedding, residual and logits.

MiniCPM 3: the same scales around DeepSeek V2's latent attention, whose latents are widened by one matrix, as stored;
halves rotate. llama.cpp computes with the scales of the 4B model; ours adds keys for others.
Reference: the code that MiniCPM's checkpoints bring along; transformers `models/minicpm3/`.
"""

import math

from archs.families.llama import LLAMA
from archs.spec import Config, ConfigKeys, GgufKeys, Tensors


def residual_scale(config: Config) -> float:
    """What each part's result is multiplied by before it is added."""
    root = math.sqrt(config["num_hidden_layers"])
    return float(config.get("scale_depth") or root) / root


def logit_scale(config: Config) -> float:
    """What logits are divided by."""
    return float(config["hidden_size"] / (config.get("dim_model_base") or config["hidden_size"]))


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    return {
        "scale_emb": keys["embedding_scale"], "scale_depth": keys["residual_scale"] * keys["block_count"] ** 0.5,
        "dim_model_base": keys["embedding_length"] / keys["logit_scale"],
    }  # fmt: skip


MINICPM = LLAMA.derive(
    name="minicpm", hf_classes=("MiniCPMForCausalLM",), vocab=("sentencepiece", "bpe"),
    metadata={
        "vocab_size": None, "rope.dimension_count": None, "embedding_scale": "scale_emb",
        "residual_scale": residual_scale, "logit_scale": logit_scale,
    },
    defaults={"scale_emb": 1.0, "scale_depth": 1.0, "dim_model_base": 1, "head_dim": None},
    config_from_gguf=config_from_gguf,
    block={"logit_scale": "divide"},
)  # fmt: skip
