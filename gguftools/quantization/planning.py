"""Plan a quantized output: formats, importance, metadata, shards; all is checked before any work."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from archs.diffusion.detection import is_tag
from archs.diffusion.layout import published_shape
from archs.metadata import Metadata, Value, ValueType
from archs.schema import find
from archs.values import INTEGERS, value_of
from quants import Tensor
from quants.errors import FormatError, OptionError

from ..io.gguf.shards import distribute, shard_metadata, shard_paths, without_split_keys
from ..metadata.checks import architecture_of, check_new_keys, faults
from ..writing.items import Floats, Item
from ..writing.origin import Origin
from ..writing.pipeline import FilePlan
from . import recipes
from .imatrix import ImportanceMatrix, entry_for, importance_for
from .options import QuantizeOptions, Splitting
from .recipes import RECIPES, Choice, ModelFacts, Recipe, layer_of, model_facts, visit_order

QUANTIZATION_VERSION = 2
GUESSED = 1024  # added to a file type that no one stated
PROVENANCE_BYTES = 127  # longest string of provenance that the reference writes


class Planned(NamedTuple):
    """Hold one recipe's output before it is written: its files, and the choice for each tensor."""

    name: str
    files: tuple[FilePlan, ...]
    choices: Mapping[str, Choice] = {}
    without_importance: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(file.layout.total for file in self.files)


class PrunedModel(NamedTuple):
    """Hold a model without some layers: its metadata, and its tensors under their new names."""

    metadata: Metadata
    tensors: dict[str, Tensor]
    old_names: Mapping[str, str] = {}


