"""Read config.json by type and normalize it: text part on top, defaults filled in, one spelling of rotary settings."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from quants.errors import ModelError

from .hparams.config_keys import KEYS, LAYER_COUNTS, NEEDED_BY_SCALING, TEXT_PARTS, THINKER, keys_with
from .spec import Computed, Config, Tensors
from .typed_json import Fields, FieldType, Flag, Place

FILE = "config.json"
NUMBER = re.compile(r"(?<=\.)\d{1,9}(?=\.)")


class ReadConfig(dict[str, Any]):
    """A config whose values have the types in `config_keys`. Reading an absent or null key raises ModelError, except
    flags: null is false.
    """

    def __getitem__(self, key: str) -> Any:
        value = self.get(key)
        if value is None and not (key in self and isinstance(KEYS.get(key), Flag)):
            raise absent(key)
        return value


def changed(config: Config, **values: Any) -> ReadConfig:
    """Return the config with other values."""
    return ReadConfig({**config, **values})


def absent(*keys: str) -> ModelError:
    """Return the error for a config that lacks a required key."""
    others = f" (or {', '.join(map(repr, keys[1:]))})".replace("'", '"') if keys[1:] else ""
    return ModelError(f'{FILE} has no "{keys[0]}"{others}, which this model needs')


def required(config: Config, keys: str) -> Any:
    """Return `lookup`. Raises ModelError if none of the alternatives is there."""
    value = lookup(config, keys)
    if value is None:
        raise absent(*keys.split("|"))
    return value


def lookup(config: Config, keys: str) -> Any:
    """Return the first of the alternatives "a|b.c" that is there and not null, or None.

    Dots lead into nested objects, and with a number into lists.
    """
    for path in keys.split("|"):
        value: Any = config
        for part in path.split("."):
            if isinstance(value, list):
                value = value[int(part)] if part.isdecimal() and int(part) < len(value) else None
            else:
                value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def typed(
    raw: Mapping[str, Any], keys: Mapping[str, FieldType] | None = None, limits: Mapping[str, int] | None = None
) -> ReadConfig:
    """Return `raw` with the text model's keys on top, every known key checked. Raises ModelError naming a key of
    another type.

    keys: what a family means otherwise. limits: see `limits_of`.
    """
    read = Fields(keys_with(keys or {})).read(raw, Place(FILE, limits=limits or {}))
    return ReadConfig({**read, **{key: value for key, value in text_part(read).items() if key != "architectures"}})


def limits_of(tensors: Tensors) -> dict[str, int]:
    """Return upper bounds of a config's counts by a checkpoint's tensors, so that nothing of an unchecked size is
    allocated.
    """
    numbers = (NUMBER.search(f".{name}.") for name in tensors)
    return {
        "layers": max((int(match[0]) + 1 for match in numbers if match), default=0),
        "rows": max((max(tensor.shape, default=1) for tensor in tensors.values()), default=0),
        "values": max((tensor.size for tensor in tensors.values()), default=0),
    }


def normalized(
    raw: Mapping[str, Any],
    defaults: Mapping[str, Any],
    keys: Mapping[str, FieldType] | None = None,
    tensors: Tensors | None = None,
) -> ReadConfig:
    """Return `typed` with `defaults` filled in, and rotary settings as rope_theta + rope_scaling.

    Defaults that are functions see the rest of the config and also replace null. tensors: the checkpoint's, if it has
    any, which bound the config's counts. Raises ModelError.
    """
    read = typed(raw, keys, limits_of(tensors) if tensors else {})
    for name in ("rope_scaling_local", "partial_rotary_factor_local"):  # our own names
        read.pop(name, None)
    # As transformers reads them: the older name goes first, and defaults apply to configs with neither.
    rotary = read.get("rope_scaling") or read.pop("rope_parameters", None) or defaults.get("rope_scaling")
    config = ReadConfig({key: value for key, value in defaults.items() if not callable(value)} | read)
    for key, value in defaults.items():
        if key.endswith("_config") and isinstance(value, Mapping):  # a part of the config with its own defaults
            config[key] = {**value, **(read.get(key) or {})}
    _one_rope_spelling(config, rotary)
    if "rope_local_base_freq" in {*config, *defaults} and config.get("rope_scaling"):
        config["rope_scaling"].pop("truncate", None)  # transformers reads it only from settings for all layers
    if config.get("num_key_value_heads", 0) is None:
        config["num_key_value_heads"] = config.get("num_attention_heads")  # as in all model types that accept null
    if (count := lookup(config, LAYER_COUNTS)) is not None:  # lists with an item a layer need one for every layer
        types, at = keys_with(keys or {}), Place(FILE, limits={"of layers": count})
        for key, value in config.items():
            if value is not None and key in types:
                types[key].read(value, at.inside(key))
    for key, value in defaults.items():
        if callable(value) and config.get(key) is None:
            config[key] = value(config)
    return config


# By the wrapper's model type, defaults of keys that its text part omits, where they differ from those of the text
# part's own model type (transformers `models/voxtral/configuration_voxtral.py`).
WRAPPERS: dict[str, dict[str, Any]] = {
    "voxtral": {
        "vocab_size": 131_072,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 30,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e8,
        "head_dim": 128,
    },
    "qwen2_5_omni_thinker": {
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "max_window_layers": 28,
    },
}

# By the wrapper's model type, keys that it leaves out although its text part has them (transformers `models/gemma3/`).
LEFT_OUT = {"gemma3": {"final_logit_softcapping": None}}

# Model types of wrappers with an untied head unless they say otherwise themselves, whatever their text part says
# (transformers `models/glm5_next/`, `models/dots3_note/`); others forward the text part's value, or store no other
# head.
OWN_HEAD = ("dots3_note", "glm5_next")


def text_part(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the text model's part of a wrapper's config.json; empty if there is no wrapper."""
    raw = {**raw, **raw[THINKER]} if isinstance(raw.get(THINKER), Mapping) else raw
    part: Mapping[str, Any] = next((raw[key] for key in TEXT_PARTS if isinstance(raw.get(key), Mapping)), {})
    model_type = str(raw.get("model_type"))
    tied = raw.get("tie_word_embeddings")  # the wrapper decides
    own_head = {"tie_word_embeddings": False} if tied is False or (tied is None and model_type in OWN_HEAD) else {}
    return {**WRAPPERS.get(model_type, {}), **part, **LEFT_OUT.get(model_type, {}), **own_head} if part else part


