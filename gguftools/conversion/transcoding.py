"""Transcode exactly: store tensors whose values are integers times a scale as blocks with the same values.

Values count, not how a checkpoint packs them. Weights of GPTQ, AWQ or compressed-tensors, once decoded and moved to
their places (rows permuted, experts stacked), lie on a grid in every block, and so do those of models trained for a
format and published as floats. A tensor gets the smallest format that holds all its blocks exactly. Each block is
decoded as proof, when the format is searched and again when the block is written.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archs.plans.text import stays_float32
from quants import Format, Tensor, format_named
from quants.arguments import thread_count
from quants.errors import FormatError
from quants.exact import PRECISION, exact_blocks, formats_that_fit

from ..io.atomic import check_target
from ..models.contents import streamed_tensors
from ..models.model import Model
from ..quantization.outputs import write_file
from ..quantization.outtypes import FILE_TYPES, converted_format, plan_conversion, with_file_type
from ..quantization.recipes import RECIPES, Choice, is_quantizable
from ..writing.options import WriteOptions
from ..writing.pipeline import FilePlan, Resumable
from ..writing.report import QuantizeReport, TranscodingReport
from ..writing.row_blocks import RowBlock, by_tensor, run_blocks

EXACT = "EXACT"  # what the outtype is called
SAMPLE = 1 << 14  # values of a tensor that tell which formats may hold it


@dataclass(frozen=True)
class Inexact:
    """Count the blocks of a format that do not hold their values, and locate the first.

    as_rounded: blocks that hold them only after rounding as the checkpoint did.
    """

    count: int
    blocks: int
    row: int = 0
    column: int = 0
    as_rounded: int = 0


@dataclass
class Search:
    """Search the format of a tensor.

    rounded_to: the type whose rounding may be undone. viable: formats not tried yet, the smallest first.
    """

    tensor: Tensor
    rounded_to: Format | None = None
    viable: list[Format] = field(default_factory=list)
    format: Format | None = None
    as_rounded: int = 0
    failures: list[tuple[Inexact, Format]] = field(default_factory=list)

    def sampled(self, results: Sequence[tuple[Inexact, Format]]) -> None:
        """Take the results of every format on the first rows: one that holds half of their blocks is worth trying."""
        self.viable = [form for wrong, form in results if 2 * wrong.count <= wrong.blocks]
        self.failures = [] if self.viable else list(results)

    def tried(self, result: Inexact) -> None:
        """Take the result of the first viable format."""
        form = self.viable.pop(0)
        if result.count:
            self.failures.append((result, form))
        else:
            self.format, self.as_rounded, self.viable = form, result.as_rounded, []

    def report(self, stored: Format, rounded: int) -> TranscodingReport:
        """Report the result. rounded: how many values another format than those of the search changes."""
        tensor, form = self.tensor, self.format or stored
        report = TranscodingReport(tensor.name, tensor.shape, tensor.format.name, form.name)
        if self.format is not None:
            return report._replace(blocks=tensor.size // form.block_size, as_rounded=self.as_rounded)
        report = report._replace(rounded=rounded)
        if not self.failures:
            fits = formats_that_fit(tensor.width)
            return report._replace(reason=ON_NO_GRID if fits else f"no block fits rows of {tensor.width} values")
        nearest_result, nearest = min(self.failures, key=lambda each: each[0].count / each[0].blocks)
        report = report._replace(nearest=nearest.name, row=nearest_result.row, column=nearest_result.column)
        some = 2 * nearest_result.count <= nearest_result.blocks
        reason = f"not all of its blocks are exactly {nearest.name}" if some else ON_NO_GRID
        return report._replace(reason=reason, blocks=nearest_result.blocks, inexact=nearest_result.count)


ON_NO_GRID = "no float16 scale makes integers of its values"


def write_exact(
    model: Model,
    path: Path,
    fallback: str,
    run: WriteOptions,
    resumable: Resumable | None = None,
    warnings: Sequence[str] = (),
    rounded_grids: bool = False,
) -> QuantizeReport:
    """Write a checkpoint, each weight in the smallest format that holds it exactly, else as a conversion to `fallback`.

    fallback: one of FILE_TYPES. rounded_grids: also accept blocks that give the values of a BF16 or F16 weight after
    rounding to that type. Raises FormatError, FileError.
    """
    check_target(path, run.reads, run.overwrite or run.dry_run)
    reports, tensors = transcoded(model, fallback, run, rounded_grids)
    file = plan_conversion(path, model.metadata, tensors.values(), model.origin, fallback, run.reserve)
    file = replace(file, metadata=with_file_type(file.metadata, file_type(reports, fallback)))
    left = {each.name: each for each in reports if each.reason}
    formats = {item.tensor.name: item.format for item in file.items if item.tensor.name in left}
    choices = {name: Choice(name, form, form, left[name].reason) for name, form in formats.items()}
    report = write_file(file, EXACT, run, resumable, [*warnings, *rounded(reports)], choices)
    sources = {each.name: each.source for each in reports if each.as_rounded}  # their values are not the checkpoint's
    [output] = report.outputs
    tensor_reports = tuple(each._replace(source=sources.get(each.name, each.source)) for each in output.tensors)
    return replace(report, outputs=(replace(output, tensors=tensor_reports),), transcoding=tuple(reports))


def plan_exact_again(
    model: Model, path: Path, fallback: str, formats: Mapping[str, str], rounded_grids: bool = False, reserve: int = 0
) -> FilePlan:
    """Plan what `write_exact` wrote, without a search. formats: of its tensors, by name."""
    tensors, reports = dict(streamed_tensors(model)), []
    for tensor in _weights(model, tensors):
        stored = converted_format(tensor, fallback, model.origin.float32, model.origin.fixed)
        form = format_named(formats.get(tensor.name, stored.name))
        if form.name != stored.name:
            rounded_to = tensor.format if rounded_grids and tensor.format.name in PRECISION else None
            tensors[tensor.name] = _in_blocks(Search(tensor, rounded_to), form)
        reports.append(TranscodingReport(tensor.name, tensor.shape, tensor.format.name, form.name))
    file = plan_conversion(path, model.metadata, tensors.values(), model.origin, fallback, reserve)
    return replace(file, metadata=with_file_type(file.metadata, file_type(reports, fallback)))


def _weights(model: Model, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the tensors for which exact blocks are searched."""
    name_of_model, candidates = str(model.metadata.get("general.architecture", "")), model.origin.candidates
    if candidates is not None:
        return [tensor for name, tensor in tensors.items() if name in candidates and not tensor.format.is_quantized]
    return [
        tensor
        for name, tensor in tensors.items()
        if is_quantizable(name, tensor.shape, tensor.format, name_of_model)
        and not stays_float32(name, tensor.shape, model.origin.float32)
        and not tensor.format.is_quantized
    ]


