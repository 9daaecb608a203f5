"""Rotary settings of a config as GGUF keeps them: `rope.scaling.*` keys, and a tensor of divisors of frequencies."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from quants import Tensor, from_array

from .config import head_dim, rope_scaling
from .spec import Computed, Config


def _if_kind(*kinds: str, key: str = "", default: str = "") -> Computed:
    def value(config: Config) -> object:
        if rope_scaling(config, "rope_type") not in kinds:
            return None
        found = rope_scaling(config, key)
        return config.get(default) if found is None and default else found

    return value


SCALING: dict[str, str | Computed | None] = {
    # linear and yarn scale by rule, llama3 and longrope by a tensor. The reference has no word for "dynamic": ours is
    # `dynamic_factor`.
    "rope.scaling.type": _if_kind("linear", "yarn", key="rope_type"),
    "rope.scaling.factor": _if_kind("linear", "yarn", key="factor"),
    "rope.scaling.original_context_length": _if_kind(
        "yarn", key="original_max_position_embeddings", default="max_position_embeddings"
    ),
    "rope.scaling.yarn_attn_factor": _if_kind("yarn", key="attention_factor"),
    "rope.scaling.yarn_beta_fast": _if_kind("yarn", key="beta_fast"),
    "rope.scaling.yarn_beta_slow": _if_kind("yarn", key="beta_slow"),
    "rope.scaling.dynamic_factor": _if_kind("dynamic", key="factor"),
}


def llama3_freqs(config: Config) -> Iterable[Tensor]:
    """`rope_freqs.weight` for rotary scaling of type llama3: what each frequency is divided by.

    Long wavelengths are stretched by `factor`, short ones kept, those between interpolated (Llama 3.1's release).
    """
    if rope_scaling(config, "rope_type") != "llama3":
        return
    one = np.float32(1)
    dim = int(head_dim(config) * config.get("partial_rotary_factor", 1.0))
    factor = np.float32(rope_scaling(config, "factor") or 8)
    low = np.float32(rope_scaling(config, "low_freq_factor") or 1)
    high = np.float32(rope_scaling(config, "high_freq_factor") or 4)
    context = np.float32(rope_scaling(config, "original_max_position_embeddings") or 8192)
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    wavelengths = np.float32(2 * math.pi) / (one / np.float32(config["rope_theta"]) ** exponents)
    smooth = (context / wavelengths - low) / (high - low)
    between = one / ((one - smooth) / factor + smooth)
    divisors = np.where(wavelengths < context / high, one, np.where(wavelengths > context / low, factor, between))
    yield from_array("rope_freqs.weight", divisors.astype(np.float32))
