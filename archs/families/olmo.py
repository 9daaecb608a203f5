"""OLMo: Llama's layers with layer norms that have no weights, and q, k, v that may be clipped.

As first published (`OLMoForCausalLM`), q/k/v and both halves of a net are fused, up first.
OLMo 2 and 3: norms after attention and feed-forward net only, and over all heads of q and k; OLMo 3 has windows.
OLMoE: routed experts whose weights are not rescaled, and norms over all of q and of k.
Reference: transformers `models/olmo/`, `models/olmo2/`, `models/olmo3/`, `models/olmoe/`.
"""

from archs.config import needed, other_than, windowed_layers
from archs.experts import renormalized
from archs.families.llama import HALVES, LLAMA
from archs.families.qwen3 import QWEN3_MOE
from archs.spec import Architecture, Config, ConfigKeys, GgufKeys, TensorMap, Tensors
from archs.tensor_maps import head_norms
from archs.transforms import chain, interleave_rope, part, projection
from quants.errors import ModelError

OLMO = LLAMA.derive(
    name="olmo",
    hf_classes=("OlmoForCausalLM", "OlmoModel", "OLMoForCausalLM"),
    vocab=("bpe",),
    variant=lambda config: OLMO_FIRST if config.get("d_model") else None,
    metadata={
        "attention.clamp_kqv": "clip_qkv",
        "attention.layer_norm_epsilon": lambda config: 1e-5,
        "vocab_size": None,
        "rope.dimension_count": None,
    },
    defaults={"head_dim": None, "rms_norm_eps": None, "vocab_size": 50_304},
    tensors={".input_layernorm": None, ".post_attention_layernorm": None, "norm": None},
    block={"norm": "layer_without_weights"},
)


def kv_heads(config: Config) -> int:
    return int(config.get("n_kv_heads") or (1 if config.get("multi_query_attention") else config["n_heads"]))


def of_both(config: Config) -> int:
    """Return the rows of both halves of a net."""
    return int(config.get("mlp_hidden_size") or config["mlp_ratio"] * config["d_model"])


HEADS, KV_HEADS = "num_attention_heads", "num_key_value_heads"

OLMO_FIRST: Architecture = OLMO.derive(
    hf_classes=("OLMoForCausalLM",),
    by_variant=True,
    variant=None,
    layers="blocks",
    prefixes=("model", "transformer"),
    metadata={"context_length": "max_sequence_length", "feed_forward_length": lambda config: of_both(config) // 2},
    defaults={
        **dict.fromkeys(OLMO.defaults),
        "mlp_ratio": 4,
        "rope_theta": 10_000.0,
        **needed("d_model", "n_heads", "n_layers", "max_sequence_length"),
        HEADS: lambda config: config["n_heads"],
        KV_HEADS: kv_heads,
    },
    tensors={
        **dict.fromkeys(OLMO.tensors),
        "wte": "token_embd",
        ".att_proj": (
            TensorMap("attn_q", chain(projection("q"), interleave_rope(HEADS))),
            TensorMap("attn_k", chain(projection("k"), interleave_rope(KV_HEADS))),
            TensorMap("attn_v", projection("v")),
        ),
        ".attn_out": "attn_output",
        ".ff_proj": (TensorMap("ffn_up", part(0, 2)), TensorMap("ffn_gate", part(1, 2))),
        ".ff_out": "ffn_down",
        "ff_out": "output",
    },
    refused={
        "alibi": True,
        "rope": False,
        "attention_layer_norm": True,
        "scale_logits": True,
        "block_type": other_than("sequential"),
        "activation_type": other_than("swiglu"),
        "layer_norm_type": other_than("default"),
    },
)


def without_window(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    if "attention.sliding_window" in keys:
        raise ModelError("OLMo 2 has no windows")
    return {}


OLMO2 = HALVES.derive(
    name="olmo2",
    hf_classes=("Olmo2ForCausalLM", "Olmo2Model"),
    defaults={"intermediate_size": 11_008, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "vocab_size": 50_304},
    config_from_gguf=without_window,
    tensors={
        ".input_layernorm": None,
        **head_norms(),
        ".post_attention_layernorm": "post_attention_norm",
        ".post_feedforward_layernorm": "post_ffw_norm",
    },
    block={"window_period": 4, "scales_windowed_rope": False},
)

THETA = 500_000.0

OLMO3 = OLMO2.derive(
    hf_classes=("Olmo3ForCausalLM", "Olmo3Model"),
    config_from_gguf=None,
    rope_parameters="by type",
    metadata={
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: windowed_layers(config, lambda layer: (layer + 1) % 4 != 0),
    },
    defaults={
        "sliding_window": 4096,
        "rope_theta": THETA,
        # transformers applies a base without layer types only to layers without a window
        "rope_local_base_freq": lambda config: THETA if config["rope_theta"] != THETA else None,
    },
)

OLMOE = QWEN3_MOE.derive(
    name="olmoe",
    hf_classes=("OlmoeForCausalLM", "OlmoeModel"),
    metadata={
        "attention.clamp_kqv": "clip_qkv",
        "attention.sliding_window": None,
        "attention.sliding_window_pattern": None,
        "expert_feed_forward_length": None,
        "expert_weights_norm": renormalized(usual=False),
    },
    defaults={
        "intermediate_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": lambda config: config["num_attention_heads"],
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "num_experts": 64,
        "vocab_size": 50_304,
    },
    config_from_gguf=None,
    block={"qkv_steps": ("norm", "clamp", "rope"), "normalize_experts": False},
)
