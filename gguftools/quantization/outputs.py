"""Outputs of a run: where they go, whether there is room, and their writing and report."""

import os
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from quants.arguments import PathLike
from quants.errors import FileError, OptionError

from ..files.atomic import NOTHING, Reads, check_space, check_target, output_path
from ..files.gguf.shards import SHARD_NAME
from ..writing.pipeline import DEFAULT_MEMORY, FilePlan, Resumable, WriteResult, scan, write_files
from ..writing.report import OutputReport, QuantizeReport, tensor_report
from ..writing.resume import fingerprint, left_behind, partial_path, stored_bytes
from ..writing.row_blocks import Progress
from .planning import Planned, Planner
from .recipes import RECIPES, Recipe

MODEL_SUFFIX = re.compile(r"[-._]?(f32|f16|bf16|{})$".format("|".join(RECIPES)), re.IGNORECASE)


@dataclass(frozen=True)
class Run:
    """How outputs are written, whatever they are.

    threads: default all processors. memory: bytes that running tasks may hold. progress(bytes read, of how many,
    tensor): called now and then. executor: what runs tasks instead of own threads. statistics: measure errors.
    resume: go on from what an interrupted run left. overwrite: replace outputs that exist. reads: what must not be
    written.
    """

    threads: int | None = None
    memory: int = DEFAULT_MEMORY
    progress: Progress | None = None
    executor: Executor | None = None
    statistics: bool = False
    resume: bool = False
    overwrite: bool = False
    reads: Reads = NOTHING


def write_recipes(
    planner: Planner, recipes: Sequence[Recipe], paths: Sequence[Path], run: Run, check_tensors: bool = False
) -> QuantizeReport:
    """Write a file for each recipe in one pass; with `planner.dry_run` say only what would be written.

    check_tensors: look for NaN everywhere before anything is written.
    Raises OptionError, FormatError, FileError, before any work where they can be known then.
    """
    planned = [planner.plan(recipe, path) for recipe, path in zip(recipes, paths, strict=True)]
    warnings = planner.warnings
    warnings += left_behind([file.path for p in planned for file in p.files], run.resume)
    free = check_outputs(planned, run.reads, run.overwrite or planner.dry_run)
    tensors = planner.layers.tensors
    source_bytes = sum(tensor.nbytes for tensor in tensors.values())
    if planner.dry_run:
        return _report(planned, None, source_bytes, free, warnings)
    _check_room(planned, free)
    if check_tensors:
        scan(tensors.values(), threads=run.threads, progress=run.progress)
    outcome = write_files(
        [file for p in planned for file in p.files], threads=run.threads, memory=run.memory,
        statistics=run.statistics, progress=run.progress, executor=run.executor,
        resumable=Resumable(fingerprint(planner.origin.files, planner.origin.recorded), run.resume),
        overwrite=run.overwrite, reads=run.reads,
    )  # fmt: skip
    return _report(planned, outcome, source_bytes, free, warnings)


def write_file(
    file: FilePlan, name: str, run: Run, resumable: Resumable | None = None, warnings: Sequence[str] = ()
) -> QuantizeReport:
    """Write one planned file; `name`, such as "BF16", is what its report calls it. Raises FileError, FormatError."""
    if resumable is None:
        check_space(file.path, file.layout.total)
    free = shutil.disk_usage(file.path.resolve().parent).free
    outcome = write_files(
        [file], threads=run.threads, memory=run.memory, progress=run.progress, resumable=resumable,
        overwrite=run.overwrite, reads=run.reads,
    )  # fmt: skip
    tensors = tuple(tensor_report(item, written=w) for item, w in zip(file.items, outcome.files[0], strict=True))
    output = OutputReport(name, file.path, (file.path,), file.layout.total, tensors)
    return QuantizeReport(
        (output,), False, outcome.source_bytes, free, outcome.resumed_bytes, outcome.seconds, outcome.compile_seconds,
        warnings=list(warnings),
    )  # fmt: skip


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
    planned: Sequence[Planned], outcome: WriteResult | None, source_bytes: int, free: int, warnings: list[str]
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