@dataclass(frozen=True)
class Planner:
    """Choose the format of every tensor of an output, and refuse what cannot be done.

    dry_run: warn of what a permission or a matrix would solve, instead of raising. only_rules: rules change formats, no
    recipe does. restated: formats of forks were replaced. warnings: for the user, added to with every plan.
    """

    source: Metadata
    layers: PrunedModel
    origin: Origin
    matrix: ImportanceMatrix | None = None
    options: QuantizeOptions = field(default_factory=QuantizeOptions)
    reserve: int = 0
    dry_run: bool = False
    warnings: list[str] = field(default_factory=list)
    only_rules: bool = False
    restated: bool = False
    _importances: dict[str, Floats | None] = field(default_factory=dict)

    def plan(self, recipe: Recipe, path: Path) -> Planned:
        """Plan the output of a recipe. Raises OptionError, FormatError, FileError for what cannot be done."""
        tensors = self.layers.tensors
        triples = [(name, tensor.shape, tensor.format) for name, tensor in tensors.items()]
        choices = (
            recipes.choose_by_rules(triples, self.options.formats.rules)
            if self.only_rules
            else recipes.choose(recipe, triples, self.facts, self.matrix is not None, self.options.formats)
        )
        self._warn_of_idle_options(recipe, choices)
        self._warn_of_images(recipe, choices)
        items = [Item(tensors[each.name], each.format, self._importance(each)) for each in choices]
        encoded = [choice for choice in choices if choice.format.name != tensors[choice.name].format.name]
        bare = {item.tensor.name for item in items if item.importance is None}
        bare_and_encoded = [choice for choice in encoded if choice.format.is_quantized and choice.name in bare]
        self._check(recipe, encoded, [choice for choice in bare_and_encoded if choice.needs_importance])
        if self.matrix is not None and not any(i.importance is not None and i.format.uses_importance for i in items):
            self.warnings.append(f"the importance matrix changes no tensor of {recipe.name}")
        lacking = tuple(choice.name for choice in bare_and_encoded) if self.matrix is not None else ()
        groups = shard(items, self.origin, self.layers, self.options.splitting)
        metadata, count, origin = self.metadata(recipe), len(groups), self.origin
        paths = shard_paths(path, path.name.removesuffix(".gguf"), count) if count > 1 else [path]
        files = tuple(
            FilePlan(
                each,
                shard_metadata(metadata, number, count, len(items)) if count > 1 else metadata,
                tuple(group),
                origin.alignment,
                0 if number else self.reserve,
                origin.magic,
            )
            for number, (each, group) in enumerate(zip(paths, groups, strict=True))
        )
        return Planned(recipe.name, files, {choice.name: choice for choice in choices}, lacking)

    @cached_property
    def facts(self) -> ModelFacts:
        """Return the facts of the whole model, pruned layers included, as the reference counts."""
        shapes = {name: published_shape(self.source, name, each.shape) for name, each in self.layers.tensors.items()}
        return model_facts(_overridden(self.source, self.options.overrides), shapes)

    def check_overrides(self) -> None:
        """Raise OptionError for unknown keys (unless new ones are allowed) and for values that they cannot have."""
        before = self.source
        after = _overridden(before, self.options.overrides)
        architecture = architecture_of(after)
        check_new_keys(self.options.overrides, before, architecture, self.options.new)
        for key in self.options.overrides:
            old = before.value(key) if key in before else None
            for fault, hint in faults(key, old, after, self.layers.tensors):
                raise OptionError(fault, hint or "`gguftools set-metadata --force` stores it in a file")

    def _importance(self, choice: Choice) -> Floats | None:
        tensor = self.layers.tensors[choice.name]
        if self.matrix is None or not choice.format.is_quantized or choice.format.name == tensor.format.name:
            return None
        if tensor.name not in self._importances:
            original = tensor.renamed(self.layers.old_names.get(tensor.name, tensor.name))
            self._importances[tensor.name] = importance_for(self.matrix, original, self.options.allow_missing_experts)
            entry = entry_for(self.matrix, original.name)
            if entry is not None and entry.unseen:
                unseen = f"{len(entry.unseen)} of {len(entry.counts)} experts saw no input"
                self.warnings.append(f"{tensor.name}: {unseen}; their columns weigh alike")
        return self._importances[tensor.name]

    def _warn_of_idle_options(self, recipe: Recipe, choices: Sequence[Choice]) -> None:
        options, used, names = self.options.formats, {choice.rule for choice in choices}, self.layers.tensors
        for pattern, name in options.rules:
            if pattern not in used:
                self.warnings.append(f"the rule {pattern}={name} decides nothing in {recipe.name}")
        if "output.weight" not in names:
            is_image_model = self.facts.image_family is not None
            if options.leave_output:
                head = "" if is_image_model else ": the token embedding is the head"
                self.warnings.append(f"there is no output.weight to leave as it is{head}")
            if options.output_type and (options.token_embedding_type or is_image_model):
                self.warnings.append("there is no output.weight: its format is not used")
        if options.token_embedding_type and "token_embd.weight" not in names:
            self.warnings.append("there is no token_embd.weight: its format is not used")

    def _warn_of_images(self, recipe: Recipe, choices: Sequence[Choice]) -> None:
        """Warn of an image model whose names no family has, and of a recipe that has nothing to do in it."""
        family = self.facts.image_family
        if family is None or self.only_rules or recipe.default is None:
            return
        if not family.name:
            known = f"no known model with the tag {family.tag!r} has tensors of these names"
            self._warn_once(f"{known}; its matrices are quantized but for those that such models keep")
        elif family.tag != self.facts.architecture:
            mismatch = f"the tensors are those of {family.title}, whose tag is {family.tag!r}"
            self._warn_once(f"{mismatch}; the file says {self.facts.architecture!r}")
        if recipe.name == "MXFP4_MOE" and not any(choice.format.name == "MXFP4" for choice in choices):
            self._warn_once("MXFP4_MOE has no experts here to store in MXFP4: its weights are Q8_0")

    def _warn_once(self, warning: str) -> None:
        if warning not in self.warnings:
            self.warnings.append(warning)

    def _check(self, recipe: Recipe, encoded: Sequence[Choice], needing: Sequence[Choice]) -> None:
        """Refuse to encode again, to fall back, and to go without required importance, unless allowed."""
        again = [choice for choice in encoded if self.layers.tensors[choice.name].format.is_quantized]
        if again and not self.options.allow_requantize:
            first, stored = again[0], self.layers.tensors[again[0].name].format.name
            where = f"{first.name!r} is {stored} in {self.origin.path.name}"
            self._refuse(
                f"{where}; encoding it again as {first.format.name} loses quality",
                "start from a float file, or pass `allow_requantize`",
            )
        fallen = [choice for choice in encoded if choice.fallback]
        if self.options.no_fallback and fallen:
            some = f"{len(fallen)} tensors cannot take the format that {recipe.name} wants"
            hint = "without `no_fallback` they are stored in another, as `dry_run` shows"
            raise FormatError(f"{some}, {fallen[0].name!r} first: {fallen[0].fallback}", hint)
        if not needing:
            return
        form, some = needing[0].format.name, repr(needing[0].name)
        some += f" and {len(needing) - 1} more" if len(needing) > 1 else ""
        if self.matrix is None:
            source = shlex.quote(str(self.origin.path))
            made = f"`gguftools imatrix {source} --file TEXT --output imatrix.gguf` measures one"
            if self.facts.image_family is not None:
                made = "IQ3_S and Q2_K need none; stable-diffusion.cpp measures one while it makes images"
            problem = f"{recipe.name} needs an importance matrix: {some} would be {form}"
            self._refuse(problem, f"{made}; then pass it as `imatrix`")
        else:
            problem = f"{self.matrix.path} has no entry for {some}, which {form} needs"
            self._refuse(problem, "name another format for them by `rules`")

    def _refuse(self, problem: str, hint: str) -> None:
        if not self.dry_run:
            raise OptionError(problem, hint)
        self.warnings.append(f"{problem} ({hint})")

    def metadata(self, recipe: Recipe) -> Metadata:
        """Return the source's pairs, followed by those about the quantization, in llama.cpp's order."""
        new = without_split_keys(self.layers.metadata)
        _append(new, "general.quantization_version", QUANTIZATION_VERSION)
        stated = Metadata() if self.restated else self.source
        number = recipe.file_type if recipe.file_type is not None else _own_file_type(stated, self.layers.tensors)
        _append(new, "general.file_type", number)
        new = _overridden(new, self.options.overrides)
        if self.matrix is not None:
            path = self.matrix.path  # as llama.cpp names it, but without local folders
            _append(new, "quantize.imatrix.file", _cut(path.name if path.is_absolute() else str(path)))
            if self.matrix.datasets:
                _append(new, "quantize.imatrix.dataset", _cut(self.matrix.datasets[0]))
            _append(new, "quantize.imatrix.entries_count", len(self.matrix.entries))
            if self.matrix.chunks > 0:
                _append(new, "quantize.imatrix.chunks_count", self.matrix.chunks)
        if self.layers.old_names:
            key = f"{new.get('general.architecture', '')}.block_count"
            _append(new, key, new.value(key))
        return new


