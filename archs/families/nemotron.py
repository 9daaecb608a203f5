"""Nemotron and Minitron: layer norms whose weights are stored minus one, squared ReLU, partly rotating heads.

Reference: transformers `models/nemotron/modeling_nemotron.py`.
"""

from archs.config import head_dim
from archs.families.qwen2 import HALVES
from archs.rope import rotated_width, scaling_type
from archs.spec import Target, TensorMap, in_layers
from archs.transforms import add_one


def norm(source: str, name: str) -> dict[str, Target]:
    return {f"{source}.weight": TensorMap(f"{name}.weight", add_one), f"{source}.bias": f"{name}.bias", source: None}


NEMOTRON = HALVES.derive(
    name="nemotron",
    hf_classes=("NemotronForCausalLM", "NemotronModel"),
    vocab=("sentencepiece", "bpe"),
    vocab_keys={"padding_token_id": 0, "unknown_token_id": 1},
    metadata={
        "attention.layer_norm_epsilon": "norm_eps",
        "rope.dimension_count": rotated_width,
        "rope.scaling.type": scaling_type,
        "vocab_size": "vocab_size",
    },
    defaults={
        "hidden_size": 6144, "intermediate_size": 24_576, "num_attention_heads": 48, "head_dim": head_dim,
        "max_position_embeddings": 4096, "rms_norm_eps": None, "norm_eps": 1e-5, "partial_rotary_factor": 0.5,
        "vocab_size": 256_000,
    },
    tensors={
        **norm("layers.{i}.input_layernorm", "blk.{i}.attn_norm"),
        **norm("layers.{i}.post_attention_layernorm", "blk.{i}.ffn_norm"), **norm("norm", "output_norm"),
        **in_layers({"mlp.gate_proj": None}),
    },
    block={"norm": "layer", "activation": "relu2", "gated": False},
)  # fmt: skip
