"""GGUF → checkpoint: the mapping of an architecture read backwards, tensors and config.

Whatever is rebuilt is checked by converting it again, headers only: names, shapes and metadata must come out as the
file has them.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from quants import Tensor, from_array
from quants.errors import FormatError, ModelError

from .config import head_dim, normalized
from .experts import GATING
from .hyper import Hyper, hyper
from .keys import MODEL
from .metadata import Value
from .model_type import filled_in, own_keys, with_types
from .plan import architecture_metadata, layer_count, map_tensors, maps_of
from .registry import architectures, of_config
from .rope import SCALING
from .shapes import check_model
from .spec import Architecture, Config, PerLayerScalars, TensorMap
from .transforms import Invertible, computed, concatenated, reshape, take

LAYER, EXPERT = "{i}", "{e}"
SUFFIX = re.compile(r"\.(weight|bias)$")
OUTSIDE = {"output", "output_norm_head", "cls"}  # GGUF names of what stands outside of the base model
SECTIONS = "rope.dimension_sections"
SAYS_NOTHING = {"vocab_size", "rope.scaling.finetuned", "tensor_data_layout", "pooling_type", "classifier.pooling_type",
                "classifier.output_labels"}  # of logits or hidden states, that the tensors don't  # fmt: skip
MEANINGFUL = {key for key, rule in MODEL.items() if not rule.shaping} - SAYS_NOTHING  # tensors show what shapes them
MEANT = {"rope.freq_base": 10_000.0}  # by files without the key
STRETCHES = (1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # factors of rotary scaling
VOCABULARIES = {"gpt2": {"bpe"}, "llama": {"sentencepiece"}, "t5": {"unigram", "sentencepiece"}, "bert": {"wordpiece"}}


@dataclass(frozen=True)
class Rebuilt:
    """A file as the checkpoint it could come from. tensors: by Hugging Face name, read lazily.

    differing: metadata keys that a conversion of it would write otherwise, with what it would write.
    """

    architecture: Architecture
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    differing: dict[str, Any] = field(default_factory=dict)


def rebuild(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Rebuilt:
    """The checkpoint that converts to these tensors. Of several families of one GGUF name, the first that fits.

    Raises ModelError where none does, saying why.
    """
    name = metadata.get("general.architecture")
    kinds = VOCABULARIES.get(metadata.get("tokenizer.ggml.model", ""), set())
    family = [a for a in architectures() if a.name == name and (not kinds or kinds & set(a.vocab))]
    if not family:
        raise ModelError(f"general.architecture {name!r} is not one that can become a checkpoint")
    pictures = f"{name}.{SECTIONS}" in metadata
    if pictures and not any(a.hf_classes[0].endswith("ForCausalLM") and SECTIONS in a.metadata for a in family):
        raise ModelError("the file is the text part of a model of pictures; it cannot become a checkpoint of its own")
    check_model(family[0], metadata, tensors)
    reasons, found = [], []
    for architecture in family:
        try:
            found.append(_rebuilt(architecture, metadata, tensors))
        except (ModelError, FormatError) as error:
            reasons.append(f"{architecture.hf_classes[0]}: {error}")
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            reasons.append(f"{architecture.hf_classes[0]}: its metadata makes no config ({why})")
    if not found:
        raise ModelError(f"the file cannot become a checkpoint: {'; '.join(reasons)}")
    return min(found, key=lambda each: (len(each.differing), _rules_of_the_base(each.architecture)))


def _implied(architecture: Architecture, config: Config, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that say nothing new, which a conversion writes where the config says what it would mean without."""
    def known(key: str) -> Any:
        return keys.get(f"{architecture.name}.{key}")

    values, heads = {"rope.freq_base_swa": config.get("rope_theta")}, known("attention.head_count")
    if isinstance(heads, int) and heads:
        shared = known("embedding_length") // heads
        values |= dict.fromkeys(("attention.key_length", "attention.value_length"), shared)
    return {f"{architecture.name}.{key}": value for key, value in values.items()}


