"""Write the outputs of a run: choose paths, check space, write and report."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

from quants.arguments import PathLike
from quants.errors import FileError, OptionError

from ..io.atomic import InputFiles, check_space, check_target, free_bytes, output_path
from ..io.gguf.shards import SHARD_NAME
from ..io.stores.path import StorePath
from ..writing.options import WriteOptions
from ..writing.pipeline import FilePlan, Resumable, WriteResult, scan, write_files
from ..writing.report import OutputReport, QuantizeReport, TensorReport
from ..writing.resume import ENCODED, PARTIAL, fingerprint, resume_warnings, stored_bytes, unfinished_warnings
from ..writing.whole_files import are_written_elsewhere, write_files_elsewhere
from ..writing.work_plan import plan_work
from .planning import Planned, Planner
from .recipes import RECIPES, Choice, Recipe

MODEL_SUFFIX = re.compile(r"[-._]?(f32|f16|bf16|{})$".format("|".join(RECIPES)), re.IGNORECASE)


EncodeAhead = Callable[[Planner, Planned, WriteOptions], AbstractContextManager[Planned]]


def write_recipes(
    planner: Planner,
    recipes: Sequence[Recipe],
    paths: Sequence[Path],
    run: WriteOptions,
    encode: EncodeAhead | None = None,
) -> QuantizeReport:
    """Write a file for each recipe in one pass; with `planner.dry_run` only report what would be written.

    encode: encodes tensors of an output before it is written, and keeps them until then. Raises OptionError,
    FormatError, FileError, before any work if possible.
    """
    planned = [planner.plan(recipe, path) for recipe, path in zip(recipes, paths, strict=True)]
    warnings = planner.warnings
    targets = [file.path for p in planned for file in p.files]
    warnings += resume_warnings(targets, run.resume)
    warnings += unfinished_warnings(targets, run.resume, (ENCODED,) if encode else ())
    free = check_outputs(planned, run.reads, run.overwrite or planner.dry_run, run.resume)
    if planner.dry_run or run.cost_model is not None:
        return _planned(planned, run, free, warnings)
    begun = sum(stored_bytes(path.with_name(path.name + suffix)) for path in targets for suffix in (PARTIAL, ENCODED))
    needed = sum(p.nbytes for p in planned) * (2 if encode else 1)  # what is encoded ahead stays until it is written
    if needed > free + begun:
        folder = planned[0].files[0].path.parent
        raise FileError(f"{folder} has {free:,} bytes free; {needed:,} are needed", "free some, or write elsewhere")
    if planner.options.check_tensors:
        scan(planner.layers.tensors.values(), threads=run.threads, progress=run.progress)
    resumable = Resumable(fingerprint(planner.origin.files, planner.origin.recorded), run.resume)
    with ExitStack() as stack:
        started = time.perf_counter()
        if encode is not None:
            planned = [stack.enter_context(encode(planner, each, run)) for each in planned]
        return _write(planned, run, resumable, free, warnings, time.perf_counter() - started)


def write_file(
    file: FilePlan,
    name: str,
    run: WriteOptions,
    resumable: Resumable | None = None,
    warnings: Sequence[str] = (),
    choices: Mapping[str, Choice] = {},
) -> QuantizeReport:
    """Write one planned file. name: of its type in the report, such as "BF16". Raises FileError, FormatError.

    choices: reasons for the formats of tensors, for the report.
    """
    if run.writes_nothing:
        return _planned([Planned(name, (file,), choices)], run, free_bytes(file.path), list(warnings))
    if resumable is None:
        check_space(file.path, file.layout.total)
    return _write([Planned(name, (file,), choices)], run, resumable, free_bytes(file.path), list(warnings))


def _planned(planned: Sequence[Planned], run: WriteOptions, free: int, warnings: list[str]) -> QuantizeReport:
    """Report what would be written, and with a cost model what that would take."""
    report = _report(planned, None, free, warnings)
    if run.cost_model is None:
        return report
    return replace(report, work=plan_work([file for p in planned for file in p.files], run.cost_model, run.memory))


def _write(
    planned: Sequence[Planned],
    run: WriteOptions,
    resumable: Resumable | None,
    free: int,
    warnings: list[str],
    before: float = 0,
) -> QuantizeReport:
    """Write the planned outputs. before: seconds spent already."""
    files = [file for p in planned for file in p.files]
    if run.executor is not None and run.source is not None and are_written_elsewhere(files, run.executor, run.source):
        outcome = write_files_elsewhere(files, run.executor, run.source, run, resumable)
    else:
        outcome = write_files(files, run, resumable=resumable)
    return _report(planned, outcome._replace(seconds=outcome.seconds + before), free, warnings)


def output_paths(source: Path, recipes: Sequence[Recipe], output: PathLike | None) -> list[Path]:
    """Return a file for each recipe.

    Raises OptionError for one file and several recipes, FileError for a missing folder.
    """
    resolved = source.resolve()
    shard_name = SHARD_NAME.fullmatch(source.name)
    is_folder = source.is_dir() or (source.suffix != ".gguf" and not source.exists())  # one in a store isn't there
    stem = shard_name["prefix"] if shard_name else resolved.name if is_folder else source.stem
    model = MODEL_SUFFIX.sub("", stem) or stem
    folder = output if output is not None else _default_folder(resolved)
    paths = list(dict.fromkeys(output_path(folder, f"{model}-{recipe.name}.gguf") for recipe in recipes))
    if len(paths) < len(recipes):
        problem = f"{len(recipes)} recipes need a folder to be written to; {paths[0]} is none"
        raise OptionError(problem, f"end it with a slash: {paths[0]}/")
    return paths


def _default_folder(source: Path) -> PathLike:
    """Return the folder of a source, or the current one if nothing can be written there."""
    if isinstance(source, StorePath):
        return f"{source.parent}/" if source.is_writable else "."
    return source.parent if source.parent.is_dir() else "."


def check_outputs(planned: Sequence[Planned], reads: InputFiles, overwrite: bool, resume: bool = False) -> int:
    """Return the bytes free for the outputs. Raises an error if one would replace a source or another output.

    resume: an object in a store may be what an interrupted run wrote.
    """
    seen: set[Path] = set()
    for file in (file for p in planned for file in p.files):
        if file.path.resolve() in seen:
            raise OptionError(f"two recipes would be written to {file.path}")
        seen.add(file.path.resolve())
        check_target(file.path, reads, overwrite or (resume and isinstance(file.path, StorePath)))
    return free_bytes(planned[0].files[0].path)


def _report(planned: Sequence[Planned], outcome: WriteResult | None, free: int, warnings: list[str]) -> QuantizeReport:
    outputs = []
    written = iter(outcome.files) if outcome else None
    for p in planned:
        tensors = []
        for file in p.files:
            figures = next(written) if written else [None] * len(file.items)
            for item, done in zip(file.items, figures, strict=True):
                tensor, choice = item.tensor, p.choices.get(item.tensor.name)
                report = TensorReport(
                    tensor.name,
                    tensor.shape,
                    tensor.format.name,
                    item.format.name,
                    item.nbytes,
                    *((choice.fallback, choice.rule) if choice else (None, None)),
                    *(done[1:] if done else ()),
                )
                tensors.append(report._replace(feedback=item.ready.remark if item.ready else None))
        paths = tuple(file.path for file in p.files)
        outputs.append(OutputReport(p.name, paths[0], paths, p.nbytes, tuple(tensors)))
    source_bytes = sum(item.tensor.nbytes for file in planned[0].files for item in file.items)
    without = tuple(dict.fromkeys(name for p in planned for name in p.without_importance))
    run = outcome or WriteResult([])
    return QuantizeReport(
        tuple(outputs),
        outcome is None,
        source_bytes,
        free,
        run.resumed_bytes,
        run.seconds,
        run.compile_seconds,
        without,
        warnings,
    )
