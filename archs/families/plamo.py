"""PLaMo 3: Llama's layers with norms of q and k and after each part; windows in all layers but every eighth.

PLaMo 2: the same norms around alternating Mamba and attention layers. Its state spaces have a time step for each head,
as Mamba-2's, made from normed low-rank inputs, as Jamba's; gate and inputs of a head are neighbours. Norm weights are
stored less their initial value: 1, or less after parts, so that layers add little at first. PLaMo 1: attention and net
in parallel after one norm; queries that share a key are interleaved, and are re-ordered. Reference: the code of the
checkpoints; vLLM's `plamo2.py`, `plamo3.py`; llama.cpp's graphs.
"""

import numpy as np

from archs.config import changed, other_than, unless_tied
from archs.families.llama import HALVES
from archs.hparams.file_keys import with_window
from archs.layer_types import with_kv_heads
from archs.rope import yarn_settings
from archs.spec import Computed, Config, ConfigKeys, GgufKeys, Index, Target, TensorMap, Tensors
from archs.tensor_maps import as_it_is, gated_net
from archs.transforms import added, chain, channels_and_taps, flat, negative_exp, reordered, transpose
from quants import FormatError
from quants.errors import ModelError

NORMS: dict[str, Target] = {
    ".pre_mixer_norm": TensorMap("attn_norm", added(1)),
    ".pre_mlp_norm": TensorMap("ffn_norm", added(1)),
    ".post_mixer_norm.weight": TensorMap("post_attention_norm", added(1 / 5)),  # llama.cpp's names have no suffix
    ".post_mlp_norm.weight": TensorMap("post_ffw_norm", added(1 / 5**1.5)),
    ".mixer.qkv_proj": "attn_qkv",
    ".mixer.o_proj": "attn_output",
    ".mlp.gate_up_proj": "ffn_up",
    ".mlp.down_proj": "ffn_down",
}

YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
VARYING = ("factor", "original_max_position_embeddings")


def window(config: Config) -> int | None:
    """Return the window; 0 and null mean none."""
    return config.get("window_size") or config.get("sliding_window") or None


