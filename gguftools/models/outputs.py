"""Write a model's tensors: as they are, in a plain type, or quantized with recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from quants import Tensor
from quants.arguments import PathLike

from ..io.atomic import check_target
from ..io.stores.path import StorePath
from ..writing.executors import leaves_process
from .contents import Contents, check_is_model, process_source, streamed_tensors

if TYPE_CHECKING:
    from ..quantization.imatrix import ImportanceMatrix
    from ..quantization.options import QuantizeOptions
    from ..quantization.outputs import EncodeAhead
    from ..quantization.planning import Planner
    from ..quantization.recipes import Recipe
    from ..writing.options import WriteOptions
    from ..writing.pipeline import Resumable
    from ..writing.report import QuantizeReport


def write_plain(
    model: Contents,
    target: Path,
    outtype: str | None,
    run: WriteOptions,
    resumable: Resumable | None = None,
    warnings: Sequence[str] = (),
) -> QuantizeReport:
    """Write a model's tensors as they are (outtype None), or as a plain conversion to one of FILE_TYPES does."""
    from ..quantization.outputs import write_file
    from ..quantization.outtypes import plan_conversion
    from ..writing.items import Item
    from ..writing.pipeline import FilePlan

    streamed = streamed_tensors(model)
    if leaves_process(run.executor):
        run = replace(run, source=process_source(model, streamed))
    tensors = streamed.values()
    if outtype is None:
        items = tuple(Item(tensor, tensor.format) for tensor in tensors)
        file = FilePlan(target, model.metadata, items, model.origin.alignment, run.reserve, model.origin.magic)
    else:
        file = plan_conversion(target, model.metadata, tensors, model.origin, outtype, run.reserve)
    check_target(target, run.reads, run.overwrite or run.dry_run or (run.resume and isinstance(target, StorePath)))
    return write_file(file, outtype or "COPY", run, resumable, warnings)


def write_quantized(
    model: Contents,
    recipes: Sequence[Recipe],
    paths: Sequence[Path],
    run: WriteOptions,
    imatrix: PathLike | ImportanceMatrix | None = None,
    options: QuantizeOptions | None = None,
    encode: EncodeAhead | None = None,
    only_rules: bool = False,
) -> QuantizeReport:
    """Write a model once for each recipe, as `quantize` does; encode: see `write_recipes`; only_rules: see `Planner`.

    Raises FileError for no model.
    """
    from ..quantization.imatrix import ImportanceMatrix
    from ..quantization.options import QuantizeOptions
    from ..quantization.outputs import write_recipes

    options, tensors = options or QuantizeOptions(), streamed_tensors(model)
    if leaves_process(run.executor):
        run = replace(run, source=process_source(model, tensors))
    planner = planner_of(model, recipes, imatrix, options, run, tensors, only_rules)
    planner.check_overrides()
    read = run.reads.also([None if isinstance(imatrix, ImportanceMatrix) else imatrix])
    return write_recipes(planner, recipes, paths, replace(run, reads=read), encode)


def planner_of(
    model: Contents,
    recipes: Sequence[Recipe],
    imatrix: PathLike | ImportanceMatrix | None,
    options: QuantizeOptions,
    run: WriteOptions,
    tensors: Mapping[str, Tensor] | None = None,
    only_rules: bool = False,
) -> Planner:
    """Plan a model's outputs, one of each recipe. tensors: as `streamed_tensors` gives them, if not given.

    Raises FileError for no model.
    """
    from ..quantization.imatrix import usable_matrix
    from ..quantization.planning import Planner, without_layers
    from ..quantization.stock import in_stock_formats

    check_is_model(model, "mmproj")  # encoders are only no text models
    matrix, warnings = usable_matrix(imatrix, options.include_weights, options.exclude_weights)
    stock = in_stock_formats(streamed_tensors(model) if tensors is None else tensors, recipes, model.path)
    layers = without_layers(model.metadata, stock.tensors, options.prune_layers)
    return Planner(
        model.metadata,
        layers,
        model.origin,
        matrix,
        options,
        run.reserve,
        run.writes_nothing,
        warnings=[*warnings, *stock.warnings],
        only_rules=only_rules,
        restated=stock.changed,
    )
