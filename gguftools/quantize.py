"""Quantize a model: several recipes from one pass over a GGUF file, a split set or a Hugging Face folder."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from archs.metadata import Metadata, Value, ValueType
from quants import Tensor, format_named
from quants.errors import FileError, FormatError, OptionError
from quants.recipes import (
    RECIPES,
    Choice,
    ModelFacts,
    Options,
    Recipe,
    choose,
    layer_of,
    model_facts,
    recipe_named,
    visit_order,
)

from .files.gguf_reader import DEFAULT_ALIGNMENT, INTEGERS, SHARD_NAME, open_gguf
from .imatrix import ImportanceMatrix, check, importance_for, only, read_imatrix
from .pipeline import (
    DEFAULT_MEMORY,
    FilePlan,
    Floats,
    Item,
    Outcome,
    Progress,
    Resumable,
    default_threads,
    page_releaser,
    scan,
    write_files,
)
from .report import OutputReport, QuantizeReport, tensor_report
from .resume import partial_path

if TYPE_CHECKING:
    from .conversion import Converted

QUANTIZATION_VERSION = 2
GUESSED = 1024  # added to a file type that no one stated
PROVENANCE_BYTES = 127  # longest string of provenance that the reference writes
MODEL_SUFFIX = re.compile(r"[-._]?(f32|f16|bf16|{})$".format("|".join(RECIPES)), re.IGNORECASE)
SIZE = re.compile(r"(\d+)\s*([KMGT]?)i?B?", re.IGNORECASE)
OVERRIDE = re.compile(r"([^=]+)=(int|float|bool|str):(.*)", re.DOTALL)

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Input:
    """What is quantized. files: all that its tensors' values come from. shards: tensor names of each.

    mapped: the tensors that views of the files can be had from, where `tensors` are made from others.
    """

    path: Path
    metadata: Metadata
    tensors: Mapping[str, Tensor]
    files: Sequence[Path]
    shards: Sequence[Sequence[str]] = ()
    magic: bytes = b"GGUF"
    alignment: int = DEFAULT_ALIGNMENT
    mapped: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class Planned:
    """One recipe's output before it is written: its files, and what was chosen for each tensor."""

    recipe: Recipe
    files: tuple[FilePlan, ...]
    choices: Mapping[str, Choice]
    without_importance: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(file.layout.total for file in self.files)


@dataclass(frozen=True)
class Layers:
    """A model some of whose layers are left out: its metadata, and its tensors under their new names."""

    metadata: Metadata
    tensors: dict[str, Tensor]
    old_names: dict[str, str] = field(default_factory=dict)


