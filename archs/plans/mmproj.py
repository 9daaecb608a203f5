"""Plan an mmproj file: encoder + checkpoint → metadata and lazily transformed tensors. Every tensor of the checkpoint
must be the encoders', the text model's, or known to be unused; else nothing is written.
"""

import fnmatch
import importlib
import pkgutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from quants import Tensor
from quants.errors import ModelError
from quants.spelling import nearest

from .. import multimodal as families
from ..config import FILE, ReadConfig, absent, limits_of, lookup, normalized, text_part
from ..encoder import FIXED, GENERAL_TYPE, NAME, Encoder
from ..general import general
from ..hparams.config_keys import KEYS
from ..hparams.encoder_keys import PARTS, PREPROCESSOR
from ..metadata import Metadata
from ..prequantized import method_of, settings_of, unpacked, with_settings_file
from ..registry import of_config
from ..small_files import read_json_object
from ..spec import Architecture, Config, Tensors
from ..typed_json import Fields, Place, Unread, read_fields
from .text import NUMBER, Mapped, maps_of, place, rule_of, rules_of, stack_experts, unplaced

WRAPPERS = ("model.", "thinker.")  # optional prefixes of every name
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")  # the later one wins
INSIDE = ("media_proc_cfg", "image_processor", "vision_config")  # objects in which the values may be nested
# Prefixes of a checkpoint's text model if none of our families takes its class.
TEXT_NAMES = (
    "language_model.*",
    "text_decoder.*",
    "lm_head.*",
    "layers.*",
    "embed_tokens.*",
    "word_embeddings.*",
    "norm.*",
    "mtp.*",
    "embed.*",
    "head.*",
    "hc_head*",
    "llm.*",
)


@dataclass(frozen=True)
class EncoderPlan:
    """A checkpoint's encoders as the GGUF file that they will be: only headers are read yet.

    metadata: all but `general.file_type`. ignored: unused source tensors; text: those of the text model, which is a
    file of its own. packed: as of `archs.plans.text.Plan`.
    """

    encoder: Encoder
    metadata: Metadata
    tensors: dict[str, Tensor]
    ignored: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    packed: str = ""

    @property
    def fixed(self) -> dict[str, str]:
        """Return globs of names → the format of such tensors in every output type."""
        return {**self.encoder.fixed, **FIXED}


@cache
def all_encoders() -> tuple[Encoder, ...]:
    """Return all known encoders."""
    modules = [
        importlib.import_module(f"{families.__name__}.{info.name}") for info in pkgutil.iter_modules(families.__path__)
    ]
    encoders = [value for module in modules for value in vars(module).values() if isinstance(value, Encoder)]
    return tuple({id(each): each for each in encoders}.values())


def encoders_of(config: Mapping[str, Any]) -> Encoder | None:
    """Return the encoders of a checkpoint's config.json, by its class or its vision part's; None if unknown."""
    known: dict[str, list[Encoder]] = {}
    for each in all_encoders():
        for hf_class in each.hf_classes:
            known.setdefault(hf_class, []).append(each)
    for hf_class in _classes(config):
        for each in known.get(hf_class, []):
            model_types = {str(_part(config, path).get("model_type")) for path in each.parts.values()}
            if not each.model_types or model_types & set(each.model_types):
                return each
    return None


def _classes(config: Mapping[str, Any]) -> list[str]:
    parts = [config, *(config.get(key) for key in ("vision_config", "audio_config"))]
    lists = [part.get("architectures") for part in parts if isinstance(part, Mapping)]
    return [str(name) for names in lists if isinstance(names, list) for name in names]


