"""InternLM2: Llama's layers under other names, q/k/v fused by key-value head.

Reference: the `modeling_internlm2.py` that its checkpoints bring along.
"""

from archs.families.llama import LLAMA
from archs.layouts import gated_net
from archs.spec import TensorMap, in_layers
from archs.transforms import chain, interleave_rope, ungroup

HEADS, KV_HEADS = "num_attention_heads", "num_key_value_heads"

INTERNLM2 = LLAMA.derive(
    name="internlm2",
    hf_classes=("InternLM2ForCausalLM",),
    vocab_keys={"add_space_prefix": True},
    metadata={"vocab_size": None, "rope.dimension_count": None},
    defaults={"head_dim": None, "vocab_size": 103_168},
    tensors={
        **dict.fromkeys(LLAMA.tensors), "tok_embeddings": "token_embd",
        **in_layers({
            "attention_norm": "attn_norm",
            "attention.wqkv": (
                TensorMap("attn_q", chain(ungroup(HEADS, KV_HEADS, "q"), interleave_rope(HEADS))),
                TensorMap("attn_k", chain(ungroup(HEADS, KV_HEADS, "k"), interleave_rope(KV_HEADS))),
                TensorMap("attn_v", ungroup(HEADS, KV_HEADS, "v")),
            ),
            "attention.wo": "attn_output", "ffn_norm": "ffn_norm",
            **gated_net("feed_forward", matrices=("w1", "w3", "w2")),
        }),
        "norm": "output_norm", "output": "output",
    },
)  # fmt: skip
