"""Mistral Small 3.1 and Ministral 3, with or without their wrapper: Mistral's layers; Ministral scales its queries.

Reference: transformers `models/ministral3/modeling_ministral3.py`, `models/mistral3/`. Where the config has
`llama_4_scaling_beta`, queries grow with the logarithm of their position in original contexts, and yarn is always used.
"""

from archs.config import rope_scaling
from archs.families.deepseek2 import attn_factor
from archs.families.llama import MISTRAL
from archs.spec import Block, Computed, Config


def of_yarn(key: str) -> Computed:
    def value(config: Config) -> object:
        return rope_scaling(config, key) if rope_scaling(config, "rope_type") == "yarn" else None

    return value


MISTRAL3 = MISTRAL.but(
    name="mistral3",
    hf_classes=("Mistral3ForConditionalGeneration",),
    vocab=("sentencepiece", "bpe"),
    block=Block(rope="adjacent", temperature="all"),
)

MINISTRAL3 = MISTRAL3.but(
    hf_classes=("Ministral3ForCausalLM", "Ministral3Model"),
    metadata={
        "rope.scaling.attn_factor": attn_factor,
        "rope.scaling.yarn_log_multiplier": of_yarn("mscale_all_dim"),
        "attention.temperature_scale": of_yarn("llama_4_scaling_beta"),
    },
    defaults={
        "num_hidden_layers": 34,
        "head_dim": 128,
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16_384, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
        },
        "sliding_window": None,
        "vocab_size": 131_072,
    },
)  # fmt: skip
