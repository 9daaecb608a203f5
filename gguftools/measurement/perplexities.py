"""Measure the perplexity of several files on one text, each compared with the first file of the same model."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from quants.errors import GgufToolsError

from ..io.atomic import InputFiles
from ..io.locks import state_of
from ..models.model import Model
from ..writing.report import Report
from .corpus import tokens_in
from .options import PerplexityOptions
from .perplexity import PerplexityReport, Progress, perplexity
from .texts import Texts, texts_named


@dataclass(frozen=True)
class Difference:
    """How far a file's perplexity is from that of another file of the same model.

    standard_error: from the differences between windows; None for a single window.
    """

    file: str
    perplexity: float
    standard_error: float | None


@dataclass(frozen=True)
class FilePerplexity(PerplexityReport):
    """The perplexity of one of several files. difference: from the first file of the same model; None for that file."""

    difference: Difference | None = None


@dataclass(frozen=True)
class FailedFile:
    """A file that could not be measured, and why."""

    file: str
    error: str


@dataclass(frozen=True)
class PerplexityTable(Report):
    """The measured files, in their order, and those that failed."""

    files: list[FilePerplexity]
    failed: list[FailedFile] = field(default_factory=list)


def perplexities(
    sources: Iterable[Model],
    text: Texts,
    *,
    n_ctx: int = 512,
    chunks: int | None = None,
    threads: int | None = None,
    options: PerplexityOptions | None = None,
    progress: Progress | None = None,
) -> PerplexityTable:
    """Measure the perplexity of several models on a text; one that fails does not stop the others.

    progress(windows done, of how many in all, perplexity of the current model so far). Raises FileError for a text that
    is changed while it is measured on, and OptionError as `perplexity` does.
    """
    models, reports, failed = list(sources), list[FilePerplexity](), list[FailedFile]()
    texts = texts_named(text)
    read = InputFiles(states={each.path: state_of(each.path) for each in texts if each.path.is_file()})
    measured: list[Model] = []
    for number, model in enumerate(models):
        shown = progress and partial(_shifted, progress, number, len(models))
        try:
            report = perplexity(
                model, texts, n_ctx=n_ctx, chunks=chunks, threads=threads, options=options, progress=shown
            )
        except GgufToolsError as error:
            failed.append(FailedFile(str(model.path), str(error)))
            continue
        first = next((i for i, other in enumerate(measured) if _same_model(model, other)), None)
        from_first = None if first is None else difference(report, reports[first])
        reports.append(FilePerplexity(**{**vars(report), "difference": from_first}))
        measured.append(model)
    read.check_unchanged()
    return PerplexityTable(reports, failed)


def _shifted(progress: Progress, number: int, models: int, done: int, total: int, value: float) -> None:
    """Report progress of one of several models, as if all had as many windows."""
    progress(number * total + done, models * total, value)


def difference(report: PerplexityReport, other: PerplexityReport) -> Difference | None:
    """Return the difference from another file's perplexity; None if the windows differ."""
    if len(report.chunks) != len(other.chunks) or report.tokens != other.tokens:
        return None
    losses = _losses(report.chunks) - _losses(other.chunks)
    error = None
    if len(losses) > 1:
        error = report.perplexity * float(losses.std(ddof=1)) / math.sqrt(len(losses))
    return Difference(other.file, report.perplexity - other.perplexity, error)


def _losses(running: Sequence[float]) -> np.ndarray:
    """Return the mean loss of each window, from the running perplexities."""
    sums = np.log(running) * np.arange(1, len(running) + 1)
    return np.diff(sums, prepend=0.0)


def _same_model(one: Model, other: Model) -> bool:
    """Return whether both have one architecture, one vocabulary, and layers of the same shapes."""
    same = one.architecture == other.architecture and _layers(one) == _layers(other)
    return same and tokens_in(one) == tokens_in(other)


def _layers(model: Model) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.tensors.items() if name.startswith("blk.")}
