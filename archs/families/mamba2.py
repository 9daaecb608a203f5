"""Mamba-2: a state for each head of channels, one projection for everything, a gated norm before the last.

Reference: transformers `models/mamba2/modeling_mamba2.py`.
"""


from archs.families.mamba import MAMBA, inner_size
from archs.spec import Computed, Config, ConfigKeys, GgufKeys, TensorMap, Tensors
from archs.transforms import column, in_groups


def step_limit(which: int) -> Computed:
    """The bounds of time steps, where they bound anything (llama.cpp drops them)."""

    def limit(config: Config) -> float | None:
        bound = float((config.get("time_step_limit") or (0.0, float("inf")))[which])
        return bound if 0 < bound < float("inf") else None

    return limit


def limits(keys: GgufKeys) -> ConfigKeys:
    """`time_step_limit` again, where there is one."""
    low, high = keys.get("ssm.time_step_min", 0.0), keys.get("ssm.time_step_max", float("inf"))
    return {} if (low, high) == (0.0, float("inf")) else {"time_step_limit": [low, high]}


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    inner, heads = keys["ssm.inner_size"], keys["ssm.time_step_rank"]
    found = {"expand": inner / keys["embedding_length"], "head_dim": inner // heads, "num_heads": heads}
    return found | {"intermediate_size": inner} | limits(keys)


MAMBA2 = MAMBA.derive(
    name="mamba2",
    hf_classes=("Mamba2ForCausalLM",),
    metadata={
        "ssm.time_step_rank": lambda config: inner_size(config) // config["head_dim"],
        "ssm.group_count": "n_groups",
        "ssm.time_step_min": step_limit(0),
        "ssm.time_step_max": step_limit(1),
        "ssm.dt_b_c_rms": None,
        "ssm.dt_b_c_rms_epsilon": None,
    },
    defaults={
        "hidden_size": 4096, "num_hidden_layers": 64, "state_size": 128, "head_dim": 64, "n_groups": 8,
        "vocab_size": 32_768,
    },
    config_from_gguf=config_from_gguf,
    tensors={
        "lm_head": "output",
        "layers.{i}.mixer.x_proj": None,
        "layers.{i}.mixer.dt_proj": None,
        "layers.{i}.mixer.dt_bias": "blk.{i}.ssm_dt.bias",
        "layers.{i}.mixer.D": TensorMap("blk.{i}.ssm_d", column),
        "layers.{i}.mixer.norm": TensorMap("blk.{i}.ssm_norm", in_groups("n_groups")),
    },
)  # fmt: skip