def quantize(
    source: PathLike | Input,
    recipes: str | Sequence[str],
    output: PathLike | None = None,
    *,
    imatrix: PathLike | ImportanceMatrix | None = None,
    include_weights: Sequence[str] = (),
    exclude_weights: Sequence[str] = (),
    allow_missing_experts: bool = False,
    options: Options | None = None,
    prune_layers: Sequence[int] = (),
    override_kv: Mapping[str, Value] | None = None,
    keep_split: bool = False,
    split_max_size: int | None = None,
    split_max_tensors: int | None = None,
    reserve: int = 0,
    allow_requantize: bool = False,
    no_fallback: bool = False,
    check_tensors: bool = False,
    dry_run: bool = False,
    resume: bool = False,
    statistics: bool = False,
    threads: int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> QuantizeReport:
    """Write `source` once for each recipe, reading it once.

    source: a GGUF file, a shard of a split set, or a Hugging Face folder. output: a file (for one recipe) or a folder;
    default MODEL-RECIPE.gguf beside the source. imatrix: an importance matrix or its file.
    include_weights, exclude_weights: parts of names, whose entries of the matrix alone, or not, are used.
    prune_layers: layers to leave out; the rest is renumbered. override_kv: metadata to set.
    keep_split: a shard for each of the source's. split_max_size: bytes of tensor data of a shard.
    reserve: bytes of slack in the header. check_tensors: look for NaN everywhere before anything is written.
    resume: go on from what an interrupted run left. statistics: measure errors. memory: bytes tasks may hold.
    progress(bytes read, of how many, tensor): called now and then.
    Raises OptionError, FormatError, FileError, before any work where they can be known then.
    """
    names = [recipes] if isinstance(recipes, str) else list(recipes)
    chosen = list(dict.fromkeys(recipe_named(name) for name in names))
    if not chosen:
        raise OptionError("no recipe is named", "`gguftools quantize --list-recipes` shows them")
    opened = source if isinstance(source, Input) else open_input(Path(source))
    paths = output_paths(opened.path, chosen, None if output is None else Path(output))
    warnings: list[str] = []
    matrix = None
    if imatrix is not None:
        read = imatrix if isinstance(imatrix, ImportanceMatrix) else read_imatrix(Path(imatrix))
        matrix = only(read, include_weights, exclude_weights) if include_weights or exclude_weights else read
        warnings += check(matrix)
    elif include_weights or exclude_weights:
        raise OptionError("weights are included or excluded, but there is no importance matrix")
    layers = without_layers(opened.metadata, opened.tensors, prune_layers)
    facts = model_facts(_overridden(opened.metadata, override_kv or {}))
    planner = _Planner(opened, layers, facts, matrix, options or Options(), override_kv or {}, allow_missing_experts,
                       allow_requantize, no_fallback)  # fmt: skip
    planned = []
    for recipe, path in zip(chosen, paths, strict=True):
        items, choices, missing = planner.items(recipe, warnings)
        metadata = planner.metadata(recipe)
        groups = shard(items, opened, layers, keep_split, split_max_size, split_max_tensors)
        files = _files(path, metadata, groups, opened, reserve)
        planned.append(Planned(recipe, files, choices, missing))
    free = check_outputs(planned, opened, resume)
    source_bytes = sum(tensor.nbytes for tensor in layers.tensors.values())
    if dry_run:
        return _report(planned, None, source_bytes, free, warnings)
    if sum(p.nbytes for p in planned) > free + _begun(planned, resume):
        raise FileError(
            f"{planned[0].files[0].path.parent} has {free:,} bytes free; {sum(p.nbytes for p in planned):,} are needed",
            hint="free some space, or write elsewhere",
        )
    release = page_releaser((opened.mapped or opened.tensors).values())
    if check_tensors:
        scan(layers.tensors.values(), threads=threads, progress=progress, release=release)
    outcome = write_files(
        [file for p in planned for file in p.files],
        threads=threads or default_threads(), memory=memory, statistics=statistics, progress=progress,
        executor=executor, release=release, resumable=Resumable(opened.files, resume),
    )  # fmt: skip
    return _report(planned, outcome, source_bytes, free, warnings)


def open_input(path: Path) -> Input:
    """A GGUF file, a split set or a Hugging Face folder, ready to be quantized. Raises FileError, ModelError."""
    if path.is_dir():
        from .conversion import open_converted

        return converted_input(open_converted(path))
    file = open_gguf(path)
    shards = [list(part.tensors) for part in file.parts]
    return Input(file.path, file.metadata, file.tensors, file.shards, shards, file.magic, file.alignment)


def converted_input(converted: Converted) -> Input:
    """A checkpoint that is being converted, ready to be quantized without a file between."""
    from .conversion import with_file_type

    metadata = with_file_type(converted.metadata, "F16")  # the keys' places; their values are set later
    return Input(
        converted.checkpoint.folder, metadata, converted.tensors, converted.files, mapped=converted.checkpoint.tensors
    )


def output_paths(source: Path, recipes: Sequence[Recipe], output: Path | None) -> list[Path]:
    """A file for each recipe. Raises OptionError for one file and several recipes, FileError for a missing folder."""
    if output is not None and not output.is_dir():
        if len(recipes) > 1:
            raise OptionError(
                f"{len(recipes)} recipes need a folder to be written to; {output} is none", hint=f"mkdir {output}"
            )
        if not output.parent.is_dir():
            raise FileError(f"there is no folder {output.parent} to write {output.name} to", hint="create it first")
        return [output]
    resolved = source.resolve()
    shard_name = SHARD_NAME.fullmatch(source.name)
    stem = shard_name["prefix"] if shard_name else resolved.name if source.is_dir() else source.stem
    model = MODEL_SUFFIX.sub("", stem) or stem
    folder = output if output is not None else resolved.parent
    return [folder / f"{model}-{recipe.name}.gguf" for recipe in recipes]


@dataclass(frozen=True)
class _Planner:
    """Decides what every tensor of an output becomes, and refuses what cannot be, before any work."""

    input: Input
    layers: Layers
    facts: ModelFacts
    matrix: ImportanceMatrix | None
    options: Options
    overrides: Mapping[str, Value]
    allow_missing_experts: bool
    allow_requantize: bool
    no_fallback: bool
    importances: dict[str, Floats | None] = field(default_factory=dict)

    def items(self, recipe: Recipe, warnings: list[str]) -> tuple[list[Item], dict[str, Choice], tuple[str, ...]]:
        """Items in output order, the choices behind them, and encoded tensors that the matrix lacks."""
        tensors = self.layers.tensors
        triples = [(name, tensor.shape, tensor.format) for name, tensor in tensors.items()]
        choices = choose(recipe, triples, self.facts, self.matrix is not None, self.options)
        encoded = [choice for choice in choices if choice.format != tensors[choice.name].format]
        self._check_sources(encoded)
        self._check_fallbacks(recipe, encoded)
        found = [Item(tensors[c.name], c.format) for c in choices]
        if self.matrix is None:
            self._check_importance(recipe, [c for c in encoded if c.needs_importance])
            return found, {c.name: c for c in choices}, ()
        weighted, lacking = [], []
        for item, choice in zip(found, choices, strict=True):
            weights = None if item.is_copy or not choice.format.is_quantized else self._importance(item.tensor)
            weighted.append(replace(item, importance=weights))
            if weights is None and not item.is_copy and choice.format.is_quantized:
                lacking.append(choice)
        self._check_importance(recipe, [choice for choice in lacking if choice.needs_importance])
        self._warn_of_unseen(weighted, warnings)
        return weighted, {c.name: c for c in choices}, tuple(choice.name for choice in lacking)

    def _importance(self, tensor: Tensor) -> Floats | None:
        assert self.matrix is not None
        if tensor.name not in self.importances:
            original = tensor.renamed(self._old_name(tensor))
            self.importances[tensor.name] = importance_for(self.matrix, original, self.allow_missing_experts)
        return self.importances[tensor.name]

    def _old_name(self, tensor: Tensor) -> str:
        return self.layers.old_names.get(tensor.name, tensor.name)

    def _check_sources(self, encoded: Sequence[Choice]) -> None:
        for choice in encoded:
            tensor = self.layers.tensors[choice.name]
            if tensor.format.is_quantized and not self.allow_requantize:
                raise OptionError(
                    f"{choice.name!r} is {tensor.format.name} in {self.input.path.name}; encoding it again as "
                    f"{choice.format.name} loses quality",
                    hint="start from a float file, or pass --allow-requantize",
                )

    def _check_fallbacks(self, recipe: Recipe, encoded: Sequence[Choice]) -> None:
        fallen = [choice for choice in encoded if choice.fallback]
        if self.no_fallback and fallen:
            first = fallen[0]
            raise FormatError(
                f"{len(fallen)} tensors cannot take the format that {recipe.name} wants, {first.name!r} first: "
                f"{first.fallback}",
                hint="without --no-fallback they are stored in another, as --dry-run shows",
            )

    def _check_importance(self, recipe: Recipe, needing: Sequence[Choice]) -> None:
        if not needing:
            return
        first = needing[0]
        more = f" and {len(needing) - 1} more" if len(needing) > 1 else ""
        if self.matrix is None:
            raise OptionError(
                f"{recipe.name} needs an importance matrix: {first.name!r}{more} would be {first.format.name}",
                hint="pass --imatrix FILE",
            )
        raise OptionError(
            f"{self.matrix.path} has no entry for {first.name!r}{more}, and {first.format.name} cannot do without",
            hint="name another format for them: --tensor-type REGEX=TYPE",
        )

    def _warn_of_unseen(self, items: Sequence[Item], warnings: list[str]) -> None:
        assert self.matrix is not None
        for item in items:
            entry = self.matrix.entries.get(self._old_name(item.tensor))
            if item.importance is not None and entry is not None and entry.unseen:
                unseen = f"{len(entry.unseen)} of {len(entry.counts)} experts saw no input"
                line = f"{item.tensor.name}: {unseen}; their columns weigh alike"
                if line not in warnings:
                    warnings.append(line)

    def metadata(self, recipe: Recipe) -> Metadata:
        """The source's pairs, and those that say what was done."""
        new = self.layers.metadata.copy()
        for key in [key for key in new if key.startswith("split.")]:
            del new[key]
        new.set("general.quantization_version", QUANTIZATION_VERSION, ValueType.UINT32)
        number = recipe.file_type if recipe.file_type is not None else _own_file_type(self.input)
        new.set("general.file_type", number, ValueType.UINT32)
        new = _overridden(new, self.overrides)
        if self.matrix is not None:
            new.set("quantize.imatrix.file", _cut(self.matrix.path.name), ValueType.STRING)
            if self.matrix.datasets:
                new.set("quantize.imatrix.dataset", _cut(self.matrix.datasets[0]), ValueType.STRING)
            new.set("quantize.imatrix.entries_count", len(self.matrix.entries), ValueType.UINT32)
            if self.matrix.chunks > 0:
                new.set("quantize.imatrix.chunks_count", self.matrix.chunks, ValueType.UINT32)
        return new


def _overridden(metadata: Metadata, overrides: Mapping[str, Value]) -> Metadata:
    """Metadata with other values; an integer stays of the type it was."""
    new = metadata.copy()
    for key, value in overrides.items():
        both = value.type in INTEGERS and key in new and new.value(key).type in INTEGERS
        new[key] = Value(value.data, new.value(key).type) if both else value
    return new


def _cut(text: str) -> str:
    return text.encode()[:PROVENANCE_BYTES].decode(errors="ignore")


def _own_file_type(source: Input) -> int:
    """The source's file type; where it has none, that of its most frequent format, marked as guessed."""
    if "general.file_type" in source.metadata:
        return int(source.metadata["general.file_type"])
    counts = Counter(source.tensors[name].format.name for name in visit_order(source.tensors))
    most = counts.most_common(1)[0][0] if counts else "F32"
    medium = f"{most}_M" if most in ("Q3_K", "Q4_K", "Q5_K") else "MXFP4_MOE" if most == "MXFP4" else most
    number = RECIPES[medium].file_type if medium in RECIPES else 0
    return (number or 0) + GUESSED


def without_layers(metadata: Metadata, tensors: Mapping[str, Tensor], dropped: Sequence[int]) -> Layers:
    """The model without some layers, the others renumbered. Raises OptionError for a layer that there is not."""
    if not dropped:
        return Layers(metadata, dict(tensors))
    present = sorted({layer_of(name) for name in tensors} - {-1})
    for layer in dropped:
        if layer not in present:
            known = f"{present[0]} … {present[-1]}" if present else "none"
            raise OptionError(f"there is no layer {layer} to prune; the model's layers are {known}")
    kept = [layer for layer in present if layer not in dropped]
    if not kept:
        raise OptionError("no layer would be left")
    new_number = {old: new for new, old in enumerate(kept)}
    renamed, old_names = {}, {}
    for name, tensor in tensors.items():
        layer = layer_of(name)
        if layer in dropped:
            continue
        new = name if layer < 0 else f"blk.{new_number[layer]}{name[len(f'blk.{layer}'):]}"
        renamed[new] = tensor if new == name else tensor.renamed(new)
        old_names[new] = name
    return Layers(_fewer_layers(metadata, len(present), kept), renamed, old_names)


def _fewer_layers(metadata: Metadata, layers: int, kept: Sequence[int]) -> Metadata:
    """Metadata of the pruned model: the count of layers, and every list that has an item for each."""
    new = metadata.copy()
    prefix = f"{metadata.get('general.architecture', '')}."
    for key in metadata:
        if not key.startswith(prefix):
            continue
        value = metadata.value(key)
        if value.type is ValueType.ARRAY and len(value.data) == layers:
            new[key] = Value([value.data[i] for i in kept], value.type, value.element)
        elif key == f"{prefix}block_count":
            new[key] = Value(value.data - (layers - len(kept)), value.type)
        elif key == f"{prefix}leading_dense_block_count":
            new[key] = Value(sum(layer < value.data for layer in kept), value.type)
    return new


def shard(
    items: Sequence[Item],
    source: Input,
    layers: Layers,
    keep_split: bool = False,
    max_bytes: int | None = None,
    max_tensors: int | None = None,
) -> list[list[Item]]:
    """Items of each file. Raises OptionError where the ways to split contradict each other."""
    if keep_split and (max_bytes or max_tensors):
        raise OptionError("--keep-split leaves the shards as they are; the --split-max options would change them")
    if keep_split:
        place = {name: number for number, names in enumerate(source.shards) for name in names}
        order = {name: i for i, name in enumerate(source.tensors)}
        old = layers.old_names
        groups: dict[int, list[Item]] = {}
        for item in sorted(items, key=lambda item: order[old.get(item.tensor.name, item.tensor.name)]):
            groups.setdefault(place.get(old.get(item.tensor.name, item.tensor.name), 0), []).append(item)
        return list(groups.values())
    found: list[list[Item]] = [[]]
    filled = 0
    for item in items:
        full = bool(max_bytes and filled + item.nbytes > max_bytes) or len(found[-1]) == max_tensors
        if full and found[-1]:
            found.append([])
            filled = 0
        found[-1].append(item)
        filled += item.nbytes
    return found


def _files(
    path: Path, metadata: Metadata, groups: Sequence[Sequence[Item]], source: Input, reserve: int
) -> tuple[FilePlan, ...]:
    if len(groups) == 1:
        return (FilePlan(path, metadata, tuple(groups[0]), source.alignment, reserve, source.magic),)
    found = []
    total = sum(map(len, groups))
    for number, items in enumerate(groups):
        own = metadata.copy() if number == 0 else Metadata()
        own.set("split.no", number, ValueType.UINT16)
        own.set("split.count", len(groups), ValueType.UINT16)
        own.set("split.tensors.count", total, ValueType.INT32)
        name = f"{path.name.removesuffix('.gguf')}-{number + 1:05d}-of-{len(groups):05d}.gguf"
        slack = reserve if number == 0 else 0
        found.append(FilePlan(path.with_name(name), own, tuple(items), source.alignment, slack, source.magic))
    return tuple(found)


def check_outputs(planned: Sequence[Planned], source: Input, resume: bool = False) -> int:
    """Bytes free where the outputs go. Raises FileError where one would replace a source or another output."""
    seen: set[Path] = set()
    for file in (file for p in planned for file in p.files):
        if file.path.is_dir():
            raise FileError(f"{file.path} is a folder; the name of a file to write was expected")
        if file.path.resolve() in seen:
            raise OptionError(f"two recipes would be written to {file.path}")
        seen.add(file.path.resolve())
        if any(file.path.exists() and file.path.samefile(path) for path in source.files):
            raise OptionError(f"{file.path} is the source; the output needs another name")
    info = os.statvfs(planned[0].files[0].path.parent)
    return info.f_bavail * info.f_frsize


def _begun(planned: Sequence[Planned], resume: bool) -> int:
    """Bytes that an earlier run's unfinished files hold already."""
    found = (partial_path(file.path) for p in planned for file in p.files)
    return sum(path.stat().st_blocks * 512 for path in found if path.is_file())


def _report(
    planned: Sequence[Planned], outcome: Outcome | None, source_bytes: int, free: int, warnings: list[str]
) -> QuantizeReport:
    outputs = []
    written = iter(outcome.files) if outcome else None
    for p in planned:
        tensors = []
        for file in p.files:
            figures = next(written) if written else [None] * len(file.items)
            for item, done in zip(file.items, figures, strict=True):
                choice = p.choices[item.tensor.name]
                tensors.append(tensor_report(item, choice.fallback, choice.rule, done))
        paths = tuple(file.path for file in p.files)
        outputs.append(OutputReport(p.recipe.name, paths[0], paths, p.nbytes, tuple(tensors)))
    without = tuple(dict.fromkeys(name for p in planned for name in p.without_importance))
    return QuantizeReport(
        tuple(outputs), outcome is None, source_bytes, free,
        resumed_bytes=outcome.resumed_bytes if outcome else 0,
        seconds=outcome.seconds if outcome else 0.0,
        compile_seconds=outcome.compile_seconds if outcome else 0.0,
        without_importance=without, warnings=warnings,
    )  # fmt: skip


def parse_rule(text: str) -> tuple[str, str]:
    """A rule `REGEX=TYPE`. Raises OptionError, FormatError for an unknown type."""
    pattern, equals, name = text.rpartition("=")
    if not equals or not pattern or not name.strip():
        raise OptionError(f"tensor rule {text!r} is not REGEX=TYPE", hint="for example 'attn_v=Q8_0'")
    return pattern.strip(), format_named(name.strip()).name


def read_rules(path: Path) -> tuple[tuple[str, str], ...]:
    """Rules from a file: one `REGEX=TYPE` a line, `#` begins a comment. Raises FileError, OptionError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    stripped = (line.strip() for line in lines)
    return tuple(parse_rule(line) for line in stripped if line and not line.startswith("#"))


def parse_override(text: str) -> tuple[str, Value]:
    """An override `KEY=TYPE:VALUE` (int, float, bool, str). Raises OptionError."""
    found = OVERRIDE.fullmatch(text)
    if not found:
        raise OptionError(f"override {text!r} is not KEY=TYPE:VALUE", hint="TYPE is int, float, bool or str")
    key, kind, raw = found.groups()
    try:
        if kind == "int":
            return key, Value(int(raw), ValueType.UINT32 if 0 <= int(raw) < 1 << 32 else ValueType.INT64)
        if kind == "float":
            return key, Value(float(raw), ValueType.FLOAT32)
    except ValueError:
        raise OptionError(f"override {text!r}: {raw!r} is not {'an' if kind == 'int' else 'a'} {kind}") from None
    if kind == "bool":
        if raw.lower() not in ("true", "false"):
            raise OptionError(f"override {text!r}: {raw!r} is neither true nor false")
        return key, Value(raw.lower() == "true", ValueType.BOOL)
    return key, Value(raw, ValueType.STRING)


def parse_size(text: str) -> int:
    """A size such as `500M` or `2G`, in bytes: decimal units, as in the names of split sets. Raises OptionError."""
    found = SIZE.fullmatch(text.strip())
    if not found or not int(found[1]):
        raise OptionError(f"{text!r} is not a size", hint="for example 500M or 2G")
    thousands: int = 1000 ** " KMGT".index(found[2].upper() or " ")
    return int(found[1]) * thousands