def _rules_of_the_base(architecture: Architecture) -> int:
    """How many rules there are, but for what stands outside of the base model and is often not there."""
    targets = [target.name if isinstance(target, TensorMap) else target for target in architecture.tensors.values()]
    return sum(not (isinstance(target, str) and target.partition(".")[0] in OUTSIDE) for target in targets)


def _rebuilt(architecture: Architecture, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Rebuilt:
    config = with_types(rebuilt_config(architecture, metadata, tensors))
    full = normalized(config, architecture.defaults, architecture.keys)
    source = unmap(architecture, full, metadata, tensors)
    again = map_tensors(architecture, full, source)
    for name, tensor in tensors.items():
        if name not in again.tensors:
            raise ModelError(f"no source tensor gives {name!r}")
        if again.tensors[name].shape != tensor.shape:
            raise ModelError(f"{name!r} would have shape {again.tensors[name].shape}, not {tensor.shape}")
    if extra := [name for name in again.tensors if name not in tensors]:
        raise ModelError(f"the file has no {extra[0]!r}, which a conversion would write")
    made = again.metadata(architecture)
    written = architecture_metadata(architecture, full) | made
    _check_meaning(architecture, config, full, made)
    if architecture.prepare_export:
        source = dict(architecture.prepare_export(full, source))
    differing = dict(_differing(architecture, metadata, written))
    _check_kept(architecture, metadata, differing)
    return Rebuilt(architecture, config, source, differing)


def _check_kept(architecture: Architecture, metadata: Mapping[str, Any], differing: Mapping[str, Any]) -> None:
    """Raise ModelError where a conversion of the config would write other keys that change what the model computes, or
    a key of the conversion is not as the file has it. Files of other converters may leave out what says nothing new,
    or have keys that no model reads.
    """
    def full(keys: Iterable[str]) -> set[str]:
        return {f"{architecture.name}.{key}" for key in keys}

    def said(values: Mapping[str, Any], key: str) -> str:
        return str(plain(values.get(key))).lower()  # of rotary scaling, "none" is a value

    unread, changing = _changes(architecture, metadata, differing)
    asked = full(MEANINGFUL) | full(architecture.metadata.keys() - SAYS_NOTHING) & metadata.keys()
    lost = [key for key in unread if key in asked and said(metadata, key) != said(differing, key)]
    for key in lost + changing:
        value = f"not {_shown(metadata[key])}" if key in metadata else "which the file does not have"
        raise ModelError(f"a conversion of its config would write {key} = {_shown(differing[key])}, {value}")


def _changes(
    architecture: Architecture, metadata: Mapping[str, Any], differing: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Of keys with other values, those that a model's numbers are not read from, and the one that changes numbers."""
    metadata = {key: plain(value) for key, value in metadata.items()}
    own = _Noted(metadata)
    before = _numbers(architecture, own)

    def changes(values: Mapping[str, Any]) -> bool:
        values = {**metadata, **{key: plain(value) for key, value in values.items()}}
        return _numbers(architecture, {key: value for key, value in values.items() if value is not None}) != before

    scaling = {f"{architecture.name}.{key}" for key in SCALING}  # of which other numbers are made as well
    scales = any(layer.rotates and layer.rope_scaled for layer in before.layers)
    unread = [key for key in differing if key not in (own.read - scaling if scales else own.read | scaling)]
    return unread, sorted(differing, key=lambda key: changes({key: differing[key]}))[-1:] if changes(differing) else []


def _numbers(architecture: Architecture, metadata: Mapping[str, Any]) -> Hyper:
    found = hyper(architecture, metadata)
    return found if found.temperature_scale else replace(found, temperature_length=0)


class _Noted(dict[str, Any]):
    """Metadata that notes what keys are asked for."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(number(plain(value)))


def _check_meaning(architecture: Architecture, config: Config, full: Config, made: Mapping[str, Any]) -> None:
    """Raise ModelError unless transformers reads the config as the conversion does: with the defaults that it fills in,
    it must give the same keys. made: those that the tensors give.
    """
    found = of_config(config)
    if found.name != architecture.name:
        raise ModelError(f"its config would be read as one of {found.name!r}")
    meant = filled_in(config)
    if meant is None:
        return
    filled = {**meant, "architectures": config["architectures"]}
    filled = normalized(filled, architecture.defaults, architecture.keys)
    ours, theirs = ({**architecture_metadata(architecture, each), **made} for each in (full, filled))
    wanted = {key: value for key, value in _implied(architecture, full, ours).items() if key in theirs}
    wanted |= ours
    differing = dict(_differing(architecture, wanted, theirs))
    for key in itertools.chain(*_changes(architecture, wanted, differing)):
        said = f"{key} = {_shown(differing[key])}, not {_shown(wanted.get(key))}"
        raise ModelError(f"transformers would read its config as {said}")


def _differing(
    architecture: Architecture, metadata: Mapping[str, Any], written: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    own = [key for key in metadata if key.startswith((f"{architecture.name}.", "xielu."))]
    for key in dict.fromkeys([*own, *written]):
        if not _same(plain(metadata.get(key)), plain(written.get(key))):
            yield key, written.get(key)


def plain(value: Any) -> Any:
    """A metadata value without its type."""
    return value.data if isinstance(value, Value) else value


def _same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    if isinstance(a, str) or isinstance(b, str):
        return bool(a == b)
    x, y = np.asarray(a), np.asarray(b)
    return x.shape == y.shape and bool(np.all(x.astype(np.float32) == y.astype(np.float32)))


# Tensors


def unmap(
    architecture: Architecture, config: Config, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Source tensors by Hugging Face name. Raises ModelError for a tensor without a rule, or a rule without inverse."""
    generated = {tensor.name for generate in architecture.generated for tensor in generate(config)}
    left = {name: plain_values(tensor) for name, tensor in tensors.items() if name not in generated}
    found: dict[str, Tensor] = {}
    layers = max(layer_count(architecture, config), _last_layer(left) + 1)
    other = architecture.legacy_names
    other = other(tensors) if callable(other) else other
    for pattern, target in reversed(list(architecture.tensors.items())):
        if pattern in other:
            continue
        maps = maps_of(target)
        if isinstance(target, PerLayerScalars):
            found |= _from_numbers(architecture, pattern, target, metadata)
        elif maps:
            for layer in range(layers) if LAYER in pattern else (0,):
                found |= _from_maps(architecture, pattern.replace(LAYER, str(layer)), maps, layer, config, left)
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise ModelError(f"{architecture.hf_classes[0]} has no place for {next(iter(left))!r}{more}")
    return found


def plain_values(tensor: Tensor) -> Tensor:
    """Block formats decoded to float32, so that values can be moved one by one; others as they are."""
    return computed(tensor, lambda x: x) if tensor.format.is_quantized else tensor


def _last_layer(names: Mapping[str, Any]) -> int:
    return max((int(m[1]) for name in names if (m := re.match(r"(?:enc\.|dec\.)?blk\.(\d+)\.", name))), default=-1)


def _from_maps(
    architecture: Architecture, pattern: str, maps: tuple[TensorMap, ...], layer: int, config: Config,
    left: dict[str, Tensor],
) -> dict[str, Tensor]:  # fmt: skip
    """The source of one rule, or of its weight and its bias; what is used is taken out of `left`."""
    targets = [(each.name if isinstance(each.name, str) else each.name(config)) for each in maps]
    targets = [target.replace(LAYER, str(layer)) for target in targets]
    found: dict[str, Tensor] = {}
    for suffix in ("",) if SUFFIX.search(targets[0]) else ("", ".weight", ".bias"):
        names = [target if SUFFIX.search(target) else target + suffix for target in targets]
        if not all(name in left for name in names):
            continue
        parts = [_undone(each, left.pop(name), config) for each, name in zip(maps, names, strict=True)]
        whole = parts[0] if len(parts) == 1 and not _share(maps[0]) else _joined(maps, parts, config)
        name = source_name(architecture, pattern + suffix, names[0])
        found |= _unstacked(name, whole, maps[0].stack)
    return found


def _undone(rule: TensorMap, tensor: Tensor, config: Config) -> Tensor:
    if rule.transform is None:
        return tensor
    if not isinstance(rule.transform, Invertible):
        raise ModelError(f"what was done to {tensor.name!r} cannot be undone")
    return rule.transform.undo(tensor, config)


def _share(rule: TensorMap) -> bool:
    return isinstance(rule.transform, Invertible) and rule.transform.rows is not None


def _joined(maps: tuple[TensorMap, ...], parts: list[Tensor], config: Config) -> Tensor:
    """One source tensor from the shares of its rows."""
    parts = parts if len({part.format.name for part in parts}) == 1 else [_as_float32(part) for part in parts]
    flat = [reshape(part, (part.rows, part.width)) if len(part.shape) > 1 else part for part in parts]
    total = sum(part.shape[0] for part in flat)
    index, shape = [], parts[0].shape
    for rule, part in zip(maps, parts, strict=True):
        transform = rule.transform
        if not isinstance(transform, Invertible) or transform.rows is None:
            raise ModelError(f"what was done to {part.name!r} cannot be undone")
        rows, shape = transform.rows(total, part.shape, config)
        index.append(rows)
    order = np.concatenate(index)
    if len(order) != total or not np.array_equal(np.sort(order), np.arange(total)):
        raise ModelError(f"{parts[0].name!r} and what was beside it do not make a whole")
    whole = reshape(take(concatenated(flat, parts[0].name), np.argsort(order)), shape)
    last = maps[0].transform
    return last.undo_whole(whole, config) if isinstance(last, Invertible) else whole


def _as_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.format.name == "F32" else computed(tensor, lambda x: x)


def _unstacked(name: str, tensor: Tensor, stack: bool) -> dict[str, Tensor]:
    if not stack:
        return {name: tensor.renamed(name)}
    each = math.prod(tensor.shape[1:-1])
    found = {}
    for expert in range(tensor.shape[0]):
        first = expert * each

        def read(start: int, stop: int, first: int = first) -> Any:
            return tensor.raw(first + start, first + stop)

        part = replace(tensor, shape=tensor.shape[1:], read=read)
        found[name.replace(EXPERT, str(expert))] = part.renamed(name.replace(EXPERT, str(expert)))
    return found


def _from_numbers(
    architecture: Architecture, pattern: str, target: PerLayerScalars, metadata: Mapping[str, Any]
) -> dict[str, Tensor]:
    """One number a layer, out of a metadata array."""
    key = target.key if target.key.startswith("xielu.") else f"{architecture.name}.{target.key}"
    values = np.asarray(metadata.get(key, ()), np.float32)
    names = [source_name(architecture, pattern.replace(LAYER, str(i)), "blk") for i in range(len(values))]
    return {name: replace(from_array(name, values[i : i + 1]), shape=target.shape) for i, name in enumerate(names)}


def source_name(architecture: Architecture, bare: str, gguf_name: str) -> str:
    """A source name as checkpoints of the architecture have it, with the wrapper in front."""
    wrapper = architecture.prefixes[0]
    return f"{wrapper}.{bare}" if wrapper and SUFFIX.sub("", gguf_name) not in OUTSIDE else bare


# Config


def rebuilt_config(
    architecture: Architecture, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """config.json from metadata: keys that were copied are copied back, those that were computed are solved for."""
    kind = model_type(architecture)
    config: dict[str, Any] = {"model_type": kind, "architectures": [architecture.hf_classes[0]]}
    for key, source in architecture.metadata.items():
        if not isinstance(source, str):
            continue
        value = number(metadata.get(f"{architecture.name}.{key}"))
        value = None if key == "attention.sliding_window" and value == 0 else value  # some files say none by 0
        name = _config_key(architecture, source)
        if value is not None:
            _set(config, name, value)
        elif not callable(architecture.defaults.get(name)) and name in architecture.defaults:
            config.setdefault(name, MEANT.get(key) if architecture.block.rope != "none" else None)
    known = _Known(architecture, metadata, tensors, config)
    for key, solve in SOLVED.items():
        if key in architecture.metadata or key in ALWAYS:
            solve(known, number(metadata.get(f"{architecture.name}.{key}")))
    config |= {key: bool(fnmatch.filter(tensors, name)) for key, name in architecture.flags_from_tensors.items()}
    if architecture.config_from_gguf:
        start = f"{architecture.name}."
        keys = {key.removeprefix(start): number(metadata[key]) for key in metadata if key.startswith(start)}
        config |= architecture.config_from_gguf(keys, tensors)
    return config


def model_type(architecture: Architecture) -> str:
    """transformers' name for the kind of model: the class without what it is used for, in lower case."""
    bare = re.sub(r"(ForCausalLM|LMHeadModel|Model|ForConditionalGeneration)$", "", architecture.hf_classes[0])
    return str(architecture.defaults.get("model_type", bare.lower()))


@dataclass(frozen=True)
class _Known:
    """What config keys are solved from."""

    architecture: Architecture
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    config: dict[str, Any]

    def get(self, key: str) -> Any:
        return number(self.metadata.get(f"{self.architecture.name}.{key}"))

    def copied(self, key: str) -> bool:
        return isinstance(self.architecture.metadata.get(key), str)

    def choose(self, *names: str) -> str:
        """The name that this family uses."""
        return next((name for name in names if name in self.architecture.defaults), names[0])

    @property
    def head(self) -> int:
        return int(self.get("attention.key_length") or self.get("embedding_length") // self.get("attention.head_count"))


def number(value: Any) -> Any:
    """A metadata value as JSON has it; floats of 32 bits by their shortest decimals."""
    if isinstance(value, np.ndarray):
        return [number(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(str(np.float32(value)))
    return value.item() if isinstance(value, np.generic) else value


def _config_key(architecture: Architecture, source: str) -> str:
    names = source.split("|")
    return next((name for name in names if name.partition(".")[0] in architecture.defaults), names[0])


def _set(config: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for part in outer:
        config = config.setdefault(part, {})
    config[last] = value


def _vocabulary(known: _Known, value: Any) -> None:
    known.config["vocab_size"] = known.tensors["token_embd.weight"].shape[0]
    known.config["tie_word_embeddings"] = "output.weight" not in known.tensors


def _activation(known: _Known, value: Any) -> None:
    names = known.architecture.activation.split("|") if known.architecture.activation else []
    if names:
        block = {"gelu_tanh": "gelu_pytorch_tanh"}.get(known.architecture.block.activation)
        spoken = known.architecture.defaults.keys() | own_keys(known.config["model_type"])
        name = next((name for name in names if name in spoken), names[-1])
        known.config[name] = value or block or known.architecture.block.activation


def _head_width(known: _Known, value: Any) -> None:
    """The width of a head, or the share of it that rotates, by the number of values that rotate."""
    if not isinstance(heads := known.get("attention.head_count"), int) or not heads:
        return
    if "head_dim" in known.architecture.defaults and not known.copied("attention.key_length"):
        known.config["head_dim"] = known.head
    if value is None or known.copied("rope.dimension_count"):
        return
    if known.architecture.metadata["rope.dimension_count"] is not head_dim:
        known.config[known.choose("partial_rotary_factor", "rotary_pct", "rope_pct")] = value / known.head
    elif value != known.get("embedding_length") // heads:
        known.config["head_dim"] = value


def _base(known: _Known, value: Any) -> None:
    known.config["rope_theta"] = 10_000.0 if value is None else value


def _window(known: _Known, value: Any) -> None:
    known.config["sliding_window"] = value or None
    if known.get("attention.sliding_window_pattern") is not None:
        known.config["use_sliding_window"] = True


def _windows(known: _Known, value: Any) -> None:
    layers, period = known.get("block_count"), known.architecture.block.window_period
    if isinstance(value, list):
        windowed = [bool(item) for item in value]
    else:
        every = period if value is None else value
        if not every and value is None:
            return  # all layers have the window
        sees_all = known.architecture.block.sees_all
        windowed = [not every or not sees_all(every, i) for i in range(layers)]
        if known.get("attention.sliding_window") is None:
            return
    kinds = ("full_attention", "sliding_attention")
    known.config["layer_types"] = [kinds[each] for each in windowed]


def _scale(known: _Known, value: Any) -> None:
    if "query_pre_attn_scalar" in known.architecture.defaults:
        known.config["query_pre_attn_scalar"] = known.head if value is None else round(1 / value**2, 3)
    elif value == 1.0 and known.architecture.block.rope == "none":
        known.config["scale_attn_weights"] = False


def _scaling(known: _Known, value: Any) -> None:
    """Rotary scaling, by its keys or by the tensors that it became."""
    scaling: dict[str, Any] | None = None
    if value in ("linear", "yarn"):
        keys = {"factor": "factor", "original_context_length": "original_max_position_embeddings",
                "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow", "yarn_truncate": "truncate",
                "yarn_attn_factor": "attention_factor", "yarn_ext_factor": "extrapolation_factor"}  # fmt: skip
        found = {name: known.get(f"rope.scaling.{key}") for key, name in keys.items()}
        scaling = {"rope_type": value} | {name: each for name, each in found.items() if each is not None}
        mscale, factor = known.get("rope.scaling.yarn_log_multiplier"), scaling.get("factor", 1.0)
        if mscale is not None:
            scaling["mscale"] = scaling["mscale_all_dim"] = round(10 * mscale, 6)
        if (relative := known.get("rope.scaling.attn_factor")) is not None and factor > 1:
            grows, all_dim = 0.1 * math.log(factor), scaling.get("mscale_all_dim", 1.0)
            usual = 1.0 if mscale else grows + 1
            scaling["mscale"] = (relative * (grows * all_dim + 1) * usual - 1) / grows
            scaling["mscale_all_dim"] = all_dim
    elif (factor := known.get("rope.scaling.dynamic_factor")) is not None:
        scaling = {"rope_type": "dynamic", "factor": factor}
        if (trained := known.get("rope.scaling.original_context_length")) is not None:
            known.config["model_max_length"] = known.get("context_length")
            known.config["max_position_embeddings"] = trained
    elif "rope_factors_long.weight" in known.tensors:
        scaling = _longrope(known)
    elif "rope_freqs.weight" in known.tensors:
        scaling = _llama3(known)
    if not known.architecture.rope_parameters:
        known.config["rope_scaling"] = scaling
        return
    base, local = known.get("rope.freq_base"), known.get("rope.freq_base_swa")
    settings = {"rope_type": "default", "rope_theta": base, **(scaling or {})}
    if sections := known.get(SECTIONS):
        settings["mrope_section"] = sections[:3]
    if known.architecture.rope_parameters == "by kind":
        plain = {"rope_type": "default", "rope_theta": base if local is None else local}
        of_kinds = {"full_attention": settings, "sliding_attention": plain}
        if local is None and base == known.architecture.defaults["rope_theta"]:
            del of_kinds["sliding_attention"]  # what the model type means by none
        kinds = known.config.get("layer_types") or ("full_attention",)
        kept = {*kinds, "full_attention"} if scaling else {*kinds}
        settings = {kind: each for kind, each in of_kinds.items() if kind in kept}
    known.config["rope_parameters"] = settings


def _longrope(known: _Known) -> dict[str, Any]:
    factors = {kind: known.tensors[f"rope_factors_{kind}.weight"].float32() for kind in ("long", "short")}
    trained = known.get("rope.scaling.original_context_length") or known.get("context_length")
    known.config["original_max_position_embeddings"] = trained
    found = {f"{kind}_factor": [number(item) for item in values] for kind, values in factors.items()}
    return {"rope_type": "longrope", **found, "attention_factor": known.get("rope.scaling.attn_factor")}


def _llama3(known: _Known) -> dict[str, Any]:
    """The factor shows in the divisors, if anything is stretched in full; the trained context is what gives them again:
    a power of two, or what one divisor between 1 and the factor means.
    """
    wanted = known.tensors["rope_freqs.weight"].float32()
    largest = number(wanted.max())
    base = known.get("rope.freq_base") or 10_000.0
    wavelengths = 2 * math.pi * base ** (np.arange(len(wanted)) / len(wanted))
    config = {"rope_theta": base, **known.config}
    said = known.get("rope.scaling.original_context_length")
    trained = () if said is None else (said,)
    for factor in dict.fromkeys((largest, *(each for each in STRETCHES if each > largest))):
        between = (wanted > 1) & (wanted < factor)
        smooth = (1 / wanted[between].astype(np.float64) - 1 / factor) / (1 - 1 / factor)
        solved = [round(each) for each in (3 * smooth + 1) * wavelengths[between]]
        for context in dict.fromkeys((*trained, 8192, *(1 << power for power in range(1, 21)), *solved)):
            scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                       "original_max_position_embeddings": context}  # fmt: skip
            made = [t for make in known.architecture.generated for t in make({**config, "rope_scaling": scaling})]
            if made and np.array_equal(made[0].float32(), wanted):
                return scaling
    raise ModelError("rope_freqs.weight does not come from a rotary scaling that is known")


def _normalized_experts(known: _Known, value: Any) -> None:
    known.config["norm_topk_prob"] = known.architecture.block.normalize_experts if value is None else value


def _gating(known: _Known, value: Any) -> None:
    if value is not None:
        known.config["scoring_func"] = {number: name for name, number in GATING.items()}[value]


def _groups(known: _Known, value: Any) -> None:
    if value is not None:
        known.config["topk_group"] = value


def _parallel(known: _Known, value: Any) -> None:
    known.config["use_parallel_residual"] = value


def _inner(known: _Known, value: Any) -> None:
    known.config[known.choose("intermediate_size", "n_inner", "ffn_hidden_size")] = value
    if "n_embd" in known.architecture.defaults:
        known.config["n_inner"] = value


ALWAYS = ("vocab_size", "hidden_activation", "rope.scaling.type")
SOLVED: dict[str, Callable[[_Known, Any], None]] = {
    "vocab_size": _vocabulary,
    "hidden_activation": _activation,
    "rope.freq_base": lambda known, value: None if known.copied("rope.freq_base") else _base(known, value),
    "rope.dimension_count": _head_width,
    "attention.sliding_window": lambda known, value: (
        None if known.copied("attention.sliding_window") else _window(known, value)
    ),
    "attention.sliding_window_pattern": lambda known, value: (
        None if known.copied("attention.sliding_window_pattern") else _windows(known, value)
    ),
    "attention.scale": lambda known, value: None if known.copied("attention.scale") else _scale(known, value),
    "expert_weights_norm": lambda known, value: (
        None if known.copied("expert_weights_norm") else _normalized_experts(known, value)
    ),
    "expert_gating_func": _gating,
    "expert_group_used_count": _groups,
    "rope.scaling.type": _scaling,
    "feed_forward_length": lambda known, value: None if known.copied("feed_forward_length") else _inner(known, value),
}
