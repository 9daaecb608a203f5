"""Spark X2.5: Llama's layers with q, k and v fused, a gate for each head and nets of gelu; windows in some layers, each
type with its own rotating share and base.

Reference: llama.cpp's converter and graph, whose gelu is the approximate one where configs mean the exact one.
"""

from archs.config import other_than, windowed_layers
from archs.families.laguna import rotated_in_windows
from archs.families.llama import HALVES
from archs.rope import rotated_width
from archs.tensor_maps import QKV

SPARK = HALVES.derive(
    name="spark2_5",
    hf_classes=("Spark2_5ForCausalLM",),
    config_from_gguf=lambda keys, tensors: {"gate_attn_act_mode": "sigmoid", "headwise_attn_output_gate": True},
    metadata={
        "vocab_size": "vocab_size",
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: windowed_layers(config, lambda layer: False),
        "rope.dimension_count": rotated_width,
        "rope.dimension_count_swa": rotated_in_windows,
    },
    defaults={"model_type": "spark2_5", "num_hidden_layers": 28},
    refused={
        "gate_attn_act_mode": other_than("sigmoid"),
        "headwise_attn_output_gate": False,
        "hidden_act": other_than("gelu"),
    },
    tensors={**dict.fromkeys(QKV), ".self_attn.q_k_v_proj": "attn_qkv", ".self_attn.g_proj": "attn_gate"},
    rope_parameters="by type",
    activation="hidden_act",
    block={"activation": "gelu"},
)
