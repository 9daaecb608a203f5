"""Copy a model with tensors of other files, or without some.

Takes tensors and keys from donors, drops layers or experts. Nothing is requantized unless experts are merged.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

if TYPE_CHECKING:
    from ...lab.grafting import GraftReport

EXAMPLES = (
    "gguftools graft model.gguf -o with-mtp.gguf --from donor.gguf mtp",
    "gguftools graft model.gguf -o mended.gguf --from donor.gguf tokenizer",
    "gguftools graft model.gguf -o fewer.gguf --drop-experts 25% -f calibration.txt",
    "gguftools graft model.gguf -o short.gguf --drop-layers 20-23 --measure t.txt",
)
GROUP = "Edit"
PANELS = {
    "Dropping experts": ("drop_experts", "merge_experts", "allow_requantize", "file", "imatrix"),
    "Measuring the result": ("measure", "ctx", "chunks"),
}


def graft(
    target: Annotated[Path, Argument(help="GGUF file to copy (of a split set, any shard); it is not changed.")],
    output: Annotated[str, "file or folder."],
    donors: Annotated[
        list[Any] | None,
        Option("--from", help="Take what matches from this file: REGEX, key:REGEX, mtp, tokenizer, template, …"),
    ] = None,
    drop: Annotated[list[str] | None, "Leave out what matches: REGEX, key:REGEX, mtp, template, …"] = None,
    drop_layers: Annotated[Any, "Leave out layers, e.g. 3,5-7; the rest is renumbered."] = None,
    drop_experts: Annotated[str | None, "Leave out experts of each layer: 25%, 8, 2groups, or a file of them."] = None,
    merge_experts: Annotated[bool, "Average each dropped expert into the most similar one that stays."] = False,
    allow_requantize: bool = False,
    file: Annotated[
        Path | None, Option("--file", "-f", help="Text to read (- for stdin): it scores the experts (REAP).")
    ] = None,
    imatrix: Path | None = None,
    measure: Annotated[Path | None, "Measure the KL divergence from TARGET on this text."] = None,
    ctx: int = 512,
    chunks: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    overwrite: bool = False,
    threads: int | None = None,
    json: bool = False,
) -> None:
    from ...lab.grafting import ExpertOptions, GraftOptions
    from ...lab.grafting import graft as run
    from ...writing.options import WriteOptions
    from ..ui import bytes_progress, print_result

    experts = None
    if drop_experts is not None:
        experts = ExpertOptions(drop_experts, file, imatrix, merge_experts, allow_requantize)
    with bytes_progress(f"graft {target.name}") as progress:
        report = run(
            target,
            output,
            donors or (),
            drop=drop or (),
            drop_layers=drop_layers or (),
            experts=experts,
            options=GraftOptions(force, measure, ctx, chunks),
            write=WriteOptions(threads, progress=progress, dry_run=dry_run, overwrite=overwrite),
        )
    if not print_result(report, json, [] if report.dry_run else [report.path]):
        _print(report)


def _print(report: "GraftReport") -> None:
    from ..ui import print_line, print_table, print_traffic, size

    if report.moved:
        rows = [(each.name, each.donor.name, each.donor_name, size(each.nbytes)) for each in report.moved]
        print_table(None, ("tensor", "from", "where it is", "bytes"), rows, "lllr")
    for change in report.keys:
        for line in change.lines():
            print_line(line)
    if report.removed:
        print_line(
            f"{len(report.removed)} tensors are left out: {', '.join(report.removed[:3])}"
            + (", …" if len(report.removed) > 3 else "")
        )
    if report.experts:
        lost = [(str(layer), ", ".join(map(str, numbers))) for layer, numbers in report.experts.items()]
        print_table(None, ("layer", "experts left out"), lost, "rl")
    verb = "would be" if report.dry_run else "is"
    print_line(f"{report.path} {verb} {size(report.nbytes)}")
    if report.divergence is not None:
        cost = report.divergence.files[0].kl_divergence
        print_line(f"KL divergence {cost['mean']:.5f} ± {cost['standard_error']:.5f}")
    print_traffic(report.traffic)
