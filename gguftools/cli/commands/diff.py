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
    from ..ui import bytes_progress, said

    with bytes_progress(f"compare {a.name}") as progress:
        found = weight_errors(a, b, imatrix=imatrix, sort=sort, threads=threads, progress=progress)
    if not said(found, json):
        _print_errors(found)
    return 0 if found.is_complete else 1


def _print_errors(found: "WeightErrors") -> None:
    from ..ui import print_line, print_table

    columns = ("bits", "rmse", "largest", "relative", *(["weighted"] if found.imatrix else []), "SQNR dB")
    right = "r" * len(columns)
    rows = [(each.name, each.a, each.b, *_error_cells(each.errors, found)) for each in found.tensors]
    print_table("tensors", ("tensor", str(found.a), str(found.b), *columns), rows, f"lll{right}")
    print_line()
    kinds = [(kind, *_error_cells(errors, found)) for kind, errors in found.kinds.items()]
    kinds.append(("all", *_error_cells(found.total, found)))
    print_table("kinds of tensors", ("kind", *columns), kinds, f"l{right}")
    for names, what in ((found.only_a, f"only in {found.a}"), (found.only_b, f"only in {found.b}")):
        for name in names:
            print_line(f"{name} is {what}")
    for name, a, b in found.shapes:
        print_line(f"{name} is {' × '.join(map(str, a))} in {found.a}, {' × '.join(map(str, b))} in {found.b}")
    for name in found.unread:
        print_line(f"{name} is of a type that cannot be decoded")
    print_line(found.verdict)


def _error_cells(errors: "Errors", found: "WeightErrors") -> list[str]:
    shares = [errors.relative, *([errors.weighted] if found.imatrix else [])]
    cells = [f"{errors.bits_per_weight:.2f}", f"{errors.rmse:.3g}", f"{errors.largest:.3g}"]
    cells += ["" if share is None else f"{100 * share:.3g} %" for share in shares]
    cells.append("" if errors.sqnr is None else f"{errors.sqnr:.2f}")
    if errors.non_finite:
        cells[2] = f"{errors.non_finite} not finite"
    return cells


def _identify(a: Path, b: Path, imatrix: Path | None, full: bool, threads: int | None, json: bool) -> int:
    from ...inspection.identification import identify
    from ..ui import bytes_progress, said

    with bytes_progress(f"identify {b.name}") as progress:
        found = identify(a, b, imatrix=imatrix, full=full, threads=threads, progress=progress)
    if not said(found, json):
        _print_identification(found)
    return 0 if found.is_explained else 1


def _print_identification(found: "Identification") -> None:
    from ...inspection.identification import MADE
    from ..ui import print_line, print_table

    shown = [each for each in found.tensors if each.is_other_format or not each.is_explained]
    if shown:
        columns = ("tensor", "type", found.recipe, "made", "rows", "equal", "error", "ours")
        print_table("tensors that are otherwise", columns, [_origin_row(each) for each in shown], "llllrrrr")
    for made, count in found.made.items():
        print_line(f"{count} tensors {MADE[made]}")
    if found.vias and found.unexplained:
        print_line(f"of some, the original was rounded to {' or '.join(found.vias)} first")
    for names, what in (
        (found.only_original, "missing"),
        (found.only_file, "new"),
        (found.other_shapes, "of another shape"),
    ):
        for name in names:
            print_line(f"{name} is {what}")
    if found.declared_imatrix and found.imatrix is None:
        print_line(f"the file says that an importance matrix was used, {found.declared_imatrix}: --imatrix tries one")
    if found.also:
        print_line(f"the formats are those of {', '.join(found.also)}, too")
    print_line(found.verdict)
    more = f"{len(found.rules)} rules of --tensor-type, which --json has, make the same formats"
    print_line(f"the same formats: {found.command}" if found.command else more)


def _origin_row(each: "TensorOrigin") -> tuple[str, ...]:
    shares = ("" if share is None else f"{100 * share:.3g} %" for share in (each.relative, each.expected_relative))
    return (each.name, each.format, each.expected or "", each.made, str(each.rows), str(each.equal_rows), *shares)


def _print_comparison(found: "DiffReport", all_tensors: bool) -> None:
    from ...metadata.text import typed
    from ..ui import print_line, print_table

    for key in found.keys:
        for sign, value in (("-", key.a), ("+", key.b)):
            if value is not None:
                print_line(f"{sign} {key.key}  {typed(value)}")
        if key.note:
            print_line(f"  ({key.note})")
    tensors = found.tensors if all_tensors else found.different_tensors
    if tensors:
        columns = ("tensor", "", str(found.a), str(found.b), "rmse", "largest", "relative")
        print_table("tensors", columns, [_tensor_row(tensor) for tensor in tensors], "llllrrr")
    print_line(found.verdict)


def _tensor_row(tensor: "TensorDifference") -> tuple[str, ...]:
    shapes = (tensor.shape_a, tensor.shape_b) if tensor.kind in ("shape", "added", "removed") else (None, None)
    sides = zip((tensor.a, tensor.b), shapes, strict=True)
    shown = (f"{form or ''} {' × '.join(map(str, shape or ()))}".strip() for form, shape in sides)
    figures, numbers = tensor.figures, ("", "", "")
    if figures is not None and tensor.kind != "same":
        numbers = f"{figures.rmse:.3g}", f"{figures.max_error:.3g}", f"{100 * figures.relative:.3g} %"
    return (tensor.name, tensor.kind, *shown, *numbers)


def _print_drafting(found: "DraftingReport") -> None:
    from ..ui import print_line

    print_line(f"{found.draft} {'can' if found.possible else 'can NOT'} draft for {found.target}")
    print_line(f"tokens: {found.tokens[0]:,} and {found.tokens[1]:,}, the same up to {found.same_until:,}")
    for role, (target, draft) in found.special.items():
        print_line(f"{role}: {target} and {draft}")
    for obstacle in found.obstacles:
        print_line(f"obstacle: {obstacle}")
    for remark in found.notes:
        print_line(f"note: {remark}")
    if found.edits:
        print_line(f"to edit: gguftools set-metadata {found.draft} {' '.join(found.edits)}")
