"""Mamba and Falcon-Mamba: state spaces instead of attention, nothing else in a layer. Falcon-Mamba also normalises the
inputs of time step, input and output matrix, without weights.

Mamba-2: a state for each head of channels, one projection for everything, a gated norm before the last. Jamba: Mamba
and attention layers, without positions, every second one with routed experts, whose weights are not rescaled to sum to
one. Reference: transformers `models/mamba/`, `models/falcon_mamba/`, `models/mamba2/`, `models/jamba/`.
"""

import math

from archs.config import lookup, other_than, required, unless_tied
from archs.experts import fused_experts, separate_experts
from archs.families.llama import HALVES
from archs.layer_types import EXPERTS_OR_DENSE, with_kv_heads
from archs.spec import Architecture, Config, ConfigKeys, GgufKeys, LayerSpec, TensorMap, Tensors
from archs.tensor_maps import MAMBA2_KEYS, MAMBA_BIASES, gated_net, kv_heads_where, mamba, mamba2
from quants.errors import ModelError

UNBOUNDED = 1 << 20  # the context that llama.cpp writes for models without a position limit


def inner_size(config: Config) -> int:
    """Return how many channels the state space has."""
    given = lookup(config, "intermediate_size|d_inner")
    return int(given or config["expand"] * required(config, "hidden_size|d_model"))


def time_step_rank(config: Config) -> int:
    """Return the rank of the time steps' projection."""
    given = lookup(config, "time_step_rank|dt_rank|mamba_dt_rank")
    return math.ceil(required(config, "hidden_size|d_model") / 16) if given in (None, "auto") else int(given)


def normalizes(config: Config) -> bool:
    return config.get("model_type") == "falcon_mamba"


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the config's sizes, and which of the two models it is."""
    config = {"intermediate_size": keys["ssm.inner_size"], "time_step_rank": keys["ssm.time_step_rank"]}
    if not keys.get("ssm.dt_b_c_rms"):
        return config
    named = {"architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba"}
    return {**config, **named, "mixer_rms_eps": keys.get("ssm.dt_b_c_rms_epsilon")}


MAMBA = Architecture("mamba", ("MambaForCausalLM", "MambaLMHeadModel", "FalconMambaForCausalLM")).derive(
    metadata={
        "context_length": lambda config: UNBOUNDED,
        "embedding_length": "hidden_size|d_model",
        "feed_forward_length": lambda config: 0,
        "attention.head_count": lambda config: 0,
        "block_count": "num_hidden_layers|n_layer",
        "ssm.conv_kernel": "conv_kernel|d_conv",
        "ssm.inner_size": inner_size,
        "ssm.state_size": "state_size|d_state",
        "ssm.time_step_rank": time_step_rank,
        "ssm.dt_b_c_rms": normalizes,
        "ssm.dt_b_c_rms_epsilon": lambda config: config.get("mixer_rms_eps", 1e-6) if normalizes(config) else None,
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon|rms_norm_eps",
    },
    defaults={
        "hidden_size": lambda config: config.get("d_model", 768),
        "num_hidden_layers": lambda config: config.get("n_layer", 32),
        "state_size": lambda config: config.get("d_state", 16),
        "conv_kernel": lambda config: config.get("d_conv", 4),
        "expand": 2,
        "tie_word_embeddings": True,
        "time_step_rank": "auto",
        "layer_norm_epsilon": 1e-5,
        "vocab_size": 50_280,
    },
    refused={"hidden_act": other_than("silu", "swish")},
    config_from_gguf=config_from_gguf,
    flags_from_tensors={"use_bias": "blk.*.ssm_in.bias", "use_conv_bias": "blk.*.ssm_conv1d.bias"},
    tensors={
        "embedding": "token_embd",
        "embeddings": "token_embd",
        ".norm": "attn_norm",
        **mamba("mixer"),
        ".mixer.x_proj": "ssm_x",
        ".mixer.dt_proj": "ssm_dt",
        "norm_f": "output_norm",
        "lm_head": TensorMap(unless_tied("output")),
    },
    prefixes=("backbone", "model", "language_model"),
    block=LayerSpec(rope="none", mixer="mamba", net="none"),
)