def prepare3(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return the config with their own spelling of YaRN translated."""
    factor = config.get("rope_scaling_factor") or 1
    if factor == 1 or config.get("rope_scaling"):
        return config, tensors
    yarn = {
        "rope_type": "yarn",
        "factor": float(factor),
        **YARN,
        "original_max_position_embeddings": config["initial_context_length"],
    }
    return changed(config, rope_scaling=yarn), tensors


def config3_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return windows and YaRN in their own spelling. Raises ModelError for a scaling without one."""
    others = (
        "sliding_window",
        "use_sliding_window",
        "layer_types",
        "rope_scaling",
        "attention_bias",
        "mlp_bias",
        "hidden_act",
    )
    config: ConfigKeys = {
        "window_size": keys.stored("attention.sliding_window"),
        "linear_type": "normal",
        **dict.fromkeys(others, ...),
    }
    if isinstance(period := keys.get("attention.sliding_window_pattern") or 8, list):
        raise ModelError("windows are not left out of every so many layers; PLaMo 3's config has a number for that")
    if rope_type := keys.stored("rope.scaling.type"):
        usual = {"rope_type": "yarn", **YARN}
        if {key: value for key, value in yarn_settings(keys).items() if key not in VARYING} != usual:
            raise ModelError(f"its rotation is scaled otherwise ({rope_type}) than PLaMo 3's YaRN")
        config |= {
            "rope_scaling_factor": keys["rope.scaling.factor"],
            "initial_context_length": keys["rope.scaling.original_context_length"],
        }
    return {**config, "sliding_window_pattern": period}


PLAMO3 = HALVES.derive(
    name="plamo3",
    hf_classes=("Plamo3ForCausalLM", "PLaMo3ForCausalLM"),
    vocab=("plamo",),
    layers="layers.layers",
    metadata={
        "vocab_size": "vocab_size",
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": lambda config: config["sliding_window_pattern"] if window(config) else None,
        "rope.freq_base_swa": "rope_local_theta|rope_local_base_freq",
    },
    defaults={
        "model_type": "plamo3",
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_local_theta": 10_000,
        "sliding_window_pattern": 8,
        "window_size": 2048,
        "tie_word_embeddings": True,
    },
    activation="hidden_act",
    config_from_gguf=config3_from_gguf,
    prefixes=("model",),
    prepare=prepare3,
    prepare_export=as_it_is,
    tensors={
        **dict.fromkeys(name for name in HALVES.tensors if name.startswith("layers.")),
        **NORMS,
        ".mixer.q_norm": TensorMap("attn_q_norm", added(1)),
        ".mixer.k_norm": TensorMap("attn_k_norm", added(1)),
        "norm": TensorMap("output_norm", added(1)),
        "lm_head": TensorMap(unless_tied("output")),
    },
    absent={"rope.freq_base_swa": with_window(10_000.0)},
    block={"window_period": 8, "scales_windowed_rope": False},
)


def attends(config: Config) -> list[bool]:
    """Return which layers are attention layers: one of each period, or the last if there is not even half of one."""
    count, period = config["num_hidden_layers"], config["mamba_step"]
    if count <= period // 2:
        return [i == count - 1 for i in range(count)]
    return [i % period == period // 2 for i in range(count)]


def in_attention(key: str) -> Computed:
    """Return a number of heads in attention layers, 0 in others."""
    return lambda config: [config[key] if each else 0 for each in attends(config)]


def config2_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the period of attention layers. Raises ModelError if they have none."""
    config: ConfigKeys = {"num_hidden_layers": keys["block_count"], "mamba_enabled": True, "linear_type": "normal"}
    heads, groups = keys["attention.head_count"], keys["attention.head_count_kv"]
    for period in range(1, 2 * len(heads) + 2):
        config["mamba_step"] = period
        if attends(config) == [each > 0 for each in heads]:
            own = {"num_attention_heads": max(heads), "num_key_value_heads": max(groups)}
            return config | own | dict.fromkeys(("rope_scaling", "attention_bias", "mlp_bias", "hidden_act"), ...)
    raise ModelError("its attention layers have no period; their config has a number for that")


PLAMO2 = PLAMO3.derive(
    name="plamo2",
    hf_classes=("Plamo2ForCausalLM", "PLaMo2ForCausalLM"),
    prepare=None,
    prepare_export=None,
    config_from_gguf=config2_from_gguf,
    metadata={
        "attention.head_count": in_attention("num_attention_heads"),
        "attention.head_count_kv": in_attention("num_key_value_heads"),
        "attention.key_length": "hidden_size_per_head",
        "attention.value_length": "hidden_size_per_head",
        "attention.sliding_window": None,
        "attention.sliding_window_pattern": None,
        "rope.freq_base_swa": None,
        "ssm.state_size": "mamba_d_state",
        "ssm.conv_kernel": "mamba_d_conv",
        "ssm.time_step_rank": "mamba_num_heads",
        "ssm.inner_size": lambda config: config["mamba_num_heads"] * config["hidden_size_per_head"],
        "ssm.group_count": lambda config: 0,
    },
    defaults={
        "model_type": "plamo2",
        "intermediate_size": 13_312,
        "num_key_value_heads": 4,
        "head_dim": None,
        "hidden_size_per_head": 128,
        "max_position_embeddings": 2048,
        "rope_theta": 10_000.0,
        "mamba_d_state": 64,
        "mamba_d_conv": 4,
        "mamba_num_heads": 64,
        "mamba_step": 2,
        "rope_local_theta": None,
        "window_size": None,
        "sliding_window_pattern": None,
    },
    refused={"mamba_enabled": False},
    tensors={
        ".mixer.q_norm": None,
        ".mixer.k_norm": None,
        ".mixer.q_weight": "attn_q_norm.weight",
        ".mixer.k_weight": "attn_k_norm.weight",
        ".mixer.in_proj": "ssm_in",
        ".mixer.bcdt_proj": "ssm_x",
        ".mixer.conv1d": TensorMap("ssm_conv1d", channels_and_taps),
        ".mixer.A_log": TensorMap("ssm_a", chain(negative_exp, flat)),
        ".mixer.D": "ssm_d",
        ".mixer.dt_proj": "ssm_dt",
        ".mixer.dt_bias": "ssm_dt.bias",
        **{f".mixer.{name}_norm_weight": f"ssm_{name.lower()}_norm" for name in ("dt", "B", "C")},
        ".mixer.out_proj": "ssm_out",
    },
    absent={"rope.freq_base_swa": None},
    layers_vary=True,
    block={"window_period": 0, "mixer": with_kv_heads("attention", "mamba_heads")},
)


def in_groups(rows: int, config: Config) -> Index:
    """Return queries that share a key one after the other; they are stored as far apart as there are keys."""
    heads, shared = config["num_attention_heads"], config["n_shared_head"]
    if heads % shared or rows % heads:
        raise FormatError(f"{rows} rows; {heads} heads (num_attention_heads) of which {shared} share a key don't fit")
    index: Index = np.arange(rows).reshape(shared, heads // shared, -1).swapaxes(0, 1).reshape(-1)
    return index


PLAMO = HALVES.derive(
    name="plamo",
    hf_classes=("PlamoForCausalLM",),
    vocab=("sentencepiece",),
    layers="layers.layers",
    metadata={
        "attention.head_count_kv": lambda config: config["num_attention_heads"] // config["n_shared_head"],
        "attention.key_length": None,
        "attention.value_length": None,
        "rope.freq_base": None,
    },
    defaults={
        "model_type": "plamo",
        "hidden_size": 4096,
        "intermediate_size": 13_824,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "n_shared_head": 8,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "vocab_size": 32_000,
    },
    refused={"hidden_act": other_than("silu")},
    activation="hidden_act",
    prefixes=("model",),
    config_from_gguf=lambda keys, tensors: {
        "num_key_value_heads": ...,
        "rope_theta": ...,
        "rope_scaling": ...,
        "attention_bias": ...,
        "mlp_bias": ...,
        "n_shared_head": keys["attention.head_count"] // keys["attention.head_count_kv"],
    },
    tensors={
        **dict.fromkeys(name for name in HALVES.tensors if name.startswith("layers.")),
        ".norm": "attn_norm",
        ".self_attn.q_proj": TensorMap("attn_q", reordered(in_groups)),
        ".self_attn.k_proj": "attn_k",
        ".self_attn.v_proj": "attn_v",
        ".self_attn.o_proj": TensorMap("attn_output", chain(transpose, reordered(in_groups), transpose)),
        **gated_net("mlp"),
    },
    block={"parallel": True},
)