def _part(config: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    part = lookup(config, path)
    return part if isinstance(part, Mapping) else {}


def required_encoders(config: Mapping[str, Any]) -> Encoder:
    """Return `encoders_of`. Raises ModelError if there are none."""
    if (encoder := encoders_of(config)) is not None:
        return encoder
    known = sorted({name for each in all_encoders() for name in each.hf_classes})
    classes = _classes(config)
    near = [n for name in classes for n in nearest(name, known, cutoff=0.5)]
    hint = f"nearest known: {', '.join(dict.fromkeys(near))}" if near else "`gguftools architectures` lists what has"
    raise ModelError(
        f"no encoders are known of {' / '.join(classes) or 'a model without a class in config.json'}", hint
    )


def plan_encoders(
    folder: Path, config: Mapping[str, Any], tensors: Tensors, processor: Path | None = None
) -> EncoderPlan:
    """Plan the mmproj file of a checkpoint in `folder` (for preprocessor, tokenizer, model card).

    processor: the folder of preprocessor and tokenizer, if another. Raises ModelError for a class without known
    encoders, a tensor that belongs neither to them nor to the text model, and values that are missing or of a wrong
    type.
    """
    encoder = required_encoders(config)
    if tensors and all(map(_is_text, tensors)):
        raise ModelError(
            f"none of the {len(tensors)} tensors belongs to an encoder", "this checkpoint is a text model's"
        )
    text = _text_model(folder, config, tensors)
    full = encoder_config(encoder, processor or folder, config, tensors, text)
    full["folder"] = folder.resolve().name
    stored = with_settings_file(folder, {**config})
    whole = unpacked(stored, _with_usual_scales(tensors) if settings_of(stored) else tensors)
    mapped, rest = map_encoders(encoder, full, whole.tensors)
    others = {name: whole.tensors[name] for name in rest}
    unknown = unplaced(*text, others) if text else [name for name in rest if not _is_text(name)]
    if unknown:
        more = f" and {len(unknown) - 1} more tensors" if len(unknown) > 1 else ""
        problem = (
            f"neither the encoders nor the text model of {' / '.join(encoder.hf_classes)} have {unknown[0]!r}{more}"
        )
        raise ModelError(problem, "the checkpoint is of another variant; nothing is left out in silence")
    if not mapped.tensors:
        raise ModelError(
            f"none of the {len(tensors)} tensors belongs to an encoder", "this checkpoint is a text model's"
        )
    metadata = general(folder, NAME, mapped.tensors.values(), GENERAL_TYPE)
    for key, value in encoder_metadata(encoder, full).items():
        metadata[key[1:] if key.startswith("/") else f"{NAME}.{key}"] = value
    _check_layers(metadata, mapped.tensors)
    packed = method_of(settings) if (settings := settings_of(full)) else ""
    return EncoderPlan(encoder, metadata, mapped.tensors, [*whole.ignored, *mapped.ignored], rest, packed)


def _with_usual_scales(tensors: Tensors) -> Tensors:
    """Return scales next to a weight under the usual names; DeepSeek V4's differ."""

    def named(name: str) -> str:
        weight = f"{name.removesuffix('.scale')}.weight"
        return f"{weight}_scale" if name.endswith(".scale") and weight in tensors else name

    return {named(name): tensor.renamed(named(name)) for name, tensor in tensors.items()}


def _text_model(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> tuple[Architecture, Config] | None:
    """Return the text model's family and its config; None for an unknown family."""
    try:
        architecture = of_config(config)
    except ModelError:
        return None
    bounds = tensors if has_text(tensors) else None
    return architecture, normalized(config, architecture.defaults, architecture.keys, bounds)


def has_text(names: Iterable[str]) -> bool:
    """Return whether any of a checkpoint's tensors has a text model's name. Encoders are published alone, too."""
    return any(map(_is_text, names))


def only_encoders(config: Mapping[str, Any], names: Collection[str]) -> bool:
    """Return whether a checkpoint has tensors of its class's encoders, and none of a text model."""
    return bool(names) and not (has_text(names) or left_to_encoders(config, list(names)))


def _is_text(name: str) -> bool:
    bare = _bare(name)
    return any(fnmatch.fnmatchcase(bare, pattern) for pattern in TEXT_NAMES)


def encoder_config(
    encoder: Encoder,
    folder: Path,
    config: Mapping[str, Any],
    tensors: Tensors,
    text: tuple[Architecture, Config] | None,
) -> dict[str, Any]:
    """Return config.json with the parts that `archs.encoder` names. Raises ModelError for values of a wrong type."""
    tokens = {name: _token_id(folder, token) for name, token in encoder.tokens.items()}
    shapes = {_spelled(encoder, name): tensor.shape for name, tensor in tensors.items()}
    return full_config(encoder, config, text, _preprocessor(folder), tokens, shapes, limits_of(tensors))


def full_config(
    encoder: Encoder,
    config: Mapping[str, Any],
    text: tuple[Architecture, Config] | None,
    preprocessor: Mapping[str, Any],
    tokens: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    limits: Mapping[str, int],
) -> dict[str, Any]:
    """Return the full config from its parts. shapes: of tensors by source names; limits: see
    `archs.config.limits_of`.
    """
    of_text = text[0].keys if text else {}
    fields = Fields({**KEYS, **of_text, **PARTS, **encoder.keys})
    of_whole = limits if has_text(shapes) else {}  # of numbers that may be the text model's
    full = ReadConfig(fields.read(dict(config), Place(FILE, limits=of_whole)))
    # Whisper's vocabulary is that of the decoder, which these models lack: no tensor confirms it.
    of_part = Fields({**fields.table, "vocab_size": Unread()})
    for part, path in encoder.parts.items():
        values = of_part.read(dict(_part(config, path)), Place(FILE, path, limits=limits))
        present = {key: value for key, value in values.items() if value is not None}
        full[part] = ReadConfig({**encoder.defaults.get(part, {}), **present})
    thinker = full.get("thinker_config")
    inner = thinker if isinstance(thinker, Mapping) else full
    inner_text = {} if text else fields.read(dict(text_part(inner)), Place(FILE, "text_config", limits=of_whole))
    full["text"] = text[1] if text else ReadConfig({**full, **inner_text})
    full["preprocessor"], full["shapes"], full["tokens"] = dict(preprocessor), dict(shapes), dict(tokens)
    for path, is_wrong in encoder.refused.items():
        if is_wrong(value := lookup(full, path)):
            raise ModelError(f"{FILE} has {path} = {value!r}, which files of encoders cannot express")
    return full


def _preprocessor(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in PREPROCESSORS:
        content = read_json_object(folder / name, optional=True)
        for inside in INSIDE:
            if isinstance(content.get(inside), dict):
                content = {**content, **content[inside]}
        settings |= read_fields(content, PREPROCESSOR, name)
    return settings


def _token_id(folder: Path, token: str) -> int:
    """Return the id of an added token, by the tokenizer's files. Raises ModelError."""
    decoder = read_json_object(folder / "tokenizer_config.json", optional=True).get("added_tokens_decoder")
    for number, entry in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(entry, dict) and entry.get("content") == token and number.isdecimal():
            return int(number)
    added = read_json_object(folder / "tokenizer.json", optional=True).get("added_tokens")
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, dict) and entry.get("content") == token and type(entry.get("id")) is int:
            return int(entry["id"])
    raise ModelError(f"{folder} does not say which token {token} is", "the tokenizer's files are needed, too")


def encoder_metadata(encoder: Encoder, config: Config) -> dict[str, Any]:
    """Return the encoders' keys without "clip.", with their values. Raises ModelError for one that the config lacks."""
    metadata: dict[str, Any] = {}
    for key, source in encoder.metadata.items():
        value = source(config) if callable(source) else lookup(config, source)
        if value is not None:
            metadata[key] = value
        elif isinstance(source, str):
            path = source.partition("|")[0]
            if path.startswith("preprocessor."):
                raise ModelError(f'no preprocessor_config.json says "{path.partition(".")[2]}"', "fetch that file, too")
            raise absent(*source.split("|"))
    return metadata


def map_encoders(encoder: Encoder, config: Config, tensors: Tensors) -> tuple[Mapped, list[str]]:
    """Return the source tensors of the encoders, mapped by their rules, and the names of all others."""
    sources = {_spelled(encoder, name): tensor for name, tensor in tensors.items()}
    prepared = encoder.prepare(config, sources) if encoder.prepare else sources
    rules, result, rest = rules_of(encoder.tensors), Mapped(), []
    for generate in encoder.generated:
        result.tensors |= {each.name: each for each in generate(config)}
    for bare, tensor in prepared.items():
        if any(fnmatch.fnmatchcase(bare, pattern) for pattern in encoder.ignored):
            result.ignored.append(tensor.name)
            continue
        rule = rule_of(rules, bare)
        if rule is None:
            rest.append(tensor.name)
            continue
        numbers = [int(number) for number in NUMBER.findall("." + bare)]
        for each in maps_of(rule[0]):
            place(each, rule[1], numbers, tensor, config, result)
    stack_experts(result, config)
    return result, rest


def without_encoders(config: Mapping[str, Any], tensors: Tensors) -> tuple[Tensors, list[str]]:
    """Return a checkpoint's tensors without those that its encoders claim by name, and the names of these."""
    globs = encoder.claimed if (encoder := encoders_of(config)) else ()
    claimed = [name for name in tensors if any(fnmatch.fnmatchcase(_bare(name), glob) for glob in globs)]
    return {name: tensor for name, tensor in tensors.items() if name not in set(claimed)}, claimed


def left_to_encoders(config: Mapping[str, Any], names: list[str]) -> list[str]:
    """Return the tensors without a place in the text model's file that no encoders of the class claim either."""
    encoder = encoders_of(config)
    if encoder is None:
        return names
    rules = rules_of(encoder.tensors)

    def known(name: str) -> bool:
        bare = _spelled(encoder, name)
        aside = any(fnmatch.fnmatchcase(bare, pattern) for pattern in (*encoder.ignored, *encoder.claimed))
        return aside or rule_of(rules, bare) is not None

    return [name for name in names if not known(name)]


def _bare(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.removeprefix(wrapper)
    return name


def _spelled(encoder: Encoder, name: str) -> str:
    bare = _bare(name)
    for other, usual in encoder.spellings.items():
        if bare.startswith(other):
            return usual + bare.removeprefix(other)
    return bare


def _check_layers(metadata: Metadata, tensors: Mapping[str, Tensor]) -> None:
    """Check that every layer that the config counts is there. Raises ModelError."""
    for letter, part in (("v", "vision"), ("a", "audio")):
        count = metadata.get(f"{NAME}.{part}.block_count")
        layers = set(_layers(letter, tensors))
        if count is None or not layers:
            continue
        first = int(0 not in layers and f"{letter}.asp_attn.weight" in tensors)  # that net counts its stages from 1
        if missing := sorted(set(range(first, first + count)) - layers):
            lacking = ", ".join(map(str, missing[:5]))
            raise ModelError(f"{FILE} says {count} {part} layers; the checkpoint lacks layer {lacking}")


def _layers(letter: str, tensors: Mapping[str, Tensor]) -> Iterator[int]:
    for name in tensors:
        first, *rest = name.split(".")
        if first == letter and len(rest) > 2 and rest[0] == "blk" and not rest[2].isdecimal():  # no stage's block
            yield int(rest[1])