MAMBA2 = MAMBA.derive(
    name="mamba2",
    hf_classes=("Mamba2ForCausalLM",),
    metadata={
        "ssm.time_step_rank": lambda config: inner_size(config) // config["head_dim"],
        "ssm.group_count": "n_groups",
        "ssm.time_step_min": MAMBA2_KEYS["ssm.time_step_min"],
        "ssm.time_step_max": MAMBA2_KEYS["ssm.time_step_max"],
        "ssm.dt_b_c_rms": None,
        "ssm.dt_b_c_rms_epsilon": None,
    },
    defaults={
        "hidden_size": 4096,
        "num_hidden_layers": 64,
        "state_size": 128,
        "head_dim": 64,
        "n_groups": 8,
        "vocab_size": 32_768,
    },
    config_from_gguf=lambda keys, tensors: {
        "expand": keys["ssm.inner_size"] / keys["embedding_length"],
        "num_heads": keys["ssm.time_step_rank"],
        "head_dim": keys["ssm.inner_size"] // keys["ssm.time_step_rank"],
        "intermediate_size": keys["ssm.inner_size"],
    },
    tensors={"lm_head": "output", ".mixer.x_proj": None, ".mixer.dt_proj": None, **mamba2("mixer", "n_groups")},
    block={"mixer": "mamba2"},
)


def _every(layers: list[bool]) -> tuple[int, int]:
    """Return the period and the first of the layers that are true. Raises ModelError if they have none."""
    for period in range(1, len(layers) + 2):
        for offset in range(period):
            if layers == [layer % period == offset for layer in range(len(layers))]:
                return period, offset
    raise ModelError("its layer types have no period")


def jamba_config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the places of attention layers and of experts: one in every period."""
    groups = keys["attention.head_count_kv"]
    attention = _every([bool(count) for count in groups])
    experts = _every([f"blk.{i}.ffn_gate_inp.weight" in tensors for i in range(len(groups))])
    return {
        "attn_layer_period": attention[0],
        "attn_layer_offset": attention[1],
        "expert_layer_period": experts[0],
        "expert_layer_offset": experts[1],
        "mamba_dt_rank": keys["ssm.time_step_rank"],
    }


JAMBA = HALVES.derive(
    name="jamba",
    hf_classes=("JambaForCausalLM",),
    vocab=("sentencepiece", "bpe"),
    metadata={
        "attention.head_count_kv": kv_heads_where(
            lambda config: (
                i % config["attn_layer_period"] == config["attn_layer_offset"]
                for i in range(config["num_hidden_layers"])
            )
        ),
        "rope.freq_base": None,
        "ssm.conv_kernel": "mamba_d_conv",
        "ssm.inner_size": lambda config: int(config["mamba_expand"] * config["hidden_size"]),
        "ssm.state_size": "mamba_d_state",
        "ssm.time_step_rank": time_step_rank,
    },
    defaults={
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 262_144,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
        "mamba_dt_rank": "auto",
        "mamba_expand": 2,
        "vocab_size": 65_536,
    },
    refused={"hidden_act": other_than("silu", "swish")},
    config_from_gguf=jamba_config_from_gguf,
    flags_from_tensors=MAMBA_BIASES,
    tensors={
        **mamba("mamba"),
        ".mamba.x_proj": "ssm_x",
        ".mamba.dt_layernorm": "ssm_dt_norm",
        ".mamba.b_layernorm": "ssm_b_norm",
        ".mamba.c_layernorm": "ssm_c_norm",
        ".mamba.dt_proj": "ssm_dt",
        ".pre_ff_layernorm": "ffn_norm",
        **gated_net("feed_forward"),
        ".feed_forward.router": "ffn_gate_inp",
        **fused_experts("feed_forward"),
        **separate_experts("feed_forward"),
        "final_layernorm": "output_norm",
    },
    layers_vary=True,
    block={"rope": "none", "mixer": with_kv_heads("attention", "mamba"), "net": EXPERTS_OR_DENSE},
)
