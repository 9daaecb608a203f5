"""Make or apply a delta between two versions of a file.

`patch make OLD NEW -o DELTA`, `patch apply OLD DELTA -o NEW`.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument

from ..options import complete

EXAMPLES = (
    "gguftools patch make old.gguf new.gguf -o change.gguf",
    "gguftools patch apply old.gguf change.gguf -o new.gguf",
)
GROUP = "Publish"


def patch(
    action: Annotated[
        str, Argument(autocompletion=complete("ACTION"), help="make (a delta) or apply (a delta to OLD).")
    ],
    old: Annotated[Path, Argument(help="The old version (of a split set, any shard).")],
    other: Annotated[Path, Argument(metavar="NEW-OR-DELTA", help="make: the new version. apply: the delta.")],
    output: Annotated[str, "file or folder."],
    trust: Annotated[bool, "apply, in a store: verify OLD only by its size if the delta knows no version."] = False,
    dry_run: bool = False,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    from ...lab.patching import patch as run
    from ..ui import bytes_progress, print_line, print_result, print_traffic, size, usage

    if trust and action == "make":
        usage("--trust goes with apply", "make verifies nothing: it reads both files")
    flags = {"trust": trust, "overwrite": overwrite, "dry_run": dry_run}
    with bytes_progress(f"patch {old.name}") as progress:
        report = run(action, old, other, output, **flags, progress=progress)  # type: ignore[arg-type]
    if print_result(report, json, [] if report.dry_run else report.paths):
        return
    verb = "would be" if report.dry_run else "is" if len(report.paths) == 1 else "and its other shards are"
    print_line(f"{report.paths[0]} {verb} {size(report.nbytes)}")
    print_line(f"{size(report.copied)} as they were, {size(report.fresh)} of new bytes, in {report.ranges} ranges")
    print_traffic(report.traffic)
