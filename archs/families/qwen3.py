"""Qwen3: Qwen2's layers without biases, with a norm on each head of q and k, and an explicit head width.

Qwen3-MoE: routed experts without a shared one, and a norm on each q and k head. Published configs rescale the chosen
weights, the default without `expert_weights_norm`. Qwen3-VL (text), dense and with experts: Qwen3's layers; experts are
stored together, as (in, out). Qwen3-ASR (text): Qwen3's layers, under Qwen3-VL's name if positions have sections.
Qwen3-Omni (thinker): Qwen3-VL's layers with experts. Mellum 2: Qwen3-MoE's layers with windows in some, each layer type
with rotary settings of its own. MTP layers are not supported. Reference: transformers `models/qwen3/`,
`models/qwen3_moe/`, `models/qwen3_vl/`, `models/qwen3_vl_moe/`, `models/mellum/`, `models/qwen3_omni_moe/`.
"""

from archs.config import lookup, windowed_layers, windows
from archs.experts import SEPARATE_EXPERTS, gate_and_up, net_types, renormalized
from archs.families.qwen2 import QWEN2, QWEN2_MOE, sections
from archs.spec import Computed, Config, TensorMap, in_layers
from archs.tensor_maps import head_norms
from archs.transforms import Invertible, transpose
from archs.typed_json import Unread
from quants import Tensor

QWEN3 = QWEN2.derive(
    name="qwen3",
    hf_classes=("Qwen3ForCausalLM", "Qwen3Model"),
    vocab=("bpe",),
    config_from_gguf=None,
    wrappers=("LightOnOCRForConditionalGeneration", "StepVLForConditionalGeneration"),
    defaults={"head_dim": 128},
    tensors={**head_norms()},
)

QWEN3_MOE = QWEN2_MOE.derive(
    name="qwen3moe",
    hf_classes=("Qwen3MoeForCausalLM", "Qwen3MoeModel"),
    metadata={
        **windows(lambda config, layer: True),
        "expert_shared_feed_forward_length": None,
        "expert_weights_norm": renormalized(usual=True),
    },
    defaults={
        "model_type": "qwen3_moe",
        "intermediate_size": 6144,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 768,
        "shared_expert_intermediate_size": None,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    },
    tensors={**head_norms()},
    block={"normalize_experts": True},
)


def columns(width: str) -> Invertible:
    """Return experts' matrices with a row for each output; transformers 5 saves them so, published ones are
    transposed.
    """

    def transform(tensor: Tensor, config: Config) -> Tensor:
        return tensor if tensor.shape[-1] == config[width] else transpose(tensor, config)

    def as_published(tensor: Tensor, config: Config) -> Tensor:
        """Return the published orientation. Square matrices stay: their orientation is ambiguous, and transformers
        takes them for its own.
        """
        return tensor if tensor.shape[-1] == tensor.shape[-2] else transpose(tensor, config)

    return Invertible(transform, as_published)


KEYS: dict[str, str | Computed | None] = {
    "rope.dimension_sections": sections,
    "n_deepstack_layers": lambda config: len(  # layers that also get image features
        lookup(config, "vision_config.deepstack_visual_indexes") or ()
    ),
    "attention.sliding_window": None,
    "attention.sliding_window_pattern": None,
}

QWEN3_VL = QWEN3.derive(
    name="qwen3vl",
    hf_classes=("Qwen3VLForConditionalGeneration",),
    metadata=KEYS,
    block={"interleaved_sections": True},
    defaults={"max_position_embeddings": 128_000, "rope_theta": 500_000.0, "mrope_section": [24, 20, 20]},
)

PARTS = "mrope_section"  # of positions

QWEN3_ASR = QWEN3.derive(
    name="qwen3vl",
    hf_classes=("Qwen3ASRForConditionalGeneration",),
    vocab_keys={"bos_token_id": "<|im_end|>"},
    metadata={**KEYS, "n_deepstack_layers": lambda config: 0},
    block={"interleaved_sections": True},
    refused={"use_sliding_window": True},
    variant=lambda config: None if lookup(config, f"rope_parameters.{PARTS}|rope_scaling.{PARTS}") else QWEN3,
)

QWEN3_VL_MOE = QWEN3_MOE.derive(
    name="qwen3vlmoe",
    hf_classes=("Qwen3VLMoeForConditionalGeneration",),
    metadata={**KEYS, "expert_weights_norm": None},
    block={"interleaved_sections": True},
    defaults={
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 128_000,
        "rope_theta": 500_000.0,
        "moe_intermediate_size": 1408,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "mrope_section": [24, 20, 20],
    },
    tensors={
        ".mlp.experts.gate_up_proj": gate_and_up("_exps.weight", columns("hidden_size")),
        ".mlp.experts.down_proj": TensorMap("ffn_down_exps.weight", columns("moe_intermediate_size")),
    },
    legacy_names=tuple(in_layers(SEPARATE_EXPERTS)),
)

QWEN3_OMNI_MOE = QWEN3_VL_MOE.derive(
    hf_classes=("Qwen3OmniMoeForConditionalGeneration",),
    vocab_keys={"bos_token_id": "<|im_end|>"},
    metadata={"n_deepstack_layers": lambda config: 0, "expert_weights_norm": renormalized(usual=True)},
    defaults={
        "norm_topk_prob": True,
        "intermediate_size": 768,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "rope_theta": 1_000_000.0,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 32_768,
        "hidden_size": 3584,
        "num_hidden_layers": 28,
    },
    legacy_names=tuple(in_layers({".mlp.experts.gate_up_proj": "", ".mlp.experts.down_proj": ""})),
)

MELLUM = QWEN3_MOE.derive(
    name="mellum",
    hf_classes=("MellumForCausalLM",),
    vocab=("bpe",),
    keys={"rope_scaling": Unread(), "rope_theta": Unread()},  # but `rope_parameters`
    metadata={
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: (
            windowed_layers(config, lambda layer: False) if config.get("sliding_window") else None
        ),
    },
    defaults={
        "hidden_size": 2304,
        "intermediate_size": 7168,
        "num_hidden_layers": 28,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rope_theta": lambda config: 500_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 1024,
        "moe_intermediate_size": 896,
        "num_experts": 64,
        "norm_topk_prob": True,
        "vocab_size": 98_304,
    },
    config_from_gguf=net_types,
    rope_parameters="by type",
    refused={"num_mtp_layers": lambda count: bool(count)},
    block={"window_period": 4, "scales_windowed_rope": False},
)
