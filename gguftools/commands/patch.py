"""Make a delta between two versions of a file, or apply it: make OLD NEW -o DELTA, apply OLD DELTA -o NEW."""

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

EXAMPLES = (
    "gguftools patch make old.gguf new.gguf -o change.gguf",
    "gguftools patch apply old.gguf change.gguf -o new.gguf",
)


def patch(
    action: Annotated[str, Argument(help="make a delta of OLD and a new file; or apply a delta to OLD.")],
    old: Annotated[Path, Argument(help="The file as it was (of a split set, any shard).")],
    other: Annotated[Path, Argument(metavar="NEW-OR-DELTA", help="make: the new file. apply: the delta.")],
    output: Annotated[str, Option("--output", "-o", metavar="PATH", help="Where to write: a file, or a folder.")],
    trust: Annotated[bool, "apply, in a store: verify OLD by its size alone where the delta knows no version."] = False,
    dry_run: bool = False,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    from ..console.ui import bytes_progress, print_line, print_traffic, said, size, usage
    from ..conversion.patch import apply_patch, check_action, make_patch

    check_action(action)
    if trust and action == "make":
        usage("--trust goes with apply", "make verifies nothing: it reads both files")
    run = make_patch if action == "make" else partial(apply_patch, trust=trust)
    with bytes_progress(f"patch {old.name}") as progress:
        report = run(old, other, output, overwrite=overwrite, dry_run=dry_run, progress=progress)
    if said(report, json, [] if report.dry_run else report.paths):
        return
    verb = "would be" if report.dry_run else "is" if len(report.paths) == 1 else "and its other shards are"
    print_line(f"{report.paths[0]} {verb} {size(report.nbytes)}")
    print_line(f"{size(report.copied)} as they were, {size(report.fresh)} of new bytes, in {report.ranges} ranges")
    print_traffic(report.traffic)
