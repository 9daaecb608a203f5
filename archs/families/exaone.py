"""EXAONE 4: norms only after attention and feed-forward net, a norm on each head of q and k; the larger model has
windows in three of four layers, and rope only in those.

EXAONE 3 and 3.5: Llama's layers under GPT-2's names. EXAONE 4.5 (text): EXAONE 4's layers, one or more MTP layers.
K-EXAONE: windows in three of four layers and rope only in those, a norm on each head of q and k, DeepSeek V3's routing,
MTP layers. Reference: transformers `models/exaone4/`, `models/exaone4_5/`, `models/exaone_moe/`; for EXAONE 3
llama.cpp's graph.
"""

from archs.config import windowed_layers
from archs.experts import net_types, shared_width
from archs.families.deepseek2 import DOTS1
from archs.families.llama import HALVES
from archs.families.olmo import OLMO2
from archs.hparams.file_keys import Derived, with_experts
from archs.layer_types import EXPERTS_OR_DENSE
from archs.rope import rotated_width, scaling_type
from archs.spec import Config
from archs.tensor_maps import MTP_KEYS, MTP_TENSORS, gated_net, mtp_layers, published_mtp
from archs.typed_json import Either, ListOf, Text, Whole

MTP_LAYER_TYPES = {"mtp_layer_types": ListOf(Text(("full_attention", "sliding_attention")))}
PATTERN = {"sliding_window_pattern": Either((Whole(), Text(form="[LG]+")))}


def window_pattern(config: Config) -> list[bool] | None:
    """Return which layers have a window: by a repeated word of L and G, or all but every n-th."""
    if not config.get("sliding_window"):
        return None
    pattern = config.get("sliding_window_pattern") or 4
    if isinstance(pattern, str):
        return windowed_layers(config, lambda layer: pattern[layer % len(pattern)] == "L")
    return windowed_layers(config, lambda layer: (layer + 1) % int(pattern) != 0)


def windows_of_all(config: Config) -> list[bool] | None:
    """Return `window_pattern`, with items for MTP layers if their type is not the first layer's."""
    windowed, mtp_types = window_pattern(config), config.get("mtp_layer_types") or []
    mtp_windowed = [layer_type == "sliding_attention" for layer_type in mtp_types[: config["num_nextn_predict_layers"]]]
    return [*windowed, *mtp_windowed] if windowed and mtp_windowed != windowed[:1] * len(mtp_windowed) else windowed


EXAONE4 = OLMO2.derive(
    name="exaone4",
    hf_classes=("Exaone4ForCausalLM", "Exaone4Model"),
    keys=PATTERN,
    config_from_gguf=lambda keys, tensors: (  # without a window transformers needs the type of each layer
        {} if "attention.sliding_window" in keys else {"layer_types": ["full_attention"] * keys["block_count"]}
    ),
    metadata={
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": window_pattern,
        "vocab_size": "vocab_size",
    },
    absent={
        "attention.sliding_window": Derived(
            "",
            lambda keys: 4096 if keys.layer_count == 64 else None,
            "4096 in 64 layers",  # the 32B model
        )
    },
    defaults={"intermediate_size": 16_384, "sliding_window": 4096, "vocab_size": 102_400},
    block={"rope_layers": "windowed", "scales_windowed_rope": True},
)

EXAONE4_5 = EXAONE4.derive(
    hf_classes=("Exaone4_5_ForConditionalGeneration",),
    prepare=mtp_layers,
    prepare_export=published_mtp,
    defaults={"model_type": "exaone4_5_text", "num_nextn_predict_layers": 0},
    metadata=MTP_KEYS,
    tensors=MTP_TENSORS,
)

EXAONE = HALVES.derive(
    name="exaone",
    hf_classes=("ExaoneForCausalLM",),
    layers="h",
    activation="activation_function|hidden_act",
    metadata={
        "rope.dimension_count": rotated_width,
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",  # which llama.cpp reads, though it writes the other
    },
    defaults={
        "num_hidden_layers": None,
        "num_layers": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": None,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": 102_400,
    },
    tensors={
        **dict.fromkeys(HALVES.tensors),
        "wte": "token_embd",
        "ln_f": "output_norm",
        "lm_head": "output",
        ".ln_1": "attn_norm",
        ".attn.attention.q_proj": "attn_q",
        ".attn.attention.k_proj": "attn_k",
        ".attn.attention.v_proj": "attn_v",
        ".attn.attention.out_proj": "attn_output",
        ".ln_2": "ffn_norm",
        **gated_net("mlp", matrices=("c_fc_0", "c_fc_1", "c_proj")),
    },
    prefixes=("transformer", "model"),
)

EXAONE_MOE = DOTS1.derive(
    name="exaone-moe",
    hf_classes=("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
    keys=PATTERN | MTP_LAYER_TYPES,
    prepare=mtp_layers,
    prepare_export=published_mtp,
    metadata={
        "block_count": MTP_KEYS["block_count"],
        "vocab_size": "vocab_size",
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": windows_of_all,
        "expert_shared_count": "num_shared_experts",
        "expert_shared_feed_forward_length": shared_width,
        "nextn_predict_layers": "num_nextn_predict_layers",
        "rope.scaling.type": scaling_type,
    },
    defaults={
        "model_type": "exaone_moe",
        "hidden_size": 4096,
        "intermediate_size": 16_384,
        "num_hidden_layers": 32,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1024,
        "num_experts": 64,
        "num_shared_experts": 1,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 0,
        "vocab_size": 102_400,
    },
    absent={"expert_weights_norm": with_experts(False)},
    unread=("rope.freq_base_swa",),
    config_from_gguf=net_types,
    tensors={".mlp.e_score_correction_bias": "exp_probs_b.bias", **MTP_TENSORS},
    block={
        "window_period": 4,
        "rope_layers": "windowed",
        "scoring": "sigmoid",
        "normalize_experts": True,
        "net": EXPERTS_OR_DENSE,
    },
)
