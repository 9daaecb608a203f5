"""Plan the export of a text model's file and its encoders' file to one checkpoint: the inverse of both mappings.

The result is checked as that of a text model: converted again, headers only, it must give both files' keys, names and
shapes, and transformers must read its config so.
"""

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from quants import Tensor
from quants.errors import FormatError, ModelError, VocabularyError

from ...config import lookup, normalized
from ...encoder import NAME, Activation, Always, Encoder, Having, Maybe, Side, always_there, projectors
from ...model_type import filled_in, part_types, stored_keys, with_types
from ...registry import architectures, of_config
from ...spec import Architecture, Tensors
from ...tensor_maps import NotExportable
from ...validation.encoder_validators import validate_encoder
from ...wrapper import Files, Wrapper, renamed
from ..mmproj import all_encoders, encoder_metadata, encoders_of, full_config, map_encoders
from ..text import PLACE, maps_of
from . import NEEDS_ENCODERS, ExportPlan, differences, is_part, plan_best
from .config import number
from .missing_tensors import check_whole
from .tensors import from_maps, movable, numbered

OURS = (ModelError, FormatError, VocabularyError)
Shapes = Mapping[str, tuple[int, ...]]


def plan_multimodal_checkpoint(
    metadata: Mapping[str, Any], tensors: Tensors, encoders: Mapping[str, Any], encoder_tensors: Tensors
) -> ExportPlan:
    """Return the checkpoint that converts to both files. encoders: metadata of the encoders' file.

    Raises ModelError if there is none, with the reason: encoders of another model, or of a type that cannot be
    exported.
    """
    keys = {key.removeprefix(f"{NAME}."): value for key, value in encoders.items() if not key.startswith("general.")}
    files = Files(keys, encoder_tensors, metadata)
    _check(encoders, files)
    reasons, plans = [], []
    for encoder, wrapper in _candidates(files):
        try:
            plans.append(_plan(encoder, wrapper, files, tensors))
        except OURS as error:
            reasons.append(f"{wrapper.hf_class}: {error}")
        except KeyError as error:
            reasons.append(f"{wrapper.hf_class}: the encoders' file has no {NAME}.{error.args[0]}")
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            reasons.append(f"{wrapper.hf_class}: its metadata makes no config ({type(error).__name__}: {error})")
    if not plans:
        raise ModelError(f"the files cannot become a checkpoint: {'; '.join(reasons)}")
    return min(plans, key=lambda plan: len(plan.differing))


def _check(encoders: Mapping[str, Any], files: Files) -> None:
    """Raise ModelError for a file that is no encoders' file, or that of another model."""
    if files.text.get("general.architecture") == NAME:
        raise ModelError("the first file has encoders for images or audio, and is no text model", NEEDS_ENCODERS)
    if (name := encoders.get("general.architecture")) != NAME:
        raise ModelError(f"the second file is no encoders': its general.architecture is {name!r}, not {NAME!r}")
    for where, wrong in validate_encoder(encoders, files.tensors):
        raise ModelError(f"the encoders' file: {where} {wrong}")
    width = files.of_text.get("embedding_length")
    for part in ("vision", "audio"):
        if (projected := files.keys.get(f"{part}.projection_dim")) not in (None, width):
            problem = f"the encoders' embeddings are {projected} wide, those of the model {width}"
            raise ModelError(problem, "the mmproj file is of another model")
        own, heads = (files.keys.get(f"{part}.{key}") for key in ("embedding_length", "attention.head_count"))
        layers = files.keys.get(f"{part}.block_count")
        if own and layers and (not isinstance(heads, int) or heads < 1 or own % heads):
            raise ModelError(f"{NAME}.{part}.attention.head_count is {heads}, which does not divide the width, {own}")


