"""GLM-4 (0414): Llama's layers with norms before and after each part, gate and up fused, partly rotating heads.

Reference: transformers `models/glm4/modeling_glm4.py`. Adjacent pairs rotate in HF too.
"""

from archs.config import lookup
from archs.families.qwen2 import HALVES
from archs.rope import rotated_width
from archs.spec import Config

SPECIAL = {"eot_token_id": "<|user|>", "unknown_token_id": "<|endoftext|>"}  # the tokenizer's files don't say

GLM4 = HALVES.derive(
    name="glm4",
    hf_classes=("Glm4ForCausalLM", "Glm4Model"),
    vocab=("bpe",),
    vocab_keys=SPECIAL | {"bos_token_id": "<|endoftext|>"},
    metadata={
        "rope.dimension_count": rotated_width,
    },
    defaults={
        "intermediate_size": 13_696, "num_hidden_layers": 40, "num_key_value_heads": 2, "head_dim": 128,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1.5625e-07, "partial_rotary_factor": 0.5,
        "vocab_size": 151_552,
    },
    tensors={
        "layers.{i}.post_self_attn_layernorm": "blk.{i}.post_attention_norm",
        "layers.{i}.post_mlp_layernorm": "blk.{i}.post_ffw_norm",
        "layers.{i}.mlp.gate_proj": None,
        "layers.{i}.mlp.up_proj": None,
        "layers.{i}.mlp.gate_up_proj": "blk.{i}.ffn_up",
    },
    block={"rope": "adjacent"},
)  # fmt: skip


def unusual_head_dim(config: Config) -> int | None:
    """The width of a head where it is not the hidden width shared out (llama.cpp drops it)."""
    shared = config["hidden_size"] // config["num_attention_heads"]
    return int(config["head_dim"]) if config["head_dim"] != shared else None


# GLM-4-9B: without the norms after each part. llama.cpp's context length is the hidden width where the config has
# no `seq_length`; the true one stands in rope.scaling.original_context_length.
GLM = GLM4.derive(
    name="chatglm",
    hf_classes=("GlmForCausalLM", "GlmModel"),
    vocab_keys={"bos_token_id": None},
    metadata={
        "context_length": lambda config: lookup(config, "seq_length|hidden_size"),
        "rope.scaling.original_context_length": (
            "rope_scaling.original_max_position_embeddings|max_position_embeddings"
        ),
        "attention.key_length": unusual_head_dim,
        "attention.value_length": unusual_head_dim,
    },
)
