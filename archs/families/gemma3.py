"""Gemma 3 (text): Gemma 2 with q/k norms, windows with a rope base of their own, and without softcapped scores.

Reference: transformers `models/gemma3/modeling_gemma3.py`. Five of six layers see a window only.
"""

from archs.config import unusual_windows
from archs.families.gemma2 import GEMMA2
from archs.spec import TensorMap
from archs.transforms import add_one

PERIOD = 6  # what files without `attention.sliding_window_pattern` mean

GEMMA3 = GEMMA2.derive(
    name="gemma3",
    hf_classes=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    metadata={
        "rope.freq_base": "rope_theta",
        "attention.sliding_window_pattern": unusual_windows(PERIOD),  # llama.cpp drops it
        "attn_logit_softcapping": None,
    },
    defaults={
        "model_type": "gemma3_text", "max_position_embeddings": 131_072, "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0, "sliding_window_pattern": PERIOD, "attn_logit_softcapping": None,
        "final_logit_softcapping": None, "vocab_size": 262_208,
    },
    tensors={
        "layers.{i}.self_attn.q_norm": TensorMap("blk.{i}.attn_q_norm", add_one),
        "layers.{i}.self_attn.k_norm": TensorMap("blk.{i}.attn_k_norm", add_one),
    },
    refused={"use_bidirectional_attention": True},
    flags_from_tensors={"mlp_bias": None},
    activation="hidden_activation|hidden_act|activation_function",
    block={"window_period": PERIOD},
)  # fmt: skip
