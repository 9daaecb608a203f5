"""GPT-OSS: routed experts with biases, a clamped gated unit, attention sinks, windows on every second layer.

Reference: transformers `models/gpt_oss/modeling_gpt_oss.py`. Gate and up rows of the experts alternate; MXFP4 experts
keep their blocks, bfloat16 ones are stored as (in, out).
"""

from archs.config import UnlessUsual, other_than, unusual_windows
from archs.families.llama import HALVES
from archs.spec import TensorMap
from archs.transforms import Invertible, chain, every_second, transpose

PERIOD = 2  # every second layer has full attention

SCALING = {  # also for configs with null
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}

# MXFP4 experts are stored with a row per output already.
rows_first = Invertible(
    lambda tensor, config: tensor if tensor.format.is_quantized else transpose(tensor, config), transpose.invert
)

GPT_OSS = HALVES.derive(
    name="gpt-oss",
    hf_classes=("GptOssForCausalLM",),
    metadata={
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": unusual_windows(PERIOD),
        "expert_feed_forward_length": "intermediate_size",
        "swiglu_limit": UnlessUsual("swiglu_limit", 7.0),
    },
    defaults={
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "rope_scaling": SCALING,
        "sliding_window": 128,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "swiglu_limit": 7.0,
        "vocab_size": 201_088,
    },
    tensors={
        ".self_attn.sinks": "attn_sinks.weight",
        ".post_attention_layernorm": "post_attention_norm",
        ".mlp.router": "ffn_gate_inp",
        ".mlp.experts.gate_up_proj": (
            TensorMap("ffn_gate_exps.weight", chain(rows_first, every_second(0))),
            TensorMap("ffn_up_exps.weight", chain(rows_first, every_second(1))),
        ),
        ".mlp.experts.gate_up_proj_bias": (
            TensorMap("ffn_gate_exps.bias", every_second(0)),
            TensorMap("ffn_up_exps.bias", every_second(1)),
        ),
        ".mlp.experts.down_proj": TensorMap("ffn_down_exps.weight", rows_first),
        ".mlp.experts.down_proj_bias": "ffn_down_exps.bias",
    },
    refused={"swiglu_alpha": other_than(1.702)},
    rope_parameters="one",
    activation="",
    block={
        "ffn_norm": "post_attention_norm",
        "activation": "swiglu_oai",
        "window_period": PERIOD,
        "scoring": "softmax_of_top",
    },
)
