"""Upload a folder to the Hugging Face hub.

Checks the files first, sends what the repository does not have, and the model card last. An interrupted upload is
continued by the same call. The token is HF_TOKEN or what `hf auth login` saved.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

if TYPE_CHECKING:
    from ...publish.hub.uploading import UploadReport

EXAMPLES = (
    "gguftools upload release/ org/model-GGUF --dry-run",
    "gguftools upload release/ org/model-GGUF --private",
    "gguftools upload release/ org/model-GGUF --create-pr --message 'Add IQ2 files'",
)
GROUP = "Publish"


def upload(
    folder: Annotated[Path, Argument(help="Folder with what is to be uploaded.")],
    repository: Annotated[str, Argument(help="ORG/NAME: made if it is missing.")],
    private: Annotated[bool, "Make a new repository private."] = False,
    revision: str | None = None,
    create_pr: Annotated[bool, "Open a pull request."] = False,
    delete: Annotated[bool, "Also delete files of the repository that FOLDER does not have."] = False,
    exclude: list[str] | None = None,
    message: Annotated[str | None, "Message of the commits."] = None,
    no_check: Annotated[bool, "Upload GGUF files that are not sound, too, with a warning."] = False,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    from ...publish.hub.uploading import UploadOptions
    from ...publish.hub.uploading import upload as run
    from ..ui import bytes_progress, note, print_result

    options = UploadOptions(private, revision, create_pr, delete, exclude or (), message, no_check)
    try:
        with bytes_progress(f"upload to {repository}") as progress:
            report = run(folder, repository, options, dry_run=dry_run, progress=progress)
    except KeyboardInterrupt:
        note("what was committed stays; the same call goes on from there")
        raise
    if not print_result(report, json, [] if dry_run else [report.pull_request or report.url]):
        _print(report)


def _print(report: "UploadReport") -> None:
    from ..ui import print_line, print_table, size

    done = {"new": "uploaded", "changed": "replaced", "equal": "was there", "only there": "only there: kept"}
    rows = [
        (each.file, size(each.size_bytes), each.state if report.dry_run else done.get(each.state, each.state))
        for each in report.files
    ]
    print_table(None, ("file", "size", "state"), rows, "lrl")
    if report.ignored:
        print_line(f"ignored: {', '.join(report.ignored)}")
    place = f"{report.repository}, {report.revision}"
    if report.dry_run:
        made = "; the repository would be made" if report.created else ""
        print_line(f"{size(report.to_upload_bytes)} would be uploaded to {place}{made}")
    elif not report.commits:
        print_line(f"{place} has all files: nothing to do")
    else:
        rate = size(report.to_upload_bytes / max(report.seconds, 1e-9))
        print_line(f"{size(report.to_upload_bytes)} uploaded to {place}; {report.seconds:.1f} s, {rate}/s")
        print_line(report.pull_request or report.url)
