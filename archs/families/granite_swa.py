"""Granite with windows in three of four layers and attention sinks; with experts or without.

Reference: transformers `models/granite_swa/modeling_granite_swa.py`, `models/granitemoe_swa/`. Gate and up projections
of experts stay together, the gate first.
"""


from archs.config import changed, windowed_layers
from archs.families.granite import GRANITE
from archs.rope import llama3_freqs, longrope_factors
from archs.spec import Config, ConfigKeys, GgufKeys, Tensors, in_layers
from quants.errors import ModelError


def rotating_layers(config: Config) -> list[bool] | None:
    """Which layers have rope, where some have none (llama.cpp knows an older key only)."""
    rotating = [bool(each) for each in config.get("layer_rope_theta") or config.get("no_rope_layers") or []]
    return rotating if not all(rotating) else None


def base(config: Config) -> float:
    """The rotary base; that of layers goes first."""
    bases = set(config.get("layer_rope_theta") or ()) - {0}
    if len(bases) > 1:
        raise ModelError("config.json has several rotary bases (layer_rope_theta), which its files cannot express")
    return float(bases.pop() if bases else config["rope_theta"])


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Which class it is, experts tell."""
    if "expert_count" in keys:
        found = {"architectures": ["GraniteMoeSWAForCausalLM"], "model_type": "granitemoe_swa"}
        found |= {"shared_intermediate_size": keys.get("expert_shared_feed_forward_length", 0)}
    else:
        found = {"architectures": ["GraniteSWAForCausalLM"], "model_type": "granite_swa"}
    rotating = keys.get("attention.rope_pattern")
    bases = {} if rotating is None else {"layer_rope_theta": [keys["rope.freq_base"] * one for one in rotating]}
    return found | bases


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
        "model_type": "granite_swa", "hidden_size": 2560, "intermediate_size": 8192, "num_hidden_layers": 24,
        "num_attention_heads": 20, "num_key_value_heads": 4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
        "sliding_window": 128, "vocab_size": 100_352,
    },
    config_from_gguf=config_from_gguf,
    tensors=in_layers({
        "self_attn.sinks": "attn_sinks.weight", "block_sparse_moe.router": "ffn_gate_inp",
        "block_sparse_moe.router.layer": "ffn_gate_inp",
        "block_sparse_moe.experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "block_sparse_moe.experts.down_proj": "ffn_down_exps.weight",
        "block_sparse_moe.input_linear": "ffn_gate_up_exps", "block_sparse_moe.output_linear": "ffn_down_exps",
        "shared_mlp.input_linear": "ffn_up_shexp", "shared_mlp.output_linear": "ffn_down_shexp",
    }),
    generated=(lambda config: llama3_freqs(changed(config, rope_theta=base(config))), longrope_factors),
    block={"scoring": "softmax_of_top", "numbers": None},
)  # fmt: skip

GRANITE_MOE_SWA = GRANITE_SWA.derive(
    hf_classes=("GraniteMoeSWAForCausalLM",),
    defaults={
        **GRANITE.defaults, "model_type": "granitemoe_swa", "sliding_window": 128, "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    legacy_names=tuple(
        f"layers.{{i}}.block_sparse_moe.{older}" for older in ("router.layer", "input_linear", "output_linear")
    ),
)  # fmt: skip
