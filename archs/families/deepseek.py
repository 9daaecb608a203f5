"""DeepSeek's first model with experts: Llama's layers, routed and shared experts, after leading dense layers. The
router's weights are not rescaled to sum to one unless the config says so.

DeepSeek-OCR, its second version and Unlimited-OCR (text): the same layers; halves rotate. Unlimited-OCR attends to the
prompt and to its latest output tokens; files keep only the window's length, and here, as in llama.cpp, attention is to
all. Reference: the code of their checkpoints; transformers `models/deepseek_ocr2/`, `models/unlimited_ocr/`.
"""

from archs.experts import FUSED_EXPERTS, SEPARATE_EXPERTS, SHARED, net_types, renormalized
from archs.families.llama import LLAMA
from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import HParams
from archs.rope import scaling_type, unusual_base
from archs.typed_json import Whole

DEEPSEEK = LLAMA.derive(
    name="deepseek",
    hf_classes=("DeepseekForCausalLM",),
    vocab=("sentencepiece", "bpe"),
    metadata={
        "rope.scaling.type": scaling_type,
        "leading_dense_block_count": "first_k_dense_replace",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_weights_scale": lambda config: 1.0,
        "expert_shared_count": "n_shared_experts",
        "expert_weights_norm": renormalized(usual=False),
        "expert_gating_func": lambda config: 1 if config.get("scoring_func") else None,
    },
    defaults={
        "first_k_dense_replace": 0,
        "n_routed_experts": None,
        "n_shared_experts": 0,
        "norm_topk_prob": False,
        "head_dim": None,
        "hidden_act": "silu",
        "vocab_size": 102_400,
    },
    config_from_gguf=lambda keys, tensors: {
        "norm_topk_prob": bool(keys.get("expert_weights_norm")),
        "first_k_dense_replace": net_types(keys, tensors)["mlp_layer_types"].count("dense"),
    },
    refused={"scoring_func": "sigmoid"},
    tensors={**FUSED_EXPERTS, ".mlp.gate": "ffn_gate_inp", **SEPARATE_EXPERTS, **SHARED},
    layers_vary=True,
    block={"normalize_experts": False},
)


def hparams_hook(keys: Keys, usual: HParams) -> HParams:
    """Rotate all of a head, whatever `rope.dimension_count` says, and drop the window."""
    return usual.with_layers(lambda index, own: {"rope_width": own.key_width, "window": None})


OCR = ("DeepseekOCRForCausalLM", "DeepseekOCR2ForCausalLM", "UnlimitedOCRForCausalLM")

DEEPSEEK_OCR = DEEPSEEK.derive(
    name="deepseek2-ocr",
    hf_classes=OCR,
    vocab=("bpe",),
    wrappers_refused=OCR,
    metadata={
        "rope.dimension_count": "qk_rope_head_dim",
        "rope.scaling.type": None,
        "attention.sliding_window": "sliding_window_size|sliding_window",
        "expert_weights_scale": "routed_scaling_factor",
        "expert_group_count": "n_group",
        "expert_group_used_count": "topk_group",
        "rope.freq_base": unusual_base,
    },
    keys=dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), Whole(0)),
    defaults={"rms_norm_eps": 1e-6},
    tensors={".self_attn.q_proj": "attn_q", ".self_attn.k_proj": "attn_k"},
    block={"rope": "halves", "hparams_hook": hparams_hook},
)