def _append(metadata: Metadata, key: str, value: Any) -> None:
    """Set a key as llama.cpp does: at the end, even if it was there before."""
    metadata.pop(key, None)
    metadata[key] = value


def _overridden(metadata: Metadata, overrides: Mapping[str, Any]) -> Metadata:
    """Return metadata with other values: integers keep their type, plain data gets the type of its key."""
    new = metadata.copy()
    for key, data in overrides.items():
        value = data if isinstance(data, Value) else value_of(key, data, metadata.type_for(key, data))
        both = value.type in INTEGERS and key in new and new.value(key).type in INTEGERS
        _append(new, key, Value(value.data, new.value(key).type) if both else value)
    return new


def _cut(text: str) -> str:
    return text.encode()[:PROVENANCE_BYTES].decode(errors="ignore")


def _own_file_type(metadata: Metadata, tensors: Mapping[str, Tensor]) -> int:
    """Return the source's file type; without one, that of its most frequent format, marked as guessed."""
    if "general.file_type" in metadata:
        return int(metadata["general.file_type"])
    counts = Counter(tensors[name].format.name for name in visit_order(tensors))
    main_format = counts.most_common(1)[0][0] if counts else "F32"
    usual = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}
    name = usual.get(main_format, main_format)
    number = RECIPES[name].file_type if name in RECIPES else 0
    return (number or 0) + GUESSED


