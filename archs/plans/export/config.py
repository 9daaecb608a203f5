"""config.json from a file's keys: copied keys are copied back, computed ones solved for."""

import fnmatch
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from quants import Tensor
from quants.errors import ModelError

from ...config import UnlessUsual, head_dim
from ...experts import GATING
from ...hparams.file_keys import Keys
from ...model_type import of_class, own_keys
from ...rope import longrope_settings, yarn_settings
from ...spec import Architecture, ConfigKeys, GgufKeys, Tensors
from ...tensor_maps import step_limits

SECTIONS = "rope.dimension_sections"
MEANT = {"rope.freq_base": 10_000.0}  # defaults of missing keys
STANDING = 1e30  # the divisor of pairs that do not rotate
STRETCHES = (1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # factors of rotary scaling


@dataclass(frozen=True)
class Known:
    """The known facts to solve config keys from: a file's keys without "NAME.", its tensors, and the config so far."""

    architecture: Architecture
    keys: GgufKeys
    tensors: Tensors
    config: ConfigKeys

    def copied(self, key: str) -> bool:
        """Return whether the key is copied from the config."""
        return isinstance(self.architecture.metadata.get(key), str)

    def choose(self, *names: str) -> str:
        """Return the name that this family uses."""
        return next((name for name in names if name in self.architecture.defaults), names[0])

    @property
    def head(self) -> int:
        """Return the width of a head."""
        width = self.keys.stored("attention.key_length")
        return int(width or self.keys["embedding_length"] // self.keys["attention.head_count"])


# Keys where 0 means "none" although absence means something else; configs have null.
NONE_BY_0 = (
    "attention.sliding_window",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "router_logit_softcapping",
)


def export_config(architecture: Architecture, metadata: Mapping[str, Any], tensors: Tensors) -> ConfigKeys:
    """Return the config of the checkpoint that converts to a file of these keys and tensors. Raises ModelError."""
    start, defaults = f"{architecture.name}.", architecture.defaults
    own = {key.removeprefix(start): number(metadata[key]) for key in metadata if key.startswith(start)}
    file_keys = Keys.of(architecture, metadata)
    keys = GgufKeys(own, lambda key: number(file_keys.get(key)))
    model_type = str(defaults.get("model_type", of_class(architecture.hf_classes[0])))
    config: ConfigKeys = {"model_type": model_type, "architectures": [architecture.hf_classes[0]]}
    for key, source in architecture.metadata.items():
        if not isinstance(source, str):
            continue
        value = keys.stored(key)
        value = None if key in NONE_BY_0 and value == 0 else value
        names = source.split("|")
        name = next((name for name in names if name.partition(".")[0] in defaults), names[0])
        if value is not None:
            *outer, last = name.split(".")
            reduce(lambda inner, part: inner.setdefault(part, {}), outer, config)[last] = value
        elif not callable(defaults.get(name)) and name in defaults:
            config.setdefault(name, MEANT.get(key) if architecture.block.rope != "none" else None)
    known = Known(architecture, keys, tensors, config)
    if architecture.activation:
        names = architecture.activation.split("|")
        spoken = defaults.keys() | own_keys(config["model_type"])
        usual = {"gelu_tanh": "gelu_pytorch_tanh"}.get(architecture.block.activation, architecture.block.activation)
        name = next((name for name in names if name in spoken), names[-1])
        config[name] = keys.stored("hidden_activation") or usual
    for key, solve in SOLVED.items():
        if key in architecture.metadata and not known.copied(key):
            config |= solve(known, keys.stored(key))
    sparing = {key: source for key, source in architecture.metadata.items() if isinstance(source, UnlessUsual)}
    for key, source in sparing.items():
        config[source.key] = source.usual if keys.stored(key) is None else keys.stored(key)
    config |= _rotary(known)
    config |= {
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in tensors,
        **{key: bool(fnmatch.filter(tensors, name)) for key, name in architecture.flags_from_tensors.items()},
    }
    config |= architecture.config_from_gguf(keys, tensors) if architecture.config_from_gguf else {}
    return {key: value for key, value in config.items() if value is not ...}


def number(value: Any) -> Any:
    """Return a metadata value as JSON has it; floats of 32 bits by their shortest decimals."""
    if isinstance(value, np.ndarray):
        return list(map(number, value))
    if isinstance(value, (float, np.floating)):
        return float(str(np.float32(value)))
    return value.item() if isinstance(value, np.generic) else value


def _head_width(known: Known, rotated: Any) -> ConfigKeys:
    """Return the width of a head, or the share of it that rotates, by the number of rotating values."""
    heads, source = known.keys.stored("attention.head_count"), known.architecture.metadata["rope.dimension_count"]
    if not isinstance(heads, int) or not heads:
        return {}
    kept = "head_dim" in known.architecture.defaults and not known.copied("attention.key_length")
    head = {"head_dim": known.head} if kept else {}
    if rotated is None:
        return head
    if source is not head_dim:
        return head | {known.choose("partial_rotary_factor", "rotary_pct", "rope_pct"): rotated / known.head}
    return head | ({"head_dim": rotated} if rotated != known.keys["embedding_length"] // heads else {})


def _window(known: Known, value: Any) -> ConfigKeys:
    switch = known.keys.stored("attention.sliding_window_pattern") is not None
    return {"sliding_window": value or None, **({"use_sliding_window": True} if switch else {})}


def _windows(known: Known, value: Any) -> ConfigKeys:
    block = known.architecture.block
    if not isinstance(value, list):
        every = block.window_period if value is None else value
        no_window = known.keys.stored("attention.sliding_window") is None
        if no_window or (value is None and not every):  # all layers have the window
            return {}
        value = [not every or not block.is_global_layer(every, i) for i in range(known.keys["block_count"])]
    return {"layer_types": ["sliding_attention" if each else "full_attention" for each in value]}


def _scale(known: Known, value: Any) -> ConfigKeys:
    if "query_pre_attn_scalar" in known.architecture.defaults:
        return {"query_pre_attn_scalar": known.head if value is None else round(1 / value**2, 3)}
    return {"scale_attn_weights": False} if value == 1.0 and known.architecture.block.rope == "none" else {}


def _inner(known: Known, value: Any) -> ConfigKeys:
    names = [known.choose("intermediate_size", "n_inner", "ffn_hidden_size")]
    return dict.fromkeys([*names, "n_inner"] if "n_embd" in known.architecture.defaults else names, value)


def _layers(known: Known, value: Any) -> ConfigKeys:
    count = known.keys.get("nextn_predict_layers")
    counts = {"num_hidden_layers": value - count, "num_nextn_predict_layers": count}
    return {key: count for key, count in counts.items() if key in known.architecture.defaults}


def _context(known: Known, value: Any) -> ConfigKeys:
    name = "max_position_embeddings"
    return {name: value} if name in known.architecture.defaults.keys() - known.config.keys() else {}


def _states(known: Known, value: Any) -> ConfigKeys:
    """Return how many channels a state space has, as given or by the width."""
    given = {"mamba_d_ssm": value, "mamba_expand": value / known.keys["embedding_length"]}
    return next(({key: each} for key, each in given.items() if key in known.architecture.defaults), {})


SOLVED: dict[str, Callable[[Known, Any], ConfigKeys]] = {
    "rope.freq_base": lambda known, value: {"rope_theta": 10_000.0 if value is None else value},
    "rope.dimension_count": _head_width,
    "attention.sliding_window": _window,
    "attention.sliding_window_pattern": _windows,
    "attention.scale": _scale,
    "expert_weights_norm": lambda known, value: {
        "norm_topk_prob": known.architecture.block.normalize_experts if value is None else value
    },
    "expert_gating_func": lambda known, value: (
        {} if value is None else {"scoring_func": {number: name for name, number in GATING.items()}[value]}
    ),
    "feed_forward_length": _inner,
    "block_count": _layers,
    "context_length": _context,
    "attention.head_count_kv": lambda known, value: {"num_key_value_heads": max(value)} if type(value) is list else {},
    "ssm.inner_size": _states,
    "ssm.time_step_max": lambda known, value: step_limits(known.keys),
}


def _rotary(known: Known) -> ConfigKeys:
    """Return rotary settings, in the spelling that transformers reads."""
    keys, scaling, config = known.keys, None, {}
    if keys.stored("rope.scaling.type") in ("linear", "yarn"):
        scaling = yarn_settings(keys)
    elif (factor := keys.stored("rope.scaling.dynamic_factor")) is not None:
        scaling = {"rope_type": "dynamic", "factor": factor}
        if (trained := keys.stored("rope.scaling.original_context_length")) is not None:
            config = {"model_max_length": keys.stored("context_length"), "max_position_embeddings": trained}
    elif "rope_factors_long.weight" in known.tensors:
        trained = keys.stored("rope.scaling.original_context_length") or keys.stored("context_length")
        config = {"original_max_position_embeddings": trained}
        scaling = longrope_settings(keys, known.tensors)
        if "rope.freq_base_swa" in keys:  # settings of some layers only are checked separately
            scaling |= config
    elif "rope_freqs.weight" in known.tensors and (share := _share(known.tensors["rope_freqs.weight"])) < 1:
        scaling = {"rope_type": "proportional", "partial_rotary_factor": share}
    elif "rope_freqs.weight" in known.tensors:
        scaling = _llama3(known)
    if not known.architecture.rope_parameters:
        return {**config, "rope_scaling": scaling}
    base, local = keys.stored("rope.freq_base"), keys.stored("rope.freq_base_swa")
    settings: ConfigKeys = {"rope_type": "default", "rope_theta": base, **(scaling or {})}
    if sections := keys.stored(SECTIONS):
        settings["mrope_section"] = sections[:3]
    if known.architecture.rope_parameters == "by type":
        plain = {"rope_type": "default", "rope_theta": base if local is None else local}
        by_type = {"full_attention": settings, "sliding_attention": plain}
        rotated = keys.stored("rope.dimension_count")
        if rotated is not None and settings["rope_type"] != "proportional":
            settings["partial_rotary_factor"] = rotated / known.head
            if (local_width := keys.get("rope.dimension_count_swa")) != known.head or local_width != rotated:
                plain["partial_rotary_factor"] = local_width / known.head
        if rotated is None and local is None and base == known.architecture.defaults["rope_theta"]:
            del by_type["sliding_attention"]  # the model type's default
        types = {*known.config.get("layer_types", ()), *(["full_attention"] if scaling else [])}
        settings = {
            layer_type: each for layer_type, each in by_type.items() if layer_type in (types or {"full_attention"})
        }
    return {**config, "rope_parameters": settings}


def _share(divisors: Tensor) -> float:
    """Return the share of pairs that rotate."""
    return float(np.mean(divisors.float32() < STANDING))


def _llama3(known: Known) -> ConfigKeys:
    """Return llama3's settings. The factor shows in the divisors if a pair is fully stretched. The trained context is a
    power of two, or what one divisor between 1 and the factor implies; it must reproduce the divisors.
    """
    wanted = known.tensors["rope_freqs.weight"].float32()
    if known.head > 64 * len(wanted):  # before anything of such a width is allocated
        raise ModelError(f"rope_freqs.weight has {len(wanted)} values; heads are {known.head} wide")
    largest = number(wanted.max())
    base = known.keys.stored("rope.freq_base") or 10_000.0
    wavelengths = 2 * math.pi * base ** (np.arange(len(wanted)) / len(wanted))
    config = {"rope_theta": base, **known.config}
    stored = known.keys.stored("rope.scaling.original_context_length")
    trained = () if stored is None else (stored,)
    for factor in dict.fromkeys((largest, *(each for each in STRETCHES if each > largest))):
        between = (wanted > 1) & (wanted < factor)
        smooth = (1 / wanted[between].astype(np.float64) - 1 / factor) / (1 - 1 / factor)
        solved = [round(each) for each in (3 * smooth + 1) * wavelengths[between]]
        usual = (*trained, 8192, *(1 << power for power in range(1, 21)))
        others = itertools.product((32.0, 1.0), usual)  # Step 3.5's, Llama 4's
        for high, context in dict.fromkeys((*((4.0, each) for each in (*usual, *solved)), *others)):
            scaling = {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": high,
                "original_max_position_embeddings": context,
            }
            made = [t for make in known.architecture.generated for t in make({**config, "rope_scaling": scaling})]
            if made and made[0].shape != wanted.shape:
                raise ModelError(f"rope_freqs.weight has {len(wanted)} values; {made[0].shape[0]} pairs rotate")
            if made and np.array_equal(made[0].float32(), wanted):
                return scaling
    raise ModelError("rope_freqs.weight does not come from a rotary scaling that is known")