def _one_rope_spelling(config: dict[str, Any], parameters: object) -> None:
    """Unify rotary settings: transformers 5 writes `rope_parameters`, by layer type where they differ; 4 wrote theta
    and scaling apart.

    `rope_scaling_local` and `partial_rotary_factor_local` are those of windowed layers, where the config gives them
    separately: {} where these scale nothing, None where settings don't distinguish layer types.
    """
    config.pop("rope_parameters", None)
    if not isinstance(parameters, Mapping):
        return
    if isinstance(entries := parameters.get("compress"), Mapping):  # DeepSeek V4: scaled, with another base
        config["compress_rope_theta"] = entries.get("rope_theta", config.get("compress_rope_theta"))
        uncompressed = main if isinstance(main := parameters.get("main"), Mapping) else {}
        _check_alike(uncompressed, entries)
        parameters = {**entries, **{key: uncompressed.get(key) for key in ("rope_theta", "partial_rotary_factor")}}
    by_layers = {key: entry for key, entry in parameters.items() if isinstance(entry, Mapping)}
    main = by_layers.get("full_attention") or by_layers.get("indexed_attention") or parameters
    local = by_layers.get("sliding_attention") or {}
    for key in ("rope_theta", "partial_rotary_factor", "mrope_section"):
        if main.get(key) is not None:
            config[key] = main[key]
    if local.get("rope_theta") is not None:
        config["rope_local_base_freq"] = local["rope_theta"]
    if local.get("partial_rotary_factor") is not None:
        config["partial_rotary_factor_local"] = local["partial_rotary_factor"]
    config["rope_scaling"] = _scaling(main)
    config["rope_scaling_local"] = _scaling(local) if by_layers else None


def _check_alike(main: Mapping[str, Any], compress: Mapping[str, Any]) -> None:
    """Raise ModelError if DeepSeek V4's layers differ in more than their base and the scaling of those with compressed
    entries.

    Settings in that spelling imply YaRN's attention factor unless they give it; files have no key for it.
    """
    if _scaling(main):
        problem = "scales the rope of layers without compressed entries, too"
    elif main and main.get("partial_rotary_factor", 1) != compress.get("partial_rotary_factor", 1):
        problem = "lets another part of heads rotate in layers with compressed entries than in others"
    elif main and _scaling(compress).get("rope_type") == "yarn" and compress.get("attention_factor") is None:
        problem = "has a yarn without attention_factor = 1 for layers with compressed entries"
    else:
        return
    raise ModelError(f"{FILE} {problem}, which files cannot express")


