"""Masked diffusion models, in which every token attends to all others: Dream (Qwen 2's layers), LLaDA (Llama's),
LLaDA-MoE and RND1 (Qwen3-MoE's).

Reference: the published models' own code. Dream's logits at a position are of the token after it, the others' of the
masked token itself (`diffusion.shift_logits`).
"""

from functools import partial

from archs.config import head_dim, needed, other_than
from archs.families.llama import LLAMA
from archs.families.qwen2 import QWEN2
from archs.families.qwen3 import QWEN3_MOE
from archs.spec import Computed, TensorMap, in_layers
from archs.tensor_maps import head_inside
from archs.transforms import interleave_rope

IS_GLOBAL_LAYER: dict[str, str | Computed | None] = {
    "attention.causal": lambda config: False,
    "attention.sliding_window": None,
    "attention.sliding_window_pattern": None,
}
IN_PLACE: dict[str, str | Computed | None] = {"diffusion.shift_logits": lambda config: False}

DREAM = QWEN2.derive(
    name="dream",
    hf_classes=("DreamModel",),
    metadata=IS_GLOBAL_LAYER,
    defaults={"model_type": "Dream"},
    config_from_gguf=None,
    block={"causal": False},
)

LLADA = LLAMA.derive(
    name="llada",
    hf_classes=("LLaDAModelLM",),
    vocab=("bpe",),
    layers="blocks",
    prefixes=("model.transformer", *LLAMA.prefixes),
    prepare_export=partial(head_inside, prefix="model.transformer", name="ff_out"),
    config_from_gguf=lambda keys, tensors: {
        "block_type": "llama",
        "layer_norm_type": "rms",
        "rope": True,
        "activation_type": "silu",
        "embedding_size": tensors["token_embd.weight"].shape[0],
    },
    metadata={
        **IS_GLOBAL_LAYER,
        **IN_PLACE,
        "context_length": "max_sequence_length",
        "feed_forward_length": "mlp_hidden_size",
        "rope.dimension_count": head_dim,
    },
    defaults={
        **dict.fromkeys(LLAMA.defaults),
        "rms_norm_eps": 1e-5,
        **needed("d_model", "n_heads", "n_layers", "max_sequence_length", "mlp_hidden_size"),
        "n_kv_heads": lambda config: config["n_heads"],
    },
    refused={
        "alibi": True,
        "attention_layer_norm": True,
        "scale_logits": True,
        "weight_tying": True,
        "rope": False,
        "multi_query_attention": True,
        "activation_type": other_than("silu"),
        "block_type": other_than("llama"),
        "layer_norm_type": other_than("rms"),
    },
    tensors={
        **dict.fromkeys(name for name in LLAMA.tensors if name.startswith("layers.")),
        **in_layers(
            {
                "attn_norm": "attn_norm",
                "q_proj": TensorMap("attn_q", interleave_rope("n_heads")),
                "k_proj": TensorMap("attn_k", interleave_rope("n_kv_heads|n_heads")),
                "v_proj": "attn_v",
                "attn_out": "attn_output",
                "ff_norm": "ffn_norm",
                "ff_proj": "ffn_gate",
                "up_proj": "ffn_up",
                "ff_out": "ffn_down",
            },
            "blocks",
        ),
        "wte": "token_embd",
        "ln_f": "output_norm",
        "ff_out": "output",
    },
    block={"causal": False},
)

LLADA_MOE = QWEN3_MOE.derive(
    name="llada-moe",
    hf_classes=("LLaDAMoEModelLM", "LLaDAMoEModel"),
    metadata={
        **IS_GLOBAL_LAYER,
        **IN_PLACE,
        "expert_feed_forward_length": "expert_intermediate_size",
        "expert_weights_norm": None,
    },
    defaults={"model_type": "llada", "head_dim": None},
    refused={"norm_topk_prob": True, "shared_expert_intermediate_size": lambda width: bool(width)},
    block={"causal": False, "normalize_experts": False},
)

RND1 = QWEN3_MOE.derive(
    name="rnd1",
    hf_classes=("RND1",),
    metadata={**IS_GLOBAL_LAYER, "expert_weights_norm": None},
    defaults={"model_type": "rnd1", "head_dim": 128, "norm_topk_prob": True},
    refused={"norm_topk_prob": False},
    block={"causal": False},
)
