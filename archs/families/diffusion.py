"""Models that fill in masked tokens, in which every token sees all others: Dream (Qwen 2's layers), LLaDA (Llama's),
LLaDA-MoE and RND1 (Qwen3-MoE's).

Reference: the published models' own code. Dream's logits at a position are of the token after it, the others' of the
masked token itself (`diffusion.shift_logits`).
"""

from archs.config import head_dim
from archs.families.llama import LLAMA
from archs.families.qwen2 import QWEN2
from archs.families.qwen3 import QWEN3_MOE
from archs.layouts import not_exportable
from archs.spec import Computed, TensorMap, in_layers
from archs.transforms import interleave_rope

SEES_ALL: dict[str, str | Computed | None] = {
    "attention.causal": lambda config: False,
    "attention.sliding_window": None, "attention.sliding_window_pattern": None,
}  # fmt: skip
IN_PLACE: dict[str, str | Computed | None] = {"diffusion.shift_logits": lambda config: False}

DREAM = QWEN2.derive(
    name="dream", hf_classes=("DreamModel",), metadata=SEES_ALL, config_from_gguf=not_exportable,
    block={"causal": False},
)  # fmt: skip

LLADA = LLAMA.derive(
    name="llada", hf_classes=("LLaDAModelLM",), vocab=("bpe",), config_from_gguf=not_exportable, layers="blocks",
    metadata={
        **SEES_ALL, **IN_PLACE, "context_length": "max_sequence_length", "feed_forward_length": "mlp_hidden_size",
        "rope.dimension_count": head_dim,
    },
    defaults={**dict.fromkeys(LLAMA.defaults), "rms_norm_eps": 1e-5},
    refused={
        "alibi": True, "attention_layer_norm": True, "scale_logits": True, "weight_tying": True, "rope": False,
        "multi_query_attention": True, "activation_type": lambda kind: kind not in (None, "silu"),
        "block_type": lambda kind: kind not in (None, "llama"),
        "layer_norm_type": lambda kind: kind not in (None, "rms"),
    },
    tensors={
        **dict.fromkeys(name for name in LLAMA.tensors if name.startswith("layers.")),
        **in_layers({
            "attn_norm": "attn_norm", "q_proj": TensorMap("attn_q", interleave_rope("n_heads")),
            "k_proj": TensorMap("attn_k", interleave_rope("n_kv_heads|n_heads")), "v_proj": "attn_v",
            "attn_out": "attn_output", "ff_norm": "ffn_norm", "ff_proj": "ffn_gate", "up_proj": "ffn_up",
            "ff_out": "ffn_down",
        }, "blocks"),
        "wte": "token_embd", "ln_f": "output_norm", "ff_out": "output",
    },
    block={"causal": False},
)  # fmt: skip

LLADA_MOE = QWEN3_MOE.derive(
    name="llada-moe", hf_classes=("LLaDAMoEModelLM", "LLaDAMoEModel"), config_from_gguf=not_exportable,
    metadata={
        **SEES_ALL, **IN_PLACE, "expert_feed_forward_length": "expert_intermediate_size", "expert_weights_norm": None,
    },
    defaults={"head_dim": None},
    refused={"norm_topk_prob": True, "shared_expert_intermediate_size": lambda width: bool(width)},
    block={"causal": False, "normalize_experts": False},
)  # fmt: skip

RND1 = QWEN3_MOE.derive(
    name="rnd1", hf_classes=("RND1",), metadata={**SEES_ALL, "expert_weights_norm": None},
    config_from_gguf=not_exportable, defaults={"head_dim": 128}, refused={"norm_topk_prob": False},
    block={"causal": False},
)  # fmt: skip