def _scaling(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return rotary settings with their type as `rope_type`; none where they scale nothing.

    Lists of factors mean longrope, which the first Phi-3 configs called "su" and "yarn".
    """
    rope_type = "longrope" if parameters.get("long_factor") else parameters.get("rope_type", parameters.get("type"))
    if rope_type in (None, "default", "mrope"):
        return {}
    for key in NEEDED_BY_SCALING.get(rope_type, ()):
        if parameters.get(key) is None:
            raise ModelError(f'{FILE}: rope scaling of type "{rope_type}" needs "{key}", which is not there')
    return {**parameters, "rope_type": rope_type}


def rotary_of_all(config: Config) -> dict[str, Any]:
    """Return the rotary settings of windowed layers where the config has one set for all, and transformers applies it
    to both layer types: the same scaling and base.
    """
    if config.get("rope_scaling_local", ...) is not None:
        return {}
    base = {} if config.get("rope_theta") is None else {"rope_local_base_freq": config["rope_theta"]}
    return {"rope_scaling_local": config.get("rope_scaling"), **base}


def other_than(*values: object) -> Callable[[object], bool]:
    """Return a test for values that are neither absent nor among these."""
    return lambda value: value is not None and value not in values


def unless_tied(name: str) -> Callable[[Config], str]:
    """Return a rule for a GGUF name that tied models lack, although some checkpoints store the head a second time."""
    return lambda config: "" if config.get("tie_word_embeddings") else name


@dataclass(frozen=True)
class UnlessUsual:
    """A number of the config that is written only where it differs from the GGUF key's default (llama.cpp drops
    those).
    """

    key: str
    usual: float

    def __call__(self, config: Config) -> float | None:
        return None if config[self.key] == self.usual else type(self.usual)(config[self.key])


def head_dim(config: Config) -> int:
    """Return the width of an attention head: as given, or the hidden width divided by the heads."""
    heads = required(config, "num_attention_heads|n_head|n_heads")
    width = config.get("head_dim") or required(config, "hidden_size|n_embd|d_model") // heads
    if not width:
        raise ModelError(f"{FILE} has more attention heads, {heads}, than the hidden width shares out")
    return int(width)


def windowed_layers(config: Config, rule: Callable[[int], bool]) -> list[bool]:
    """Return for each layer whether it has a sliding window: by `layer_types`, or else by the model type's rule."""
    if layer_types := config.get("layer_types"):
        return [layer_type == "sliding_attention" for layer_type in layer_types]
    return [rule(layer) for layer in range(config["num_hidden_layers"])]


def unusual_windows(period: int) -> Callable[[Config], int | list[bool] | None]:
    """Return which layers are windowed if not all but every `period`-th: another period, or a flag for each."""

    def pattern(config: Config) -> int | list[bool] | None:
        windowed = windowed_layers(config, lambda i: (i + 1) % (config.get("sliding_window_pattern") or period) != 0)
        for every in (period, 0, *range(1, len(windowed))):
            if all(is_so == (every == 0 or (i + 1) % every != 0) for i, is_so in enumerate(windowed)):
                return every if every != period else None
        return windowed

    return pattern


def windows(windowed: Callable[[Config, int], bool], layer_types_switch: bool = False) -> dict[str, Computed]:
    """Return the keys of windows that `use_sliding_window` enables, if any layer has one (llama.cpp drops them).

    windowed: the model type's rule for layers, used without `layer_types`. layer_types_switch: `layer_types` count
    without the switch too.
    """

    def pattern(config: Config) -> list[bool] | None:
        switched = config.get("use_sliding_window") or (layer_types_switch and config.get("layer_types"))
        if not switched or not config.get("sliding_window"):
            return None
        layers = windowed_layers(config, lambda layer: windowed(config, layer))
        return layers if any(layers) else None

    def size(config: Config) -> int | None:
        return config["sliding_window"] if pattern(config) else None

    return {"attention.sliding_window": size, "attention.sliding_window_pattern": pattern}


def needed(*keys: str) -> dict[str, Computed]:
    """Return defaults for keys that have none: of equivalent keys, the family's own names."""
    return {key: partial(required, keys=key) for key in keys}


def rope_scaling(config: Config, *keys: str) -> Any:
    """Return the value of the first of `keys` that `rope_scaling` has."""
    scaling = config.get("rope_scaling") or {}
    return next((scaling[key] for key in keys if scaling.get(key) is not None), None)
