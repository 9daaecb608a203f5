"""Phi-1, 1.5 and 2: layer norms, attention beside the feed-forward net, partly rotating heads, biases everywhere.

Reference: transformers `models/phi/modeling_phi.py`.
"""

from archs.layouts import head_norms
from archs.rope import SCALING, llama3_freqs, longrope_factors, rotated_width, unusual_base
from archs.spec import COMMON, Architecture, Block

PHI2 = Architecture(
    name="phi2",
    hf_classes=("PhiForCausalLM", "PhiModel"),
    metadata={**COMMON, **SCALING, "rope.dimension_count": rotated_width, "rope.freq_base": unusual_base},
    defaults={
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24, "num_attention_heads": 32,
        "num_key_value_heads": lambda config: config["num_attention_heads"], "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5, "rope_theta": 10_000.0, "partial_rotary_factor": 0.5, "vocab_size": 51_200,
    },
    tensors={
        "embed_tokens": "token_embd",
        "layers.{i}.input_layernorm": "blk.{i}.attn_norm",
        "layers.{i}.self_attn.q_proj": "blk.{i}.attn_q",
        "layers.{i}.self_attn.k_proj": "blk.{i}.attn_k",
        "layers.{i}.self_attn.v_proj": "blk.{i}.attn_v",
        **head_norms("q_layernorm", "k_layernorm"),
        "layers.{i}.self_attn.dense": "blk.{i}.attn_output",
        "layers.{i}.mlp.fc1": "blk.{i}.ffn_up",
        "layers.{i}.mlp.fc2": "blk.{i}.ffn_down",
        "final_layernorm": "output_norm",
        "lm_head": "output",
    },
    generated=(llama3_freqs, longrope_factors),
    flags_from_tensors={"qk_layernorm": "blk.*.attn_q_norm.weight"},
    block=Block(norm="layer", rope="halves", activation="gelu_tanh", gated=False, parallel=True),
)  # fmt: skip
