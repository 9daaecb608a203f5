"""Gemma 2: Gemma with norms after each part too, softcapped scores and logits, and a window in every second layer.

Reference: transformers `models/gemma2/modeling_gemma2.py`.
"""

import math

from archs.config import unusual_windows
from archs.families.gemma import GEMMA
from archs.spec import Config, TensorMap
from archs.transforms import add_one

PERIOD = 2  # what files without `attention.sliding_window_pattern` mean


def attention_scale(config: Config) -> float | None:
    """The factor of q·k, where it is not the head's width that decides (llama.cpp drops it)."""
    scalar = config["query_pre_attn_scalar"]
    return 1 / math.sqrt(scalar) if scalar != config["head_dim"] else None


GEMMA2 = GEMMA.derive(
    vocab_keys={"eot_token_id": None},
    name="gemma2",
    wrappers_refused=(),
    hf_classes=("Gemma2ForCausalLM", "Gemma2Model"),
    metadata={
        "hidden_activation": None,
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": unusual_windows(PERIOD),
        "attention.scale": attention_scale,
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    defaults={
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096,
        "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
    tensors={
        "layers.{i}.post_attention_layernorm": TensorMap("blk.{i}.post_attention_norm", add_one),
        "layers.{i}.pre_feedforward_layernorm": TensorMap("blk.{i}.ffn_norm", add_one),
        "layers.{i}.post_feedforward_layernorm": TensorMap("blk.{i}.post_ffw_norm", add_one),
    },
    config_from_gguf=None,
    activation="hidden_activation",
    block={"window_period": PERIOD},
)  # fmt: skip
