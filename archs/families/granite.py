"""Granite: Llama's layers with scales on embedding, attention, residual and logits.

Granite 4 Vision (text): image features are added to the inputs of some layers. Granite MoE, with or without a shared
expert: softmax over the chosen experts' scores. Granite with windows in three of four layers and attention sinks (SWA);
with experts or without. Gate and up projections of experts stay together, the gate first. Granite 4 hybrids: Mamba-2
and attention layers, each followed by routed experts, a shared one, or just a dense net. Without rope
(`position_embedding_type` "nope") the file has `rope.scaling.finetuned` = false, as from llama.cpp. Models of this
class with only attention layers (Granite 4.0 Micro) become files of Granite or Granite MoE. Bamba: the hybrids' layers
with dense nets, half of each head rotates, and nothing is scaled. (llama.cpp's converter re-orders all of a head's rows
for that, and its files rotate the wrong pairs.) Reference: transformers `models/granite/`, `models/granitemoe/`,
`models/granitemoeshared/`, `models/granite_swa/`, `models/granitemoe_swa/`, `models/granitemoehybrid/`,
`models/bamba/`.
"""

from archs.config import changed, other_than, windowed_layers
from archs.experts import fused_experts, gate_and_up
from archs.families.llama import LLAMA
from archs.families.mamba import UNBOUNDED
from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import HParams
from archs.layer_types import with_kv_heads
from archs.rope import llama3_freqs, longrope_factors
from archs.spec import Architecture, Config, ConfigKeys, GgufKeys, TensorMap, Tensors, Transform, unchanged
from archs.tensor_maps import MAMBA2_KEYS, MAMBA_BIASES, gated_net, kv_heads_where, mamba2
from archs.transforms import interleave_rope, part
from archs.typed_json import ListOf, Whole
from quants.errors import ModelError


def hparams_hook(keys: Keys, usual: HParams) -> HParams:
    """Disable rope in files marked as without it."""
    rope = bool(keys.get("rope.scaling.finetuned"))
    return usual.with_layers(lambda index, own: {"rotates": own.rotates and rope})


def images(config: Config) -> list[int] | None:
    """Return for each layer the projector output of Granite 4 Vision that is added to its input, -1: none. The first
    output replaces the image itself.
    """
    count = int(config["num_hidden_layers"])
    targets = [layer + count if layer < 0 else layer for _, layer in config.get("deepstack_layer_map") or []]
    targets += config.get("spatial_target_layers") or []
    if not targets:
        return None
    if not 0 <= min(targets) <= max(targets) < count:
        raise ModelError(f"config.json has projectors for layers {targets}; there are {count}")
    outputs = [-1] * count
    for number, layer in list(enumerate(sorted(targets)))[1:]:
        outputs[layer] = number
    return outputs