def _candidates(files: Files) -> list[tuple[Encoder, Wrapper]]:
    """Return the classes with such encoders and such a text model. Raises ModelError if there are none."""
    types = {
        part: files.keys.get("projector_type") or files.keys.get(f"{part}.projector_type")
        for part in ("vision", "audio")
        if files.keys.get(f"has_{part}_encoder")
    }
    type_names = " and ".join(map(repr, types.values()))
    known = [
        (each, wrapper)
        for each in all_encoders()
        for wrapper in each.wrappers
        if types.items() <= projectors(each).items() and always_there(each) <= {*types}
    ]
    if not known:
        why = next(
            (
                f": {each.no_way_back}"
                for each in all_encoders()
                if each.no_way_back and types.items() <= projectors(each).items()
            ),
            "",
        )
        raise ModelError(f"encoders of the type {type_names} do not become a checkpoint again{why}")
    name = files.text.get("general.architecture")
    candidates = [(encoder, each) for encoder, each in known if not each.texts or name in each.texts]
    if not candidates:
        text_models = ", ".join(dict.fromkeys(text for _, each in known for text in each.texts))
        raise ModelError(f"encoders of the type {type_names} go with {text_models}; the text model is {name!r}")
    fitting = [(encoder, each) for encoder, each in candidates if each.fits is None or each.fits(files)]
    return fitting or candidates


