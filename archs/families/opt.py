"""OPT: learned positions that start at row two, layer norms, ReLU.

Reference: transformers `models/opt/modeling_opt.py`. No other converter takes it; names follow GPT-2's, norms after
each part (the 350m variant) follow BERT's. The 350m variant also projects between a narrow embedding and the layers.
"""

from archs.spec import COMMON, Architecture, Block, Map
from archs.transforms import skip_rows


def pre(name: str, post: str) -> Map:
    """A norm that stands before its part, or after it where `do_layer_norm_before` is false."""
    return Map(lambda config: name if config["do_layer_norm_before"] else post)


OPT = Architecture(
    name="opt",
    hf_classes=("OPTForCausalLM", "OPTModel"),
    metadata={
        **COMMON,
        "feed_forward_length": "ffn_dim",
        "attention.head_count_kv": "num_attention_heads",
        "attention.layer_norm_epsilon": lambda config: 1e-5,
        "vocab_size": "vocab_size",
    },
    defaults={
        "hidden_size": 768,
        "ffn_dim": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "activation_function": "relu",
        "vocab_size": 50_272,
    },
    tensors={
        "embed_tokens": "token_embd",
        "embed_positions": Map("position_embd", skip_rows(2)),
        "project_in": "token_embd_proj",
        "layers.{i}.self_attn_layer_norm": pre("blk.{i}.attn_norm", "blk.{i}.attn_output_norm"),
        "layers.{i}.self_attn.q_proj": "blk.{i}.attn_q",
        "layers.{i}.self_attn.k_proj": "blk.{i}.attn_k",
        "layers.{i}.self_attn.v_proj": "blk.{i}.attn_v",
        "layers.{i}.self_attn.out_proj": "blk.{i}.attn_output",
        "layers.{i}.final_layer_norm": pre("blk.{i}.ffn_norm", "blk.{i}.layer_output_norm"),
        "layers.{i}.fc1": "blk.{i}.ffn_up",
        "layers.{i}.fc2": "blk.{i}.ffn_down",
        "final_layer_norm": "output_norm",
        "project_out": "output_proj",
        "lm_head": "output",
    },
    prefixes=("model", "decoder"),
    block=Block(norm="layer", rope="none", activation="relu", gated=False),
)
