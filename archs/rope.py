"""Rotary settings of a config in GGUF: `rope.scaling.*` keys, and a tensor of frequency divisors."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from quants import Tensor, from_array
from quants.errors import ModelError

from .config import head_dim, lookup, rope_scaling
from .spec import Computed, Config, ConfigKeys, GgufKeys, Tensors

LONGROPE = ("longrope", "su")

# Hugging Face's names → GGUF's. llama.cpp has no word for "dynamic": the key `dynamic_factor` is our own.
ROPE_TYPES = {
    "linear": "linear",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",
    "llama3": None,
    "dynamic": None,
}

# How a file shows each type: a tensor, or one of the keys.
BY_TENSOR = {"llama3": "rope_freqs.weight", **dict.fromkeys(LONGROPE, "rope_factors_long.weight")}
BY_KEY = ("rope.scaling.type", "rope.scaling.dynamic_factor", "rope.scaling.alpha")


def _if_type(*types: str, key: str) -> Computed:
    return lambda config: rope_scaling(config, key) if rope_scaling(config, "rope_type") in types else None


def _rope_type(config: Config) -> str | None:
    """Return `rope.scaling.type`; llama3's is a tensor only. Raises ModelError for an unknown type, and for windowed
    layers with a scaling of their own.
    """
    if local := config.get("rope_scaling_local"):
        apart = f"config.json scales the rope of windowed layers apart ({local['rope_type']})"
        raise ModelError(f"{apart}, which files cannot express")
    rope_type = rope_scaling(config, "rope_type")
    if rope_type is not None and rope_type not in ROPE_TYPES:
        raise ModelError(f"rope scaling of type {rope_type!r} in config.json is not one of {', '.join(ROPE_TYPES)}")
    return ROPE_TYPES.get(rope_type)


def trained_length(config: Config) -> int | None:
    """Return `rope.scaling.original_context_length` of types that need it; "dynamic" does if the context differs."""
    if rope_scaling(config, "rope_type") == "dynamic" and config.get("model_max_length"):
        return int(config["max_position_embeddings"])
    return _trained_context(config) if _rope_type(config) in ("yarn", "longrope") else None


def attention_factor(config: Config) -> float | None:
    """Return the factor of cos and sin besides `yarn_attn_factor` and YaRN's own: of longrope; where YaRN has two
    scales, relative to its default (llama.cpp drops it).
    """
    if _rope_type(config) == "longrope":
        return longrope_attention(config)
    scales = rope_scaling(config, "mscale"), rope_scaling(config, "mscale_all_dim")
    if rope_scaling(config, "rope_type") != "yarn" or not all(scales) or rope_scaling(config, "attention_factor"):
        return None
    above, beneath, plain = (yarn_temperature(config, scale) for scale in (*scales, 1.0))
    return above / beneath / plain


def yarn_temperature(config: Config, scale: float) -> float:
    """Return 1 + 0.1 scale ln(factor), by which YaRN multiplies cos and sin (with a scale of 1)."""
    factor = rope_scaling(config, "factor")
    return 0.1 * float(scale) * math.log(factor) + 1 if factor > 1 else 1.0


SCALING: dict[str, str | Computed | None] = {
    # linear and yarn scale by rule, llama3 and longrope by a tensor.
    "rope.scaling.type": _rope_type,
    "rope.scaling.factor": _if_type("linear", "yarn", key="factor"),
    "rope.scaling.original_context_length": trained_length,
    "rope.scaling.attn_factor": attention_factor,
    "rope.scaling.yarn_ext_factor": _if_type("yarn", key="extrapolation_factor"),
    "rope.scaling.yarn_attn_factor": _if_type("yarn", key="attention_factor"),
    "rope.scaling.yarn_beta_fast": _if_type("yarn", key="beta_fast"),
    "rope.scaling.yarn_beta_slow": _if_type("yarn", key="beta_slow"),
    # whether YaRN's range of pairs is not rounded to integers (llama.cpp drops it)
    "rope.scaling.yarn_truncate": lambda config: False if rope_scaling(config, "truncate") is False else None,
    "rope.scaling.dynamic_factor": _if_type("dynamic", key="factor"),
}


def llama3_freqs(config: Config) -> Iterable[Tensor]:
    """Return `rope_freqs.weight` for rotary scaling of type llama3: the divisor of each frequency.

    Long wavelengths are stretched by `factor`, short ones kept, those between interpolated (Llama 3.1's release).
    """
    if rope_scaling(config, "rope_type") != "llama3":
        return
    one = np.float32(1)
    dim = rotated_width(config)
    factor = np.float32(rope_scaling(config, "factor") or 8)
    low = np.float32(rope_scaling(config, "low_freq_factor") or 1)
    high = np.float32(rope_scaling(config, "high_freq_factor") or 4)
    context = np.float32(_trained_context(config))
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    powers = np.power(float(config["rope_theta"]), exponents.astype(np.float64)).astype(np.float32)
    # As torch divides a number by a tensor: by its reciprocal, which is rounded first.
    wavelengths = one / (one / powers) * np.float32(2 * math.pi)
    with np.errstate(divide="ignore", invalid="ignore"):  # high = low, as in Llama 4: nothing lies between
        smooth = (one / wavelengths * context - low) / (high - low)
        between = one / ((one - smooth) / factor + smooth)
    divisors = np.where(wavelengths < context / high, one, np.where(wavelengths > context / low, factor, between))
    yield from_array("rope_freqs.weight", divisors.astype(np.float32))


# GGUF's `rope.scaling.…` of linear and yarn → the config's word.
SETTINGS = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_truncate": "truncate",
    "yarn_attn_factor": "attention_factor",
    "yarn_ext_factor": "extrapolation_factor",
}


def yarn_settings(keys: GgufKeys, scale: float = 10) -> ConfigKeys:
    """Return a config's settings of linear or YaRN scaling. scale: `mscale_all_dim` over `yarn_log_multiplier`."""
    given = {name: keys.stored(f"rope.scaling.{key}") for key, name in SETTINGS.items()}
    settings = {"rope_type": keys.stored("rope.scaling.type"), **{k: v for k, v in given.items() if v is not None}}
    multiplier, factor = keys.stored("rope.scaling.yarn_log_multiplier"), settings.get("factor", 1.0)
    if multiplier is not None:
        settings["mscale"] = settings["mscale_all_dim"] = round(scale * multiplier, 6)
    if (relative := keys.stored("rope.scaling.attn_factor")) is not None and factor > 1:
        grows, all_dim = 0.1 * math.log(factor), settings.setdefault("mscale_all_dim", 1.0)
        usual = 1.0 if multiplier else grows + 1
        settings["mscale"] = (relative * (grows * all_dim + 1) * usual - 1) / grows
    return settings


def scaled_by_type(keys: GgufKeys, full: str = "full_attention") -> ConfigKeys:
    """Return linear or YaRN scaling for layers of the type `full` only, by layer type: classes apply settings without a
    type to all layers.
    """
    if keys.stored("rope.scaling.type") not in ("linear", "yarn"):
        return {}
    plain = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa")}
    scaled = {**yarn_settings(keys), "rope_theta": keys["rope.freq_base"]}
    return {"rope_scaling": None, "rope_parameters": {full: scaled, "sliding_attention": plain}}


def longrope_settings(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return a config's longrope settings: the factors of a file's tensors. Empty where there are none."""
    if "rope_factors_long.weight" not in tensors:
        return {}
    factors = {each: tensors[f"rope_factors_{each}.weight"].float32() for each in ("long", "short")}
    lists = {f"{each}_factor": [float(str(value)) for value in values.ravel()] for each, values in factors.items()}
    return {"rope_type": "longrope", **lists, "attention_factor": keys.get("rope.scaling.attn_factor")}


def rotated_width(config: Config) -> int:
    """Return how many values of each head rotate."""
    share = lookup(config, "partial_rotary_factor|rotary_pct|rope_pct") or 1.0
    width = int(head_dim(config) * share)
    if width % 2 or not width:
        raise ModelError(f"config.json lets {width} of {head_dim(config)} values of a head rotate, but pairs rotate")
    return width


def parts_rotate_apart(sections: Sequence[int]) -> bool:
    """Return whether files with these `rope.dimension_sections` rotate like vision-language models, as llama.cpp
    decides.
    """
    return len(sections) > 1 and sections[0] > 0 and sections[1] > 0


def unusual_base(config: Config) -> float | None:
    """Return the rotary base if it is not 10,000: for architectures without that key in llama.cpp."""
    return float(base) if (base := config.get("rope_theta")) not in (None, 10_000) else None


def scaling_type(config: Config) -> str:
    """Return `rope.scaling.type` of architectures that always have it: "none" where nothing is scaled."""
    return _rope_type(config) or "none"


def type_without_tensors(config: Config) -> str | None:
    """Return `rope.scaling.type` of architectures whose files show longrope only by its tensors."""
    return None if (rope_type := _rope_type(config)) == "longrope" else rope_type


def longrope_attention(config: Config) -> float | None:
    """Return longrope's factor of cos and sin: as given, or by how far the context was stretched."""
    if rope_scaling(config, "rope_type") not in LONGROPE:
        return None
    trained = _trained_context(config)
    factor = rope_scaling(config, "factor") or config["max_position_embeddings"] / trained
    given = rope_scaling(config, "attention_factor")
    return float(given or (math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 < trained else 1.0))


def longrope_factors(config: Config) -> Iterable[Tensor]:
    """Return `rope_factors_long.weight` and `_short`: the divisors of each frequency in long and short texts."""
    if rope_scaling(config, "rope_type") not in LONGROPE:
        return
    for length in ("long", "short"):
        factors, width = np.array(rope_scaling(config, f"{length}_factor"), np.float32), rotated_width(config)
        if len(factors) != width // 2:
            needed = f"heads that rotate {width} values need {width // 2}"
            raise ModelError(f"config.json has {len(factors)} rope_scaling.{length}_factor; {needed}")
        yield from_array(f"rope_factors_{length}.weight", factors)


def _trained_context(config: Config) -> int:
    """Return the context length before scaling; the config's own key goes before that of its rotary settings."""
    context = config.get("original_max_position_embeddings") or rope_scaling(config, "original_max_position_embeddings")
    return int(context or config["max_position_embeddings"])


FACTORS = (llama3_freqs, longrope_factors)  # rotary scalings stored as a tensor
