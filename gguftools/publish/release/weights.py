"""Make the files of a release that have weights: encoders, the importance matrix, and a file for each recipe."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...calibration.target import SearchOptions
from ...conversion.convert import convert
from ...conversion.quantize import quantize
from ...io.atomic import atomic_output
from ...lab.reproduction import attest
from ...measurement.importance import imatrix
from ...measurement.options import ImatrixOptions
from ...measurement.texts import default_texts
from ...provenance.hashing import file_digest
from ...quantization.imatrix import ImportanceMatrix, read_imatrix, write_imatrix
from ...quantization.options import QuantizeOptions
from ...writing.options import WriteOptions
from ...writing.report import QuantizeReport
from ..names import PublishedName
from .journal import key_of
from .plan import PlannedFile, in_passes
from .run import Run, contents
from .settings import OWN_TEXTS, is_matrix


def encoders(run: Run, part: Any) -> list[Path]:
    """Write the file of a part: mmproj or mtp."""
    path = run.folder / PublishedName(run.plan.name, run.plan.outtype, part).file
    write = WriteOptions(threads=run.threads, progress=run.shown(part), resume=True, overwrite=True)
    report = convert(run.local, path, run.plan.outtype, part=part, write=write)
    run.warnings += report.warnings
    return [path]


def matrix_key(run: Run) -> str:
    """Return what decides the importance matrix."""
    given = run.settings.imatrix
    files = [each.path for each in default_texts()] if given == OWN_TEXTS else [Path(given)]
    return key_of(run.plan.key, run.settings.imatrix_chunks, [file_digest(each) for each in files])


def importance(run: Run) -> list[Path]:
    """Measure the importance matrix, or copy the one that is given."""
    given, path = run.settings.imatrix, run.matrix_path
    if is_matrix(given):
        _copy_matrix(Path(given), path)
        return [path]
    texts = [each.path for each in default_texts()] if given == OWN_TEXTS else [Path(given)]
    options = ImatrixOptions(resume=True, overwrite=True)
    chunks, shown = run.settings.imatrix_chunks, run.shown("imatrix")
    imatrix(run.model, texts, path, chunks=chunks, threads=run.threads, options=options, progress=shown)
    return [path]


def _copy_matrix(given: Path, path: Path) -> None:
    """Copy an importance matrix; one of the older form is written as GGUF."""
    if given.suffix != ".gguf":
        matrix: ImportanceMatrix = read_imatrix(given)
        write_imatrix(matrix, path, True, [given])
    elif not (path.exists() and path.samefile(given)):
        with given.open("rb") as read, atomic_output(path, "wb", True) as file:
            shutil.copyfileobj(read, file)


def quantized(run: Run) -> None:
    """Write the files that are missing: in one pass over the weights, sharded ones in another, searched ones alone."""
    matrix = run.matrix
    of_matrix = None if matrix is None else run.digest(matrix.name)
    texts = contents(run.settings.gptq)
    keys: dict[str, str] = {}  # of the files that are missing
    for file in run.plan.files:
        made_of = file_digest(Path(file.recipe)) if Path(file.recipe).is_file() else file.target or file.recipe
        split = file.sharded and run.settings.split_max_size
        key = key_of(run.plan.key, made_of, None if file.target else of_matrix, texts, split, run.settings.manifests)
        if run.journal.is_done(file.path, key):
            run.kept.append(file.path)
        else:
            keys[file.path] = key
    for group in in_passes([each for each in run.plan.files if each.path in keys]):
        _write(run, group)
        for file in group:
            run.journal.note(file.path, keys[file.path], run.files_of(file))
            run.made.append(file.path)


def _write(run: Run, files: Sequence[PlannedFile]) -> None:
    """Write several files by their recipes, or one whose recipe is searched for."""
    for file in files:
        (run.folder / file.path).parent.mkdir(parents=True, exist_ok=True)
    report = _searched(run, files[0]) if files[0].target else _by_recipes(run, files)
    run.warnings += report.warnings
    if run.settings.manifests:
        for output in report.outputs:
            attest(output.file, overwrite=True, threads=run.threads)


def _by_recipes(run: Run, files: Sequence[PlannedFile]) -> QuantizeReport:
    return quantize(
        run.local,
        [each.recipe for each in files],
        [run.folder / each.path for each in files],
        imatrix=run.matrix,
        gptq=list(run.settings.gptq) or None,
        options=_options(run, files[0]),
        write=_write_options(run, "quantize"),
    )


def _searched(run: Run, file: PlannedFile) -> QuantizeReport:
    return quantize(
        run.local,
        output=run.folder / file.path,
        gptq=list(run.settings.gptq) or None,
        search=SearchOptions(target_size=file.target),
        options=_options(run, file),
        write=_write_options(run, "search"),
    )


def _options(run: Run, file: PlannedFile) -> QuantizeOptions:
    return QuantizeOptions(max_size=run.settings.split_max_size if file.sharded else None, allow_missing_experts=True)


def _write_options(run: Run, part: str) -> WriteOptions:
    return WriteOptions(
        threads=run.threads, progress=run.shown(part), resume=True, overwrite=True, manifest=run.settings.manifests
    )
