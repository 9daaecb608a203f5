"""Compare two models, or a GGUF file with its checkpoint.

Compares metadata and tensors. Exit code 1 if they differ.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit

if TYPE_CHECKING:
    from ...inspection.compare import DiffReport, TensorDifference
    from ...inspection.drafting import DraftingReport
    from ...inspection.identification import Identification, TensorOrigin
    from ...inspection.weight_errors import Errors, WeightErrors

EXAMPLES = (
    "gguftools diff model-f16.gguf model-Q4_K_M.gguf",
    "gguftools diff model.gguf checkpoint/",
    "gguftools diff model-f16.gguf model-Q4_K_M.gguf --errors --imatrix im.gguf",
    "gguftools diff checkpoint/ strange-Q4_K_M.gguf --identify",
    "gguftools diff model.gguf draft.gguf --vocab",
)
GROUP = "Inspect"


def diff(
    a: Annotated[Path, Argument(help="GGUF file, shard of a split set, or Hugging Face folder.")],
    b: Annotated[Path, Argument(help="The other one.")],
    vocab: Annotated[bool, "Compare vocabularies: can B be a draft model for A?"] = False,
    all_tensors: Annotated[bool, "Also list tensors that are equal."] = False,
    errors: Annotated[bool, "Measure the error of each of B's tensors, the worst first."] = False,
    sort: Annotated[str, "Order of --errors: worst, name, layer, rmse or size."] = "worst",
    identify: Annotated[bool, "Find the recipe that makes B from A, and the tensors that differ from it."] = False,
    full: Annotated[bool, "With --identify: compare all rows, not a sample."] = False,
    imatrix: Path | None = None,
    threads: int | None = None,
    json: bool = False,
) -> None:
    from ..ui import bytes_progress, print_json, usage

    if imatrix and not (errors or identify):
        usage("--imatrix needs --errors or --identify", "add one of them, or leave out --imatrix")
    if vocab:
        from ...inspection.drafting import can_draft

        drafting = can_draft(a, b)
        print_json(drafting) if json else _print_drafting(drafting)
        raise Exit(0 if drafting.possible else 1)
    if errors:
        raise Exit(_errors(a, b, sort, imatrix, threads, json))
    if identify:
        raise Exit(_identify(a, b, imatrix, full, threads, json))
    from ...inspection.compare import diff as compare

    with bytes_progress(f"diff {a.name}") as progress:
        comparison = compare(a, b, threads=threads, progress=progress)
    print_json(comparison) if json else _print_comparison(comparison, all_tensors)
    raise Exit(1 if comparison.differ else 0)


def _errors(a: Path, b: Path, sort: str, imatrix: Path | None, threads: int | None, json: bool) -> int:
    from ...inspection.weight_errors import weight_errors
    from ..ui import bytes_progress, print_result

    with bytes_progress(f"compare {a.name}") as progress:
        report = weight_errors(a, b, imatrix=imatrix, sort=sort, threads=threads, progress=progress)
    if not print_result(report, json):
        _print_errors(report)
    return 0 if report.is_complete else 1


def _print_errors(report: "WeightErrors") -> None:
    from ..ui import print_line, print_table

    columns = ("bits", "rmse", "largest", "relative", *(["weighted"] if report.imatrix else []), "SQNR dB")
    right = "r" * len(columns)
    rows = [(each.name, each.a, each.b, *_error_cells(each.errors, report)) for each in report.tensors]
    print_table("tensors", ("tensor", str(report.a), str(report.b), *columns), rows, f"lll{right}")
    print_line()
    totals = [(name, *_error_cells(errors, report)) for name, errors in report.kinds.items()]
    totals.append(("all", *_error_cells(report.total, report)))
    print_table("kinds of tensors", ("kind", *columns), totals, f"l{right}")
    for names, what in ((report.only_a, f"only in {report.a}"), (report.only_b, f"only in {report.b}")):
        for name in names:
            print_line(f"{name} is {what}")
    for name, a, b in report.shapes:
        print_line(f"{name} is {' × '.join(map(str, a))} in {report.a}, {' × '.join(map(str, b))} in {report.b}")
    for name in report.unread:
        print_line(f"{name} is of a type that cannot be decoded")
    print_line(report.verdict)


def _error_cells(errors: "Errors", report: "WeightErrors") -> list[str]:
    shares = [errors.relative, *([errors.weighted] if report.imatrix else [])]
    cells = [f"{errors.bits_per_weight:.2f}", f"{errors.rmse:.3g}", f"{errors.largest:.3g}"]
    cells += ["" if share is None else f"{100 * share:.3g} %" for share in shares]
    cells.append("" if errors.sqnr is None else f"{errors.sqnr:.2f}")
    if errors.non_finite:
        cells[2] = f"{errors.non_finite} not finite"
    return cells


def _identify(a: Path, b: Path, imatrix: Path | None, full: bool, threads: int | None, json: bool) -> int:
    from ...inspection.identification import identify
    from ..ui import bytes_progress, print_result

    with bytes_progress(f"identify {b.name}") as progress:
        report = identify(a, b, imatrix=imatrix, full=full, threads=threads, progress=progress)
    if not print_result(report, json):
        _print_identification(report)
    return 0 if report.is_explained else 1


def _print_identification(report: "Identification") -> None:
    from ...inspection.identification import MADE
    from ..ui import print_line, print_table

    shown = [each for each in report.tensors if each.is_other_format or not each.is_explained]
    if shown:
        columns = ("tensor", "type", report.recipe, "made", "rows", "equal", "error", "ours")
        print_table("tensors that are otherwise", columns, [_origin_row(each) for each in shown], "llllrrrr")
    for made, count in report.made.items():
        print_line(f"{count} tensors {MADE[made]}")
    if report.vias and report.unexplained:
        print_line(f"of some, the original was rounded to {' or '.join(report.vias)} first")
    for names, what in (
        (report.only_original, "missing"),
        (report.only_file, "new"),
        (report.other_shapes, "of another shape"),
    ):
        for name in names:
            print_line(f"{name} is {what}")
    if report.declared_imatrix and report.imatrix is None:
        print_line(f"the file says that an importance matrix was used, {report.declared_imatrix}: --imatrix tries one")
    if report.also:
        print_line(f"the formats are those of {', '.join(report.also)}, too")
    print_line(report.verdict)
    more = f"{len(report.rules)} rules of --tensor-type, which --json has, make the same formats"
    print_line(f"the same formats: {report.command}" if report.command else more)


def _origin_row(each: "TensorOrigin") -> tuple[str, ...]:
    shares = ("" if share is None else f"{100 * share:.3g} %" for share in (each.relative, each.expected_relative))
    return (each.name, each.format, each.expected or "", each.made, str(each.rows), str(each.equal_rows), *shares)


def _print_comparison(report: "DiffReport", all_tensors: bool) -> None:
    from ...metadata.text import typed
    from ..ui import print_line, print_table

    for key in report.keys:
        for sign, value in (("-", key.a), ("+", key.b)):
            if value is not None:
                print_line(f"{sign} {key.key}  {typed(value)}")
        if key.note:
            print_line(f"  ({key.note})")
    tensors = report.tensors if all_tensors else report.different_tensors
    if tensors:
        columns = ("tensor", "", str(report.a), str(report.b), "rmse", "largest", "relative")
        print_table("tensors", columns, [_tensor_row(tensor) for tensor in tensors], "llllrrr")
    print_line(report.verdict)


def _tensor_row(tensor: "TensorDifference") -> tuple[str, ...]:
    shapes = (tensor.shape_a, tensor.shape_b) if tensor.kind in ("shape", "added", "removed") else (None, None)
    sides = zip((tensor.a, tensor.b), shapes, strict=True)
    shown = (f"{form or ''} {' × '.join(map(str, shape or ()))}".strip() for form, shape in sides)
    figures, numbers = tensor.figures, ("", "", "")
    if figures is not None and tensor.kind != "same":
        numbers = f"{figures.rmse:.3g}", f"{figures.max_error:.3g}", f"{100 * figures.relative:.3g} %"
    return (tensor.name, tensor.kind, *shown, *numbers)


def _print_drafting(report: "DraftingReport") -> None:
    from ..ui import print_line

    print_line(f"{report.draft} {'can' if report.possible else 'can NOT'} draft for {report.target}")
    print_line(f"tokens: {report.tokens[0]:,} and {report.tokens[1]:,}, the same up to {report.same_until:,}")
    for role, (target, draft) in report.special.items():
        print_line(f"{role}: {target} and {draft}")
    for obstacle in report.obstacles:
        print_line(f"obstacle: {obstacle}")
    for remark in report.notes:
        print_line(f"note: {remark}")
    if report.edits:
        print_line(f"to edit: gguftools set-metadata {report.draft} {' '.join(report.edits)}")