def _check_positions(wrapper: Wrapper, files: Files) -> None:
    """Raise ModelError if the number of learned positions does not fit the keys' image size."""
    shape = files.shape("v.position_embd.weight")
    if wrapper.positions is None or len(shape) < 2:
        return
    side, patch = (int(files.keys[f"vision.{key}_size"]) for key in ("image", "patch"))
    if shape[-2] != (wanted := (side // patch) ** 2 + wrapper.positions):
        raise ModelError(f"v.position_embd.weight has {shape[-2]} positions; images of {side} pixels have {wanted}")


def _plan(encoder: Encoder, wrapper: Wrapper, files: Files, tensors: Tensors) -> ExportPlan:
    check_whole(encoder, wrapper, files)
    _check_positions(wrapper, files)
    config, preprocessor = _configs(encoder, wrapper, files)
    types = part_types(wrapper.inside_type or wrapper.model_type)
    family = _families(files, wrapper, wrapper.config.get("text.model_type") or types.get("text_config", ""))
    own = config.pop("text_config", {})
    text = plan_best(family, files.text, tensors, config)
    plain = {key: value for key, value in text.config.items() if key != "architectures"}
    tied = {"tie_word_embeddings": plain.get("tie_word_embeddings", False)}
    head = {"architectures": [wrapper.hf_class], "model_type": wrapper.model_type}
    inner: dict[str, Any] = {}
    for place in wrapper.text_in:
        of_text = _merged(plain, own)
        inner |= {place: of_text} if place else {key: each for key, each in of_text.items() if key not in head}
    inner |= tied
    if wrapper.inside:
        inner = {wrapper.inside: {**config.pop(wrapper.inside, {}), **inner, "model_type": wrapper.inside_type}}
    whole = {**head, **config, **inner}
    source = _source(encoder, wrapper, files, whole, text.architecture, preprocessor)
    differing = _checked(encoder, wrapper, files, whole, text.architecture, preprocessor, source)
    own_tensors = wrapper.of_text_changed(files, text.tensors) if wrapper.of_text_changed else text.tensors
    named = {renamed(name, wrapper.text_names): tensor for name, tensor in own_tensors.items()}
    made = {tensor.name: tensor for tensor in wrapper.made(files)} if wrapper.made else {}
    source = {**source, **made}
    named |= {renamed(name, wrapper.encoder_names): tensor for name, tensor in source.items()}
    if len(named) < len(text.tensors) + len(source):
        raise ModelError("both files have tensors of one name")
    processors = {
        "processor_class": wrapper.processor,
        "image_processor_type": wrapper.image_processor,
        "feature_extractor_type": wrapper.feature_extractor,
    }
    settings = {**{key: value for key, value in processors.items() if value}, **preprocessor}
    renaming = {name: tensor.renamed(name) for name, tensor in named.items()}
    return ExportPlan(
        text.architecture,
        whole,
        renaming,
        {**text.differing, **differing},
        settings,
        {role: token for role, token in wrapper.tokenizer.items() if files.has(token)},
    )


def _families(files: Files, wrapper: Wrapper, model_type: str) -> list[Architecture]:
    """Return the text model's families, with the model type that each has as a part."""
    name = files.text.get("general.architecture")
    named = [each for each in architectures() if each.name == name]
    own = [
        each
        for each in named
        if wrapper.hf_class in each.hf_classes and not isinstance(each.config_from_gguf, NotExportable)
    ]
    families = own or [each for each in named if not is_part(each)]
    if not families:
        raise ModelError(f"general.architecture {name!r} is not one that can become a checkpoint")

    def as_part(each: Architecture) -> Architecture:
        rotary = "one" if is_part(each) and not each.rope_parameters else each.rope_parameters
        own_type = {"model_type": model_type} if model_type else {}
        first = (wrapper.hf_class,) if wrapper.hf_class in each.hf_classes else ()
        classes = tuple(dict.fromkeys((*first, *each.hf_classes)))
        return replace(each, hf_classes=classes, defaults={**each.defaults, **own_type}, rope_parameters=rotary)

    return list(map(as_part, families))


def _configs(encoder: Encoder, wrapper: Wrapper, files: Files) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return config.json without the text model's keys, and the preprocessor's file, from the encoders' keys."""
    config: dict[str, Any] = {}
    types = part_types(wrapper.inside_type or wrapper.model_type)
    places = {part: _place(path, wrapper) for part, path in encoder.parts.items()}
    for part, place in places.items():
        key = place.rpartition(".")[2]
        if files.keys.get(f"has_{part}_encoder"):
            model_type = wrapper.config.get(f"{part}.model_type") or types.get(key, "")
            _put(config, place, {"model_type": model_type} if model_type else {})
        elif key in types:
            _put(config, place, None)
    preprocessor: dict[str, Any] = {}
    for path, value in [*_copied(encoder, wrapper, files, types), *_stated(encoder, wrapper, files)]:
        part, _, rest = path.partition(".")
        if part == "preprocessor":
            _put(preprocessor, rest, value)
        elif part == "text":
            _put(config, f"text_config.{rest}", value)
        elif part in encoder.parts:
            if files.keys.get(f"has_{part}_encoder"):
                _put(config, f"{places[part]}.{rest}", value)
        else:
            _put(config, path, value)
    preprocessor |= dict(_values(wrapper.preprocessor, files))
    for place in places.values():
        own = lookup(config, place)
        if own == {}:  # of configs without such a part
            config.pop(place, None)
        if isinstance(own, dict) and "model_type" in own:
            _put(config, place, with_types(own))
    return config, preprocessor


def _place(path: str, wrapper: Wrapper) -> str:
    """Return the location of a part in such a config, of those that checkpoints use."""
    every = path.split("|")
    return next((each for each in every if each.rpartition(".")[0] == wrapper.inside), every[0])


def _copied(encoder: Encoder, wrapper: Wrapper, files: Files, types: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Return the config paths that copy a key, with their values."""
    known = {
        part: stored_keys(wrapper.config.get(f"{part}.model_type") or types.get(path.rpartition(".")[2], ""))
        for part, path in encoder.parts.items()
    }
    for key, rule in encoder.metadata.items():
        value, source = files.keys.get(key.removeprefix("/")), rule.source if isinstance(rule, Having) else rule
        if value is None:
            continue
        if isinstance(source, Activation):
            yield source.path, source.name
        elif isinstance(source, (str, Maybe, Side)):
            path = _spoken(source if isinstance(source, str) else source.path, known)
            if path.partition(".")[0] not in ("text", "text_config"):
                yield path, number(value)


def _spoken(paths: str, known: Mapping[str, set[str]]) -> str:
    """Return the first of several alternative paths that the part's class names."""
    every = paths.split("|")
    for path in every:
        part, _, key = path.partition(".")
        if key in known.get(part, ()):
            return path
    return every[0]


def _stated(encoder: Encoder, wrapper: Wrapper, files: Files) -> Iterator[tuple[str, Any]]:
    absent = tuple(f"{part}." for part in encoder.parts if not files.keys.get(f"has_{part}_encoder"))
    yield from _values({path: value for path, value in wrapper.config.items() if not path.startswith(absent)}, files)
    for place, (path, texts) in enumerate(wrapper.tokens.items()):
        if not place or files.has(*texts):
            yield path, files.token(*texts)


def _values(rules: Mapping[str, Any], files: Files) -> Iterator[tuple[str, Any]]:
    for path, value in rules.items():
        result = number(value(files)) if callable(value) else value
        if result is not None or not callable(value):
            yield path, result


def _put(config: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for part in outer:
        config = config.setdefault(part, {})
    config[last] = value


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, with nested objects merged, too."""
    return {
        **below,
        **{
            key: _merged(below[key], value) if isinstance(value, dict) and isinstance(below.get(key), dict) else value
            for key, value in above.items()
        },
    }


def _full(
    encoder: Encoder,
    config: Mapping[str, Any],
    text: Architecture,
    preprocessor: Mapping[str, Any],
    files: Files,
    shapes: Shapes,
) -> dict[str, Any]:
    """Return the config as the encoders' rules read it."""
    own = normalized(config, text.defaults, text.keys)
    tokens = {name: files.token(token) for name, token in encoder.tokens.items()}
    return full_config(encoder, config, (text, own), preprocessor, tokens, shapes, {})


def _source(
    encoder: Encoder,
    wrapper: Wrapper,
    files: Files,
    config: Mapping[str, Any],
    text: Architecture,
    preprocessor: Mapping[str, Any],
) -> dict[str, Tensor]:
    """Return the encoders' tensors by the names that `Encoder.tensors` has. Raises ModelError for one without an
    inverse.
    """
    full = _full(encoder, config, text, preprocessor, files, {})
    made = {tensor.name for generate in encoder.generated for tensor in generate(full)}
    left = movable(
        {
            name: tensor
            for name, tensor in files.tensors.items()
            if name not in made and not any(fnmatch.fnmatchcase(name, glob) for glob in wrapper.of_text)
        }
    )
    source: dict[str, Tensor] = {}
    for pattern, target in reversed(list(encoder.tensors.items())):
        maps = maps_of(target)
        if not maps or any(fnmatch.fnmatchcase(pattern, glob) for glob in wrapper.unused):
            continue
        first = maps[0].name if isinstance(maps[0].name, str) else maps[0].name(full)
        for numbers in _numbers(first, pattern, left):
            source |= from_maps(numbered(pattern, numbers), maps, numbers, full, left, lambda bare, name: bare)
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise ModelError(f"the encoders have no place for {next(iter(left))!r}{more}")
    return dict(encoder.prepare_export(full, source)) if encoder.prepare_export else source


def _numbers(name: str, pattern: str, left: Tensors) -> list[tuple[int, ...]]:
    """Return the numbers for which the file has a tensor of that name."""
    if not PLACE.search(name):
        return [(0,)]
    text = re.sub(r"\\\{[ij]\\\}", r"(\\d+)", re.escape(name))
    matches = (re.fullmatch(rf"{text}(?:\.weight|\.bias)?", each) for each in left)
    return sorted({tuple(map(int, match.groups())) for match in matches if match})


def _checked(
    encoder: Encoder,
    wrapper: Wrapper,
    files: Files,
    config: Mapping[str, Any],
    text: Architecture,
    preprocessor: Mapping[str, Any],
    source: Tensors,
) -> dict[str, Any]:
    """Return keys that a conversion would write differently. Raises ModelError if it would give another file."""
    if encoders_of(config) is not encoder:
        raise ModelError("its config would be read as one with other encoders")
    if of_config(config).name != text.name:
        raise ModelError(f"its config would be read as one of {of_config(config).name!r}")
    shapes = {name: tensor.shape for name, tensor in source.items()}
    full = _full(encoder, config, text, preprocessor, files, shapes)
    again, rest = map_encoders(encoder, full, source)
    if rest:
        raise ModelError(f"a conversion would not take {rest[0]!r} for the encoders'")
    for name, tensor in files.tensors.items():
        if name in again.tensors and again.tensors[name].shape != tensor.shape:
            raise ModelError(f"{name!r} would have shape {again.tensors[name].shape}, not {tensor.shape}")
    keys = {key: value for key, value in files.keys.items() if key not in ("file_type",)}
    written = _written(encoder, full)
    meant = filled_in(dict(config))
    if meant is not None and not wrapper.read_otherwise:
        parts = {key: value for key, value in meant.items() if key in config or not isinstance(value, dict)}
        filled = _full(encoder, {**parts, "architectures": config["architectures"]}, text, preprocessor, files, shapes)
        for key, value in differences(written, _written(encoder, filled)).items():
            raise ModelError(f"transformers would read its config as {NAME}.{key} = {value}, not {written.get(key)}")
    differing = differences(keys, written)
    for key, value in differing.items():
        if key in keys and value is not None and not isinstance(encoder.metadata.get(key), Always):
            raise ModelError(f"a conversion of its config would write {NAME}.{key} = {value}, not {keys[key]}")
    return {f"{NAME}.{key}": value for key, value in differing.items()}


def _written(encoder: Encoder, full: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("/"): value for key, value in encoder_metadata(encoder, full).items()}