def without_layers(metadata: Metadata, tensors: Mapping[str, Tensor], dropped: Sequence[int]) -> PrunedModel:
    """Return the model without some layers, the others renumbered.

    Raises OptionError for a layer that does not exist.
    """
    keeps_ones = is_tag(metadata.get("general.architecture"))  # readers of image models expect published shapes
    tensors = {name: tensor if keeps_ones else _without_outer_ones(tensor) for name, tensor in tensors.items()}
    if not dropped:
        return PrunedModel(metadata, tensors)
    present = sorted({layer_of(name) for name in tensors} - {-1})
    if unknown := [layer for layer in dropped if layer not in present]:
        known = f"{present[0]} … {present[-1]}" if present else "none"
        raise OptionError(f"there is no layer {unknown[0]} to prune; the model's layers are {known}")
    kept = [layer for layer in present if layer not in dropped]
    if not kept:
        raise OptionError("no layer would be left")
    old_names, new_number = {}, {old: new for new, old in enumerate(kept)}
    for name in tensors:
        layer = layer_of(name)
        if layer not in dropped:
            old_names[name if layer < 0 else f"blk.{new_number[layer]}{name[len(f'blk.{layer}') :]}"] = name
    renamed = {new: tensors[old] if new == old else tensors[old].renamed(new) for new, old in old_names.items()}
    return PrunedModel(_fewer_layers(metadata, len(present), kept), renamed, old_names)


def _without_outer_ones(tensor: Tensor) -> Tensor:
    """Drop outer dimensions of 1: llama.cpp's quantizer stores (1, 128) as (128,)."""
    if tensor.shape[:1] != (1,):
        return tensor
    outer = next((i for i, size in enumerate(tensor.shape[:-1]) if size != 1), len(tensor.shape) - 1)
    return replace(tensor, shape=tensor.shape[outer:]) if outer > 0 else tensor


def _fewer_layers(metadata: Metadata, layers: int, kept: Sequence[int]) -> Metadata:
    """Return metadata of the pruned model: its layer counts, and lists with an item for each layer."""
    new = metadata.copy()
    prefix = f"{metadata.get('general.architecture', '')}."
    mtp_count = metadata.get(f"{prefix}nextn_predict_layers", 0)  # the last ones, which lists may leave out
    trunk = layers - mtp_count if isinstance(mtp_count, int) else layers
    for key in metadata:
        if not key.startswith(prefix):
            continue
        value = metadata.value(key)
        known = find(key, prefix[:-1])
        listed = value.type is ValueType.ARRAY and (known is None or known.per_layer)
        longer = known is not None and known.counts(len(value.data) if listed else 0, layers)
        if listed and (longer or len(value.data) in (layers, trunk)):
            left = [value.data[i] for i in kept if i < len(value.data)]
            new[key] = Value([*left, *value.data[layers:]], value.type, value.element)
        elif key == f"{prefix}nextn_predict_layers":
            new[key] = Value(sum(layer >= trunk for layer in kept), value.type)
        elif key == f"{prefix}block_count":
            new[key] = Value(value.data - (layers - len(kept)), value.type)
        elif key in (f"{prefix}leading_dense_block_count", f"{prefix}hash_layer_count"):
            new[key] = Value(sum(layer < value.data for layer in kept), value.type)
    return new


def shard(items: Sequence[Item], origin: Origin, layers: PrunedModel, splitting: Splitting) -> list[list[Item]]:
    """Distribute items over files; with `keep`, as in the source. Raises OptionError for contradicting options."""
    if not splitting.keep:
        return distribute(items, lambda item: item.nbytes, splitting.max_bytes, splitting.max_tensors)
    if splitting.max_bytes or splitting.max_tensors:
        raise OptionError("`keep_split` leaves the shards as they are; `max_size` or `max_tensors` would change them")
    if not origin.shards:
        raise OptionError(f"{origin.path} has no GGUF shards to keep", "`max_size` splits the output")
    shard_of = {name: number for number, names in enumerate(origin.shards) for name in names}
    place = {name: i for i, name in enumerate(layers.tensors)}
    groups: dict[int, list[Item]] = {}
    for item in sorted(items, key=lambda item: place[item.tensor.name]):
        old_name = layers.old_names.get(item.tensor.name, item.tensor.name)
        groups.setdefault(shard_of.get(old_name, 0), []).append(item)
    return [group for _, group in sorted(groups.items())]
