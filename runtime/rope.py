"""Rotary position embedding: the angles of each position, with every rope scaling that GGUF can express.

Formulas as in transformers' `modeling_rope_utils`; angles are float32 products of float32 frequencies, as there.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from archs.hparams.file_keys import Keys

from .arrays import Floats
from .kernels.rotation import rotate_adjacent, rotate_halves
from .kernels.threads import share_out

VALUES_PER_THREAD = 1 << 16


@dataclass(frozen=True)
class RopeScaling:
    """A model's rope scaling past its original context.

    type: "linear", "yarn", "longrope" or "dynamic" (llama3's scaling is a tensor of divisors). original_context: tokens
    the unscaled model was trained for. attn_factor: multiplies cos and sin, for YaRN on top of its own factor. mscale,
    mscale_all_dim: of DeepSeek's YaRN; 0 if the model has none.
    """

    type: str
    factor: float = 1.0
    original_context: int = 0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float = 0.0
    mscale_all_dim: float = 0.0


def rope_scaling(keys: Keys, two_lists: bool) -> RopeScaling | None:
    """Return a file's rope scaling. two_lists: it has longrope's divisors for short and for long texts."""
    scaling_type, context = keys.get("rope.scaling.type"), int(keys.get("rope.scaling.original_context_length"))
    factor = 1.0 if scaling_type == "none" else float(keys.get("rope.scaling.factor")) or 1.0
    dynamic, attn_factor = float(keys.get("rope.scaling.dynamic_factor")), float(keys.get("rope.scaling.attn_factor"))
    if dynamic:
        return RopeScaling("dynamic", dynamic, context)
    if two_lists:
        return RopeScaling("longrope", factor, context, attn_factor)
    if scaling_type != "yarn":
        return RopeScaling("linear", factor, context, attn_factor) if factor != 1 or attn_factor != 1 else None
    temperature = 10 * float(keys.get("rope.scaling.yarn_log_multiplier"))  # 0: YaRN's own
    fast, slow = (float(keys.get(f"rope.scaling.yarn_beta_{each}")) for each in ("fast", "slow"))
    truncate = bool(keys.get("rope.scaling.yarn_truncate"))
    scaling = RopeScaling("yarn", factor, context, attn_factor, fast, slow, truncate, temperature, temperature)
    given = keys.get("rope.scaling.yarn_attn_factor")  # the total factor of cos and sin
    if given is None:
        return scaling
    return replace(scaling, attn_factor=float(given) / attention_factor(replace(scaling, attn_factor=1.0)))


def inverse_frequencies(dim: int, base: float) -> Floats:
    """Return the angle per position of each of the dim / 2 pairs, float32: base^(-2i / dim)."""
    return np.asarray(1.0 / base ** (np.arange(0, dim, 2, dtype=np.float64) / dim), np.float32)


def yarn_frequencies(dim: int, base: float, scaling: RopeScaling) -> Floats:
    """Return YaRN's frequencies, float32 (dim / 2,): slow pairs are interpolated, fast ones kept, those between
    mixed.
    """

    def pair_turning(turns: float) -> float:
        """Return the pair that turns this often within the original context."""
        return dim * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_turning(scaling.beta_fast), pair_turning(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # as in transformers, against a division by zero
    interpolated = np.clip((np.arange(dim // 2, dtype=np.float32) - low) / (high - low), 0, 1)
    kept = inverse_frequencies(dim, base)
    return np.asarray(kept / scaling.factor * interpolated + kept * (1 - interpolated), np.float32)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """Return YaRN's attention factor: 1 + 0.1 mscale ln(factor)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def attention_factor(scaling: RopeScaling | None) -> float:
    """Return the factor of cos and sin."""
    if scaling is None:
        return 1.0
    if scaling.type != "yarn":
        return scaling.attn_factor
    if scaling.mscale and scaling.mscale_all_dim:
        own = yarn_mscale(scaling.factor, scaling.mscale) / yarn_mscale(scaling.factor, scaling.mscale_all_dim)
    else:
        own = yarn_mscale(scaling.factor)
    return own * scaling.attn_factor


def scaled_frequencies(dim: int, base: float, scaling: RopeScaling | None, last_position: int) -> Floats:
    """Return frequencies after `scaling`, float32 (dim / 2,); only "dynamic" depends on the text's length."""
    if scaling is None or scaling.type == "none":
        return inverse_frequencies(dim, base)
    if scaling.type in ("linear", "longrope"):
        return np.asarray(inverse_frequencies(dim, base) / np.float32(scaling.factor), np.float32)
    if scaling.type == "yarn":
        return yarn_frequencies(dim, base, scaling)
    if scaling.type == "dynamic":
        stretch = max(last_position + 1, scaling.original_context) / scaling.original_context
        return inverse_frequencies(dim, base * (scaling.factor * stretch - scaling.factor + 1) ** (dim / (dim - 2)))
    raise ValueError(f"there is no rope scaling {scaling.type!r}")


def rope_table(
    dim: int, base: float, scaling: RopeScaling | None, freq_factors: Floats | None, positions: ArrayLike
) -> tuple[Floats, Floats]:
    """Return cos and sin, float32 (positions, dim / 2), of the `dim` rotated values of a head. Raises ValueError for a
    scaling of unknown type. freq_factors: divisors of the frequencies, float32 (dim / 2,).
    """
    at = np.asarray(positions, np.int64).reshape(-1)
    frequencies = scaled_frequencies(dim, base, scaling, int(at.max(initial=0)))
    if freq_factors is not None:
        frequencies = frequencies / np.asarray(freq_factors, np.float32).reshape(-1)[: dim // 2]
    angles = np.outer(at.astype(np.float32), frequencies).astype(np.float64)
    factor = attention_factor(scaling)
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)


def apply_rope(x: Floats, cos: Floats, sin: Floats, rope_type: str, threads: int = 1) -> Floats:
    """Rotate the first 2 * cos.shape[1] values of every head of x (n, heads, head_dim) in place; x is returned.

    rope_type: "adjacent" (pairs 2i, 2i + 1) or "halves" (pairs i, i + dim / 2). cos, sin: (n, dim / 2). Raises
    ValueError for angles of more values than there are, past which kernels would write.
    """
    if len(cos) != len(x) or x.shape[2] < 2 * cos.shape[1]:
        raise ValueError(f"angles {cos.shape} do not fit heads {x.shape}")
    rotate: Any = {"adjacent": rotate_adjacent, "halves": rotate_halves}[rope_type]
    min_share = VALUES_PER_THREAD // max(1, x.shape[1] * x.shape[2])
    share_out(lambda start, stop: rotate(x, cos, sin, start, stop), len(x), min_share, threads)
    return x
