"""Quantize a model: several recipes from one pass over a GGUF file, a split set or a Hugging Face folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from archs.metadata import Value
from gguftools.quantization.recipes import RECIPES, Options, Recipe, recipe_named
from quants.errors import FileError, OptionError

from ..files.atomic import Reads, check_target, output_path
from ..files.gguf.shards import SHARD_NAME
from ..inputs import Input, open_input
from ..inputs import PathLike as PathLike
from ..inputs import converted_input as converted_input
from ..quantization.imatrix import ImportanceMatrix, check, only, read_imatrix
from ..quantization.planning import Planned, Planner, Splitting, without_layers
from ..writing.pipeline import DEFAULT_MEMORY, Outcome, Resumable, scan, write_files
from ..writing.report import OutputReport, QuantizeReport, tensor_report
from ..writing.resume import identity, left_behind, partial_path, stored_bytes
from ..writing.row_blocks import Progress

MODEL_SUFFIX = re.compile(r"[-._]?(f32|f16|bf16|{})$".format("|".join(RECIPES)), re.IGNORECASE)
NO_MODELS = {  # by general.type: what such a file is, and what to do with it
    "imatrix": ("an importance matrix", "it is used by `gguftools quantize MODEL RECIPE --imatrix MATRIX`"),
    "mmproj": ("a tower for pictures or sounds", "such files are used in F16 or BF16, beside a quantized model"),
    "adapter": ("an adapter", "`gguftools convert BASE --lora ADAPTER --outtype q8_0` writes a smaller one"),
}


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
    new: bool = False,
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
    overwrite: bool = False,
    reads: Iterable[PathLike] = (),
) -> QuantizeReport:
    """Write `source` once for each recipe, reading it once.

    source: a GGUF file, a shard of a split set, or a Hugging Face folder. output: a file (for one recipe) or a folder;
    default MODEL-RECIPE.gguf beside the source. imatrix: an importance matrix or its file.
    include_weights, exclude_weights: parts of names, whose entries of the matrix alone, or not, are used.
    prune_layers: layers to leave out; the rest is renumbered. override_kv: metadata to set; new: also keys that no
    program is known to read.
    keep_split: a shard for each of the source's. split_max_size: bytes of tensor data of a shard.
    reserve: bytes of slack in the header. check_tensors: look for NaN everywhere before anything is written.
    resume: go on from what an interrupted run left. statistics: measure errors. memory: bytes tasks may hold.
    progress(bytes read, of how many, tensor): called now and then. overwrite: replace outputs that exist. reads: files
    that options come from, which must not be an output.
    Raises OptionError, FormatError, FileError, before any work where they can be known then.
    """
    names = [recipes] if isinstance(recipes, str) else list(recipes)
    chosen = [recipe_named(name) for name in names]
    if len(set(chosen)) < len(chosen):
        raise OptionError(f"{' '.join(names)} is one recipe twice", f"they are {', '.join(r.name for r in chosen)}")
    if not chosen:
        raise OptionError("no recipe is named", "`gguftools quantize --list-recipes` shows them")
    opened = source if isinstance(source, Input) else open_input(Path(source))
    options = options or Options()
    _refuse_other_files(opened)
    if options != Options() and all(recipe.default is None for recipe in chosen):
        raise OptionError("COPY keeps every tensor as it is; options that choose formats have nothing to do")
    read = opened.reads.also([None if isinstance(imatrix, ImportanceMatrix) else imatrix, *reads])
    resumable = Resumable(identity(opened.files, opened.origin), resume)
    paths = output_paths(opened.path, chosen, output)
    matrix, warnings = _matrix(imatrix, include_weights, exclude_weights)
    planner = Planner(
        opened, without_layers(opened.metadata, opened.tensors, prune_layers), matrix, options,
        override_kv or {}, Splitting(keep_split, split_max_size, split_max_tensors), reserve, allow_missing_experts,
        allow_requantize, no_fallback, dry_run, warnings,
    )  # fmt: skip
    planner.check_overrides(new)
    planned = [planner.plan(recipe, path) for recipe, path in zip(chosen, paths, strict=True)]
    warnings += left_behind([file.path for p in planned for file in p.files], resume)
    free = check_outputs(planned, read, overwrite or dry_run)
    tensors = planner.layers.tensors
    source_bytes = sum(tensor.nbytes for tensor in tensors.values())
    if dry_run:
        return _report(planned, None, source_bytes, free, warnings)
    _check_room(planned, free)
    if check_tensors:
        scan(tensors.values(), threads=threads, progress=progress)
    outcome = write_files(
        [file for p in planned for file in p.files], threads=threads, memory=memory, statistics=statistics,
        progress=progress, executor=executor, resumable=resumable, overwrite=overwrite, reads=read,
    )  # fmt: skip
    return _report(planned, outcome, source_bytes, free, warnings)


def _refuse_other_files(source: Input) -> None:
    """Raise FileError for GGUF files that hold no model."""
    kind = source.metadata.get("general.type")
    if isinstance(kind, str) and kind in NO_MODELS:
        what, hint = NO_MODELS[kind]
        raise FileError(f"{source.path} is {what}, not a model", hint)


def _matrix(
    given: PathLike | ImportanceMatrix | None, include: Sequence[str], exclude: Sequence[str]
) -> tuple[ImportanceMatrix | None, list[str]]:
    """The entries to use, and what in them is worth a warning."""
    if given is None:
        if include or exclude:
            raise OptionError("weights are included or excluded, but there is no importance matrix")
        return None, []
    read = given if isinstance(given, ImportanceMatrix) else read_imatrix(Path(given))
    matrix = only(read, include, exclude) if include or exclude else read
    return matrix, check(matrix)


def output_paths(source: Path, recipes: Sequence[Recipe], output: PathLike | None) -> list[Path]:
    """A file for each recipe. Raises OptionError for one file and several recipes, FileError for a missing folder."""
    resolved = source.resolve()
    shard_name = SHARD_NAME.fullmatch(source.name)
    stem = shard_name["prefix"] if shard_name else resolved.name if source.is_dir() else source.stem
    model = MODEL_SUFFIX.sub("", stem) or stem
    folder = output if output is not None else resolved.parent
    paths = list(dict.fromkeys(output_path(folder, f"{model}-{recipe.name}.gguf") for recipe in recipes))
    if len(paths) < len(recipes):
        raise OptionError(
            f"{len(recipes)} recipes need a folder to be written to; {output} is none", hint=f"mkdir {output}"
        )
    return paths


def check_outputs(planned: Sequence[Planned], reads: Reads, overwrite: bool) -> int:
    """Bytes free where the outputs go. Raises an error where one would replace a source or another output."""
    seen: set[Path] = set()
    for file in (file for p in planned for file in p.files):
        if file.path.resolve() in seen:
            raise OptionError(f"two recipes would be written to {file.path}")
        seen.add(file.path.resolve())
        check_target(file.path, reads, overwrite)
    info = os.statvfs(planned[0].files[0].path.parent)
    return info.f_bavail * info.f_frsize


def _check_room(planned: Sequence[Planned], free: int) -> None:
    """Raise FileError where the disk hasn't the room; what an earlier run began is written over."""
    partial = [partial_path(file.path) for p in planned for file in p.files]
    begun = sum(map(stored_bytes, partial))
    needed = sum(p.nbytes for p in planned)
    if needed > free + begun:
        folder = planned[0].files[0].path.parent
        raise FileError(f"{folder} has {free:,} bytes free; {needed:,} are needed", "free some, or write elsewhere")


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
