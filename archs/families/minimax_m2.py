"""MiniMax M2: sigmoid routing with a correction bias, norms over all of q and of k, partial rotation.

Reference: transformers `models/minimax_m2/modeling_minimax_m2.py`.
"""

from archs.experts import always
from archs.families.llama import MIXTRAL
from archs.layouts import head_norms
from archs.rope import rotated_width
from archs.spec import Config, in_layers


def width(config: Config) -> int:
    """How many values of each head rotate: a share of them, or so many."""
    by_share = config.get("partial_rotary_factor") or not config.get("rotary_dim")
    return rotated_width(config) if by_share else config["rotary_dim"]


MINIMAX_M2 = MIXTRAL.derive(
    name="minimax-m2",
    hf_classes=("MiniMaxM2ForCausalLM",),
    vocab=("bpe",),
    metadata={
        "vocab_size": None,
        "rope.dimension_count": width,
        "expert_gating_func": always("sigmoid"),
        "expert_feed_forward_length": "intermediate_size",
        "attention.sliding_window": None,
    },
    defaults={
        "model_type": "minimax_m2", "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
        "num_attention_heads": 48, "head_dim": 128, "max_position_embeddings": 196_608, "rms_norm_eps": 1e-6,
        "rope_theta": 5_000_000.0, "num_local_experts": 256, "num_experts_per_tok": 8, "scoring_func": "sigmoid",
        "vocab_size": 200_064,
    },
    tensors=in_layers({
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", **head_norms(),
        "mlp.e_score_correction_bias": "exp_probs_b.bias",
        "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
    }),
    block={"rope": "halves"},
)  # fmt: skip
