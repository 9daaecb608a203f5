"""Command R and R+: layer norms without biases, feed-forward net beside attention, a scale on the logits; R+ also has a
norm of its own for each head of q and k. Adjacent pairs rotate in HF too.

Command R7B and Command A: Command R with a window in three of four layers and no rope in the fourth.
Reference: transformers `models/cohere/modeling_cohere.py`, `models/cohere2/modeling_cohere2.py`.
"""

from archs.config import head_dim, unusual_windows
from archs.families.qwen2 import HALVES
from archs.layouts import head_norms
from archs.rope import scaling_type
from archs.spec import in_layers

COHERE = HALVES.derive(
    name="command-r",
    hf_classes=("CohereForCausalLM", "CohereModel"),
    vocab=("bpe",),
    metadata={
        "context_length": "model_max_length|max_position_embeddings",
        "logit_scale": "logit_scale",
        "rope.scaling.type": scaling_type,
    },
    defaults={
        "hidden_size": 8192, "intermediate_size": 22_528, "num_hidden_layers": 40, "num_attention_heads": 64,
        "num_key_value_heads": lambda config: config["num_attention_heads"], "max_position_embeddings": 8192,
        "rms_norm_eps": None, "layer_norm_eps": 1e-5, "rope_theta": 500_000.0, "logit_scale": 0.0625,
        "vocab_size": 256_000,
    },
    tensors=in_layers({**head_norms(), "post_attention_layernorm": None}),
    flags_from_tensors={"use_qk_norm": "blk.*.attn_q_norm.weight"},
    block={"norm": "layer", "rope": "adjacent", "parallel": True},
)  # fmt: skip

PERIOD = 4  # what files without `attention.sliding_window_pattern` mean

COHERE2 = COHERE.derive(
    name="cohere2",
    hf_classes=("Cohere2ForCausalLM", "Cohere2Model"),
    metadata={
        "context_length": "max_position_embeddings",
        "rope.dimension_count": head_dim,
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": unusual_windows(PERIOD),
        "vocab_size": "vocab_size",
    },
    defaults={"head_dim": head_dim, "rope_theta": 10_000.0, "sliding_window": 4096},
    block={"window_period": PERIOD, "rope_layers": "windowed"},
)
