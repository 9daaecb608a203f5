"""Baichuan and Baichuan 2: Llama's layers with q/k/v fused; the 13B models have ALiBi instead of rope.

Reference: the `modeling_baichuan.py` that its checkpoints bring along. Baichuan 2 scales the head's rows to length one
before use. llama.cpp does not, and knows the 13B by its 40 layers; ours adds `attention.max_alibi_bias`.
"""

from archs.families.llama import LLAMA
from archs.spec import Config, TensorMap, in_layers
from archs.transforms import chain, interleave_rope, part, unit_rows_if


def largest_bias(config: Config) -> float | None:
    """The largest distance penalty's exponent for the 13B models, whose config has no `max_position_embeddings`."""
    return 8.0 if config.get("max_position_embeddings") is None else None


BAICHUAN = LLAMA.derive(
    name="baichuan",
    hf_classes=("BaichuanForCausalLM", "BaiChuanForCausalLM"),
    vocab=("sentencepiece",),
    metadata={
        "tensor_data_layout": lambda config: "Meta AI original pth",
        "context_length": "max_position_embeddings|model_max_length",
        "attention.head_count_kv": None,
        "attention.max_alibi_bias": largest_bias,
        "rope.freq_base": None, "vocab_size": None,
    },
    defaults={"head_dim": None, "max_position_embeddings": None, "vocab_size": 64_000},
    tensors={
        **in_layers({
            "self_attn.q_proj": None, "self_attn.k_proj": None, "self_attn.v_proj": None,
            "self_attn.W_pack": (
                TensorMap("attn_q", chain(part(0, 3), interleave_rope("num_attention_heads"))),
                TensorMap("attn_k", chain(part(1, 3), interleave_rope("num_attention_heads"))),
                TensorMap("attn_v", part(2, 3)),
            ),
        }),
        "lm_head": TensorMap("output", unit_rows_if(lambda config: "z_loss_weight" in config)),
    },
    block={"alibi": "attention.max_alibi_bias"},
)  # fmt: skip