GRANITE = LLAMA.derive(
    name="granite",
    hf_classes=("GraniteForCausalLM", "GraniteModel", "Granite4VisionForConditionalGeneration"),
    wrappers=("GraniteSpeechForConditionalGeneration", "GraniteSpeechPlusForConditionalGeneration"),
    keys={"deepstack_layer_map": ListOf(ListOf(Whole(-10_000, 10_000), 2)), "spatial_target_layers": ListOf(Whole())},
    metadata={
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
        "deepstack_mapping": images,
    },
    defaults={
        "head_dim": None,
        "attention_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    block={"logit_scale": "divide", "hparams_hook": hparams_hook, "scaled_images": True},
)

GRANITE_MOE = GRANITE.derive(
    name="granitemoe",
    hf_classes=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    vocab_keys={"add_space_prefix": False},
    metadata={"expert_shared_feed_forward_length": lambda config: config.get("shared_intermediate_size") or None},
    defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
    config_from_gguf=lambda keys, tensors: (
        {
            "architectures": ["GraniteMoeSharedForCausalLM"],
            "model_type": "granitemoeshared",
            "shared_intermediate_size": keys["expert_shared_feed_forward_length"],
        }
        if "expert_shared_feed_forward_length" in keys
        else {}
    ),
    tensors={
        **fused_experts("block_sparse_moe"),
        ".block_sparse_moe.router": "ffn_gate_inp",
        ".block_sparse_moe.router.layer": "ffn_gate_inp",
        ".block_sparse_moe.input_linear": gate_and_up("_exps"),
        ".block_sparse_moe.output_linear": "ffn_down_exps",
        ".shared_mlp.input_linear": gate_and_up("_shexp"),
        ".shared_mlp.output_linear": "ffn_down_shexp",
    },
    block={"scoring": "softmax_of_top"},
)


def rotating_layers(config: Config) -> list[bool] | None:
    """Return which layers have rope, if some have none (llama.cpp only knows an older key)."""
    rotating = [bool(each) for each in config.get("layer_rope_theta") or config.get("no_rope_layers") or []]
    return rotating if not all(rotating) else None


def base(config: Config) -> float:
    """Return the rotary base; that of layers goes first."""
    bases = set(config.get("layer_rope_theta") or ()) - {0}
    if len(bases) > 1:
        raise ModelError("config.json has several rotary bases (layer_rope_theta), which its files cannot express")
    return float(bases.pop() if bases else config["rope_theta"])


def granite_swa_config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the config of the class that experts select."""
    if "expert_count" in keys:
        config = {"architectures": ["GraniteMoeSWAForCausalLM"], "model_type": "granitemoe_swa"}
        config |= {"shared_intermediate_size": keys.get("expert_shared_feed_forward_length")}
    else:
        config = {"architectures": ["GraniteSWAForCausalLM"], "model_type": "granite_swa"}
    rotating = keys.get("attention.rope_pattern")
    bases = {} if rotating is None else {"layer_rope_theta": [keys["rope.freq_base"] * one for one in rotating]}
    return config | bases


GRANITE_SWA = GRANITE.derive(
    name="granite_swa",
    hf_classes=("GraniteSWAForCausalLM",),
    metadata={
        "rope.freq_base": base,
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: windowed_layers(config, lambda layer: layer % 4 != 0),
        "attention.rope_pattern": rotating_layers,
        "expert_shared_feed_forward_length": lambda config: config.get("shared_intermediate_size") or None,
    },
    defaults={
        "model_type": "granite_swa",
        "hidden_size": 2560,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "sliding_window": 128,
        "vocab_size": 100_352,
    },
    config_from_gguf=granite_swa_config_from_gguf,
    tensors={
        ".self_attn.sinks": "attn_sinks.weight",
        ".block_sparse_moe.router": "ffn_gate_inp",
        ".block_sparse_moe.router.layer": "ffn_gate_inp",
        ".block_sparse_moe.experts.gate_up_proj": "ffn_gate_up_exps.weight",
        ".block_sparse_moe.experts.down_proj": "ffn_down_exps.weight",
        ".block_sparse_moe.input_linear": "ffn_gate_up_exps",
        ".block_sparse_moe.output_linear": "ffn_down_exps",
        ".shared_mlp.input_linear": "ffn_up_shexp",
        ".shared_mlp.output_linear": "ffn_down_shexp",
    },
    generated=(lambda config: llama3_freqs(changed(config, rope_theta=base(config))), longrope_factors),
    block={"scoring": "softmax_of_top", "hparams_hook": None},
)

GRANITE_MOE_SWA = GRANITE_SWA.derive(
    hf_classes=("GraniteMoeSWAForCausalLM",),
    defaults={
        **GRANITE.defaults,
        "model_type": "granitemoe_swa",
        "sliding_window": 128,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    legacy_names=tuple(
        f"layers.{{i}}.block_sparse_moe.{older}" for older in ("router.layer", "input_linear", "output_linear")
    ),
)


def rotates(config: Config) -> bool:
    return config.get("position_embedding_type") == "rope"


def attends(config: Config) -> list[bool]:
    """Return which layers are attention layers."""
    return [layer_type in ("attention", "full_attention") for layer_type in config["layer_types"]]


def without_state_space(config: Config) -> Architecture | None:
    """Return the architecture that llama.cpp uses for models with only attention layers."""
    if not config.get("layer_types") or not all(attends(config)):
        return None
    return ATTENTION_AND_EXPERTS if config.get("num_experts_per_tok", 8) else ATTENTION_ONLY


def shared(part_of_net: str, transform: Transform = unchanged) -> TensorMap:
    """Return a weight of the shared net; without routed experts it is the layer's only one."""
    name = f"ffn_{part_of_net}"
    return TensorMap(lambda config: f"{name}_shexp" if config.get("num_local_experts") else name, transform)


GRANITE_HYBRID = GRANITE_MOE.derive(
    name="granitehybrid",
    hf_classes=("GraniteMoeHybridForCausalLM",),
    vocab_keys={"add_space_prefix": None},
    metadata={
        "context_length": lambda config: config["max_position_embeddings"] if rotates(config) else UNBOUNDED,
        "attention.head_count_kv": kv_heads_where(attends),
        "rope.scaling.finetuned": rotates,
        **MAMBA2_KEYS,
    },
    defaults={
        "layer_types": lambda config: ["mamba"] * config["num_hidden_layers"],
        "shared_intermediate_size": 1024,
        "mamba_d_conv": 4,
        "mamba_d_state": 256,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 128,
    },
    refused={"hidden_act": other_than("silu", "swish")},
    variant=without_state_space,
    flags_from_tensors=MAMBA_BIASES,
    config_from_gguf=lambda keys, tensors: {
        "layer_types": ["attention" if count else "mamba" for count in keys["attention.head_count_kv"]],
        "position_embedding_type": "rope" if keys.get("rope.scaling.finetuned") else "nope",
        "shared_intermediate_size": keys.get("expert_shared_feed_forward_length"),
    },
    tensors={
        **mamba2("mamba", "mamba_n_groups"),
        ".shared_mlp.input_linear": (shared("gate", part(0, 2)), shared("up", part(1, 2))),
        ".shared_mlp.output_linear": shared("down"),
    },
    layers_vary=True,
    block={"mixer": with_kv_heads("attention", "mamba2")},
)

ATTENTION_AND_EXPERTS = GRANITE_HYBRID.derive(
    name="granitemoe",
    metadata={"context_length": "max_position_embeddings"},
    variant=None,
    by_variant=True,
    refused={"hidden_act": None},
    block={"mixer": "attention"},
)

ATTENTION_ONLY = ATTENTION_AND_EXPERTS.derive(name="granite", block=GRANITE.block)


def bamba_layer_types(config: Config) -> list[str]:
    """Return each layer's mixer."""
    attention = config.get("attn_layer_indices") or ()
    return ["attention" if i in attention else "mamba" for i in range(config["num_hidden_layers"])]


def rotating_part(config: Config) -> int:
    """Return how many values of a head rotate: half of them. Raises ModelError for another number in the config."""
    width = int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    rotated = config.get("attn_rotary_emb") or width // 2
    if rotated != width // 2 or rotated % 2:
        raise ModelError(f"config.json lets {rotated} of a head's {width} values rotate; half, in pairs, were expected")
    return int(rotated)


BAMBA = GRANITE_HYBRID.derive(
    hf_classes=("BambaForCausalLM",),
    variant=None,
    refused={"partial_rotary_factor": other_than(0.5)},  # transformers reads it only in `rope_parameters`
    metadata={
        "context_length": "max_position_embeddings",
        "rope.scaling.finetuned": lambda config: True,
        "rope.dimension_count": rotating_part,
        "attention.scale": None,
        "embedding_scale": None,
        "residual_scale": None,
        "logit_scale": None,
        "expert_shared_feed_forward_length": None,
    },
    defaults={
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-5,
        "num_local_experts": None,
        "num_experts_per_tok": None,
        "shared_intermediate_size": None,
        "layer_types": bamba_layer_types,
        "vocab_size": 128_000,
    },
    config_from_gguf=lambda keys, tensors: {
        "attn_layer_indices": [i for i, count in enumerate(keys["attention.head_count_kv"]) if count],
        "attn_rotary_emb": keys["rope.dimension_count"],
    },
    tensors={
        ".self_attn.q_proj": TensorMap("attn_q", interleave_rope("num_attention_heads", rotating_part)),
        ".self_attn.k_proj": TensorMap("attn_k", interleave_rope("num_key_value_heads", rotating_part)),
        **gated_net("feed_forward"),
        ".pre_ff_layernorm": "ffn_norm",
        "final_layernorm": "output_norm",
    },
)
