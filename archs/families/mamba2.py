"""Mamba-2: a state for each head of channels, one projection for everything, a gated norm before the last.

Reference: transformers `models/mamba2/modeling_mamba2.py`.
"""


from archs.families.mamba import MAMBA, inner_size
from archs.layouts import MAMBA2_KEYS, mamba2, step_limits
from archs.spec import ConfigKeys, GgufKeys, Tensors


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    inner, heads = keys["ssm.inner_size"], keys["ssm.time_step_rank"]
    found = {"expand": inner / keys["embedding_length"], "head_dim": inner // heads, "num_heads": heads}
    return found | {"intermediate_size": inner} | step_limits(keys)


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
        "hidden_size": 4096, "num_hidden_layers": 64, "state_size": 128, "head_dim": 64, "n_groups": 8,
        "vocab_size": 32_768,
    },
    config_from_gguf=config_from_gguf,
    tensors={
        "lm_head": "output",
        "layers.{i}.mixer.x_proj": None,
        "layers.{i}.mixer.dt_proj": None,
        **mamba2("mixer", "n_groups"),
    },
)  # fmt: skip
