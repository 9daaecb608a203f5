"""Qwen2 and Qwen2.5: Llama's layers with biases on q, k and v, and optional windows; rotates halves, as HF does.

KORMo: Qwen2's layers, other names. dots.ocr (text) has Qwen2's. Qwen2-VL, Qwen2.5-VL and Qwen2.5-Omni (text): Qwen2's
layers with multi-section rope: time, height and width of images rotate separate pairs. In a text the three are the
same. Qwen1.5-MoE and Qwen2-MoE: Qwen2's attention, routed experts, and a shared expert with a gate of its own. The
router's weights are not rescaled to sum to one. Reference: transformers `models/qwen2/`, `models/qwen2_vl/`,
`models/qwen2_5_vl/`, `models/qwen2_moe/`.
"""

from archs.config import windows
from archs.experts import FUSED_EXPERTS, SEPARATE_EXPERTS, dense_layers, renormalized
from archs.families.llama import HALVES
from archs.layer_types import EXPERTS_OR_DENSE
from archs.spec import Config, ConfigKeys, GgufKeys, Tensors
from archs.tensor_maps import gated_net
from quants.errors import ModelError


def with_biases(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Raise ModelError for a file without biases of q, k and v, which Qwen2's class always has."""
    if "blk.0.attn_q.bias" not in tensors:
        raise ModelError("its class always has biases of q, k and v, which the file lacks")
    return {}


def without_biases(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Raise ModelError for a file with those biases, which KORMo's class never has."""
    if "blk.0.attn_q.bias" in tensors:
        raise ModelError("its class has no biases of q, k and v")
    return {}


QWEN2 = HALVES.derive(
    name="qwen2",
    hf_classes=("Qwen2ForCausalLM", "Qwen2Model", "DotsOCRForCausalLM"),
    wrappers=(
        "AudioFlamingo3ForConditionalGeneration",
        "InternVLForConditionalGeneration",
        "Qwen2AudioForConditionalGeneration",
    ),
    vocab=("bpe", "sentencepiece"),
    metadata=windows(lambda config, layer: layer >= config["max_window_layers"]),
    defaults={"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    config_from_gguf=with_biases,
)

KORMO = QWEN2.derive(
    hf_classes=("KORMoForCausalLM",),
    wrappers=(),
    config_from_gguf=without_biases,
    defaults={"model_type": "kormo"},
    tensors={
        ".input_layernorm": None,
        ".post_attention_layernorm": None,
        ".pre_attention_layernorm": "attn_norm",
        ".pre_mlp_layernorm": "ffn_norm",
    },
)


def sections(config: Config) -> list[int] | None:
    """Return how many pairs each section of a position rotates, as four numbers."""
    given = config.get("mrope_section")
    return [*given, 0, 0, 0, 0][:4] if given else None


QWEN2_VL = QWEN2.derive(
    name="qwen2vl",
    config_from_gguf=None,
    hf_classes=("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "Qwen2VLModel"),
    vocab=("sentencepiece", "bpe"),
    metadata={"rope.dimension_sections": sections},
    defaults={
        "hidden_size": 8192,
        "intermediate_size": 29_568,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "max_window_layers": 80,
        "mrope_section": [16, 24, 24],
        "vocab_size": 152_064,
    },
)

QWEN2_5_OMNI = QWEN2_VL.derive(
    hf_classes=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
    defaults={
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "max_window_layers": 28,
    },
)

QWEN2_MOE = QWEN2.derive(
    name="qwen2moe",
    hf_classes=("Qwen2MoeForCausalLM", "Qwen2MoeModel"),
    metadata={
        **windows(lambda config, layer: layer % 2 == 0 and layer < config["max_window_layers"]),
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        "expert_weights_norm": renormalized(usual=False),
    },
    defaults={
        "model_type": "qwen2_moe",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts": 60,
        "num_experts_per_tok": 4,
    },
    tensors={
        **FUSED_EXPERTS,
        ".mlp.gate": "ffn_gate_inp",
        **SEPARATE_EXPERTS,
        ".mlp.shared_expert_gate": "ffn_gate_inp_shexp",
        **gated_net("mlp.shared_expert", "_shexp"),
    },
    config_from_gguf=dense_layers,
    flags_from_tensors={"qkv_bias": "blk.*.attn_q.bias"},
    layers_vary=True,
    block={"net": EXPERTS_OR_DENSE},
)