def transcoded(
    model: Model, fallback: str, run: WriteOptions, rounded_grids: bool = False
) -> tuple[list[TranscodingReport], dict[str, Tensor]]:
    """Return a report for each weight, and all tensors of the model, with exact blocks where possible."""
    tensors, keep = streamed_tensors(model), model.origin.float32
    searches = {
        tensor.name: Search(tensor, tensor.format if rounded_grids and tensor.format.name in PRECISION else None)
        for tensor in _weights(model, tensors)
    }
    weights = [each.tensor for each in searches.values()]
    for name, sampled in _sampled(searches, run):
        searches[name].sampled(sampled)
    while asked := {name: each for name, each in searches.items() if each.viable}:
        for name, count in _inexact(asked, run):
            searches[name].tried(count)
    stored = {tensor.name: converted_format(tensor, fallback, keep, model.origin.fixed) for tensor in weights}
    left = [each.tensor for each in searches.values() if each.format is None]
    changed = dict(_changed(left, stored, run))
    reports = [each.report(stored[name], changed.get(name, 0)) for name, each in searches.items()]
    exact = {name: _in_blocks(each, each.format) for name, each in searches.items() if each.format}
    return reports, {name: exact.get(name, tensor) for name, tensor in tensors.items()}


def _sampled(searches: Mapping[str, Search], run: WriteOptions) -> Iterator[tuple[str, list[tuple[Inexact, Format]]]]:
    """Yield, for each tensor, the result of each format on its first rows, the smallest format first."""
    tensors = [each.tensor for each in searches.values() if each.tensor.size]
    samples = [RowBlock(each, 0, min(each.rows, max(1, SAMPLE // each.width))) for each in tensors]

    def look(block: RowBlock) -> list[tuple[Inexact, Format]]:
        values, rounded_to = block.tensor.float32(block.start, block.stop), searches[block.tensor.name].rounded_to
        forms = formats_that_fit(block.tensor.width)
        return [(_wrong(exact_blocks(form, values, rounded_to)[1], form), form) for form in forms]

    total = sum(block.stop * block.tensor.row_bytes for block in samples)
    done = run_blocks(samples, look, total, threads=thread_count(run.threads), progress=run.progress)
    for block, results in done:
        yield block.tensor.name, results


def _wrong(blocks: NDArray[np.bool_], form: Format, first_row: int = 0) -> Inexact:
    """Return the result for rows whose inexact blocks are marked: bool (rows, blocks of a row)."""
    count, (row, block) = int(np.count_nonzero(blocks)), divmod(int(np.argmax(blocks)), blocks.shape[1])
    return Inexact(count, blocks.size, first_row + row, block * form.block_size)


def _inexact(searches: Mapping[str, Search], run: WriteOptions) -> Iterator[tuple[str, Inexact]]:
    """Yield, for each tensor, the result of its first viable format on all rows."""

    def look(tensor: Tensor, start: int, stop: int) -> Inexact:
        form, rounded_to = searches[tensor.name].viable[0], searches[tensor.name].rounded_to
        values = tensor.float32(start, stop)
        raw, wrong = exact_blocks(form, values, rounded_to)
        if not wrong.any():
            other = (form.decode(raw) != values).reshape(*wrong.shape, -1).any(axis=2) if rounded_to else wrong
            return Inexact(0, wrong.size, as_rounded=int(np.count_nonzero(other)))
        return _wrong(wrong, form, start)

    tensors = [each.tensor for each in searches.values()]
    for name, parts in by_tensor(tensors, look, threads=run.threads, progress=run.progress).items():
        first = next((part for part in parts if part.count), parts[0])
        counts, blocks = sum(part.count for part in parts), sum(part.blocks for part in parts)
        yield name, replace(first, count=counts, blocks=blocks, as_rounded=sum(part.as_rounded for part in parts))


def _changed(tensors: Sequence[Tensor], stored: Mapping[str, Format], run: WriteOptions) -> Iterator[tuple[str, int]]:
    """Yield, for each tensor, how many values its stored format changes."""

    def look(tensor: Tensor, start: int, stop: int) -> int:
        form, values = stored[tensor.name], tensor.float32(start, stop)
        with np.errstate(over="ignore"):  # of F16, which is refused when it is written
            return int(np.count_nonzero(form.decode(form.encode(values)) != values))

    asked = [each for each in tensors if stored[each.name].name not in ("F32", each.format.name)]
    for name, counts in by_tensor(asked, look, threads=run.threads, progress=run.progress).items():
        yield name, sum(counts)


def _in_blocks(search: Search, form: Format) -> Tensor:
    """Return the tensor in a format that holds it; reading raises FormatError if it no longer does."""
    tensor = search.tensor

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        raw, wrong = exact_blocks(form, tensor.float32(start, stop), search.rounded_to)
        if wrong.any():
            raise FormatError(f"{tensor.where} changed after its format was chosen")
        return raw

    return replace(tensor, format=form, read=read)


def file_type(reports: Iterable[TranscodingReport], fallback: str) -> int:
    """Return `general.file_type` of the format that most values have."""
    sizes: Counter[str] = Counter()
    for each in reports:
        sizes[each.format] += each.size
    main_format = sizes.most_common(1)[0][0] if sizes else fallback
    named = (recipe.file_type for recipe in RECIPES.values() if main_format in (recipe.default, recipe.name))
    return next((number for number in named if number is not None), FILE_TYPES[fallback])


def rounded(reports: Iterable[TranscodingReport]) -> list[str]:
    """Warn of tensors whose values the fallback changes."""
    changed = [each for each in reports if each.rounded]
    if not changed:
        return []
    who = changed[0].name if len(changed) == 1 else f"{len(changed)} tensors ({changed[0].name}, …)"
    form, size = changed[0].format, sum(each.size for each in changed)
    values = f"{sum(each.rounded for each in changed):,} of {size:,} values"
    return [f"{who} {'is' if len(changed) == 1 else 'are'} rounded to {form}, {values}; `fallback` f32 keeps them"]
