"""Fetch a model from the Hugging Face hub into a folder.

Of a checkpoint, fetches what convert reads; of GGUF files, those that --include names, with their mmproj. Each file is
checked by its digest. An interrupted run is continued by the same call.
"""

from typing import TYPE_CHECKING, Annotated

from typer import Argument

if TYPE_CHECKING:
    from ...publish.hub.fetching import FetchedFile, FetchReport

EXAMPLES = (
    "gguftools fetch org/model",
    "gguftools fetch org/model --revision v1.1 -o checkpoint/ --dry-run",
    "gguftools fetch org/model-GGUF --include '*Q4_K_M*' -o models/",
)
GROUP = "Publish"
SHOWN = 12  # files that are left out


def fetch(
    model: Annotated[str, Argument(help="ORG/MODEL or hf://ORG/MODEL[@REVISION].")],
    output: Annotated[str | None, "folder (default ./MODEL)."] = None,
    include: Annotated[list[str] | None, "Fetch files that match, such as '*Q4_K_M*', and their mmproj."] = None,
    exclude: list[str] | None = None,
    revision: str | None = None,
    recheck: Annotated[bool, "Read the files of earlier runs again, to compare their digests."] = False,
    overwrite: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    from quants.errors import OptionError

    from ...publish.hub.fetching import fetch as run
    from ...publish.hub.fetching import repository_name
    from ..ui import bytes_progress, print_result

    name = repository_name(model)
    if revision is not None:
        if "@" in name:
            raise OptionError(f"{model} names a revision, and --revision {revision} another", "give it once")
        name = f"{name}@{revision}"
    with bytes_progress(f"fetch {name.removeprefix('hf://')}") as progress:
        report = run(
            name,
            output,
            include=include or (),
            exclude=exclude or (),
            overwrite=overwrite,
            recheck=recheck,
            dry_run=dry_run,
            progress=progress,
        )
    if not print_result(report, json, [] if dry_run else [report.folder / each.file for each in report.files]):
        _print(report)


def _print(report: "FetchReport") -> None:
    from ..ui import print_line, print_table, size

    wanted, commit = report.to_fetch_bytes, report.commit[:12]
    if not wanted and not report.dry_run and not report.fetched:
        print_line(f"{report.folder} has all files of {report.repository}, commit {commit}: nothing to do")
        return
    rows = [(each.file, size(each.size_bytes), _state(each, report.dry_run)) for each in report.files]
    print_table(None, ("file", "size", "state"), rows, "lrl")
    left = sorted((each for each in report.left_out if each.reason != "not chosen"), key=lambda each: -each.size_bytes)
    if left:
        shown = [(each.file, size(each.size_bytes), each.reason) for each in left[:SHOWN]]
        print_table("left out", ("file", "size", "why"), shown, "lrl")
    if len(left) > SHOWN:
        print_line(f"and {len(left) - SHOWN} more files of {size(sum(each.size_bytes for each in left[SHOWN:]))}")
    if report.dry_run:
        enough = "enough" if report.free_bytes >= wanted else "NOT enough"
        print_line(f"{size(wanted)} would be fetched to {report.folder}, commit {commit}")
        print_line(f"{size(report.free_bytes)} free on the disk: {enough}")
        return
    rate = size(wanted / max(report.seconds, 1e-9))
    print_line(f"{size(wanted)} fetched to {report.folder}, commit {commit}; {report.seconds:.1f} s, {rate}/s")


def _state(file: "FetchedFile", dry_run: bool) -> str:
    from ..ui import size

    if dry_run:
        return f"{file.state}, {size(file.resumed_bytes)} there" if file.resumed_bytes else file.state
    if file.resumed_bytes:
        return f"fetched, after {size(file.resumed_bytes)} of an earlier run"
    return {"new": "fetched", "equal": "was there"}.get(file.state, "replaced")
