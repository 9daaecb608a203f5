"""StarCoder2: layer norms, biases, an ungated tanh GELU; a window in every layer.

Reference: transformers `models/starcoder2/modeling_starcoder2.py`. llama.cpp drops the window.
"""

from archs.families.qwen2 import HALVES
from archs.spec import in_layers

STARCODER2 = HALVES.derive(
    name="starcoder2",
    hf_classes=("Starcoder2ForCausalLM", "Starcoder2Model"),
    metadata={"attention.sliding_window": "sliding_window"},
    defaults={
        "hidden_size": 3072, "intermediate_size": 12_288, "num_hidden_layers": 30, "num_attention_heads": 24,
        "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": None, "norm_epsilon": 1e-5,
        "vocab_size": 49_152,
    },
    tensors=in_layers({
        "mlp.gate_proj": None, "mlp.up_proj": None, "mlp.down_proj": None, "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
    }),
    flags_from_tensors={"attention_bias": None, "mlp_bias": None, "use_bias": "blk.*.attn_q.bias"},
    block={"norm": "layer", "activation": "gelu_tanh", "gated": False},
)  # fmt: skip
