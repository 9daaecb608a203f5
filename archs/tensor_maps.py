"""Tensor names shared by several families: feed-forward nets, norms, state spaces, MTP layers.

Names of tensors begin with ".": `archs.spec.Architecture.derive` puts the layer in front.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from quants.errors import ModelError

from .spec import Computed, Config, ConfigKeys, GgufKeys, Target, TensorMap, Tensors
from .transforms import channels_and_taps, column, in_groups, negative_exp

MATRICES = ("gate_proj", "up_proj", "down_proj")
QKV: dict[str, Target] = {f".self_attn.{letter}_proj": f"attn_{letter}" for letter in "qkv"}
NEOX_NET: dict[str, Target] = {".mlp.dense_h_to_4h": "ffn_up", ".mlp.dense_4h_to_h": "ffn_down"}
MIXTRAL_EXPERTS: dict[str, Target] = {
    f".block_sparse_moe.experts.{{e}}.{source}": TensorMap(f"ffn_{name}_exps", stack=True)
    for source, name in (("w1", "gate"), ("w2", "down"), ("w3", "up"))
}


def gated_net(source: str, suffix: str = "", matrices: tuple[str, str, str] = MATRICES) -> dict[str, Target]:
    """Return a net of three matrices, gate, up and down. suffix: of its GGUF names, "_shexp" for a shared expert."""
    names = zip(matrices, ("gate", "up", "down"), strict=True)
    return {f".{source}.{matrix}": f"ffn_{name}{suffix}" for matrix, name in names}


def head_norms(q: str = "q_norm", k: str = "k_norm") -> dict[str, Target]:
    """Return the norms of q and k."""
    return {f".self_attn.{q}": "attn_q_norm", f".self_attn.{k}": "attn_k_norm"}


def kv_heads_where(attends: Callable[[Config], Iterable[bool]]) -> Computed:
    """Return the key-value heads of each layer of a hybrid; none in layers without attention."""
    return lambda config: [config["num_key_value_heads"] if each else 0 for each in attends(config)]


@dataclass(frozen=True)
class NotExportable:
    """`config_from_gguf` of families that cannot be exported. reason: what is missing, or the class to export to
    instead.
    """

    reason: str

    def __call__(self, keys: GgufKeys, tensors: Tensors) -> NoReturn:
        """Raise ModelError."""
        raise ModelError(self.reason)


not_exportable = NotExportable("its files do not tell all of its config")


def becomes(hf_class: str) -> NotExportable:
    """Return a refusal to export: the text part of such multimodal classes is exported as another class."""
    return NotExportable(f"its text part becomes {hf_class}")


def as_it_is(config: Config, tensors: Tensors) -> Tensors:
    """Implement `prepare_export` where tensors have the names of checkpoints already."""
    return tensors


def head_inside(config: Config, tensors: Tensors, prefix: str, name: str) -> Tensors:
    """Implement `prepare_export` for a head that is published inside the base model."""
    return {f"{prefix}.{each}" if each == f"{name}.weight" else each: tensor for each, tensor in tensors.items()}


# State spaces

MAMBA2_KEYS: dict[str, str | Computed | None] = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.inner_size": lambda config: int(config["mamba_expand"] * config["hidden_size"]),
    "ssm.state_size": "mamba_d_state",
    "ssm.time_step_rank": "mamba_n_heads",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_min": lambda config: step_limit(config, 0),
    "ssm.time_step_max": lambda config: step_limit(config, 1),
}
MAMBA_BIASES = {"mamba_conv_bias": "blk.*.ssm_conv1d.bias", "mamba_proj_bias": "blk.*.ssm_in.bias"}


def step_limit(config: Config, which: int) -> float | None:
    """Return a bound of time steps, if it bounds anything (llama.cpp drops them)."""
    bound = float((config.get("time_step_limit") or (0.0, float("inf")))[which])
    return bound if 0 < bound < float("inf") else None


def step_limits(keys: GgufKeys) -> ConfigKeys:
    """Return `time_step_limit` from the bounds, if there are any."""
    low, high = keys.get("ssm.time_step_min"), keys.get("ssm.time_step_max")
    return {} if (low, high) == (0.0, float("inf")) else {"time_step_limit": [low, high]}


def mamba(source: str) -> dict[str, Target]:
    """Return the tensors that Mamba and Mamba-2 share."""
    return {
        f".{source}.in_proj": "ssm_in",
        f".{source}.conv1d": TensorMap("ssm_conv1d", channels_and_taps),
        f".{source}.A_log": TensorMap("ssm_a", negative_exp),
        f".{source}.D": "ssm_d",
        f".{source}.out_proj": "ssm_out",
    }


def mamba2(source: str, groups: str) -> dict[str, Target]:
    """Return the tensors of Mamba-2. groups: the config key that counts them."""
    return mamba(source) | {
        f".{source}.dt_bias": "ssm_dt.bias",
        f".{source}.D": TensorMap("ssm_d", column),
        f".{source}.norm": TensorMap("ssm_norm", in_groups(groups)),
    }


# MTP layers, which come after the last layer

MTP_TENSORS: dict[str, Target] = {
    ".embed_tokens": "nextn.embed_tokens",
    ".enorm": "nextn.enorm",
    ".hnorm": "nextn.hnorm",
    ".eh_proj": "nextn.eh_proj",
    ".shared_head.norm": "nextn.shared_head_norm",
    ".shared_head.head": "nextn.shared_head_head",
}
MTP_KEYS: dict[str, str | Computed | None] = {
    "block_count": lambda config: config["num_hidden_layers"] + (config.get("num_nextn_predict_layers") or 0),
    "nextn_predict_layers": lambda config: config["num_nextn_predict_layers"] or None,
}
MTP_NAMES = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head.norm",
}


MTP_ONLY = "mtp_layers_only"  # of a config: their own file is meant, for families whose model files have none


def mtp_layers(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return `mtp.…` as layers after the last; tensors tell how many."""
    last, count, renamed = config["num_hidden_layers"], 0, {}
    for name, tensor in tensors.items():
        parts = re.fullmatch(r"(?:model\.)?mtp\.(?:layers\.(\d+)\.)?(\w+)(.*)", name)
        if parts:
            number = int(parts[1] or 0)
            count = max(count, number + 1)
            place = parts[2] if parts[1] else MTP_NAMES.get(parts[2], parts[2])
            name = f"model.layers.{last + number}.{place}{parts[3]}"
        renamed[name] = tensor
    return {**config, "num_nextn_predict_layers": count}, renamed


def published_mtp(config: Config, tensors: Tensors) -> Tensors:
    """Return the MTP layers under their published names."""
    last, count = config["num_hidden_layers"], config["num_nextn_predict_layers"]
    outside, source = {after: before for before, after in MTP_NAMES.items()}, {}
    for name, tensor in tensors.items():
        part = re.fullmatch(r"model\.layers\.(\d+)\.(.*?)(\.weight|\.bias|)", name)
        if part and last <= int(part[1]) < last + count:
            layer = f"layers.{int(part[1]) - last}.{part[2]}"
            name = f"mtp.{outside.get(part[2], layer)}{part[3]}"
        source[name] = tensor.renamed(name)
    return source
