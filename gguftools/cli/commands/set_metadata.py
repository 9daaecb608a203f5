"""Change metadata of a GGUF file, in place where it fits.

Otherwise writes a copy and replaces the file atomically. Tensors are not changed.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from ..options import complete

if TYPE_CHECKING:
    from ...metadata.edit import EditReport

EXAMPLES = (
    "gguftools set-metadata model.gguf general.name='My model'",
    "gguftools set-metadata model.gguf --chat-template @template.jinja --dry-run",
    "gguftools set-metadata model.gguf --remove general.url -o copy.gguf",
    "gguftools set-metadata s3://models/big.gguf --chat-template @new.jinja",
)
GROUP = "Edit"


def set_metadata(
    file: Annotated[Path, Argument(help="GGUF file to edit (of a split set, any shard).")],
    assignments: Annotated[
        list[str] | None,
        Argument(
            metavar="KEY=VALUE…",
            autocompletion=complete("ASSIGNMENT"),
            help="Values to set; KEY=@FILE reads a file; KEY[INDEX]=VALUE sets one item of an array.",
        ),
    ] = None,
    from_json: Annotated[Path | None, "Set the values of a JSON object."] = None,
    type: Annotated[list[str] | None, "Type of a key, e.g. UINT32 or ARRAY/INT8 (default: unchanged)."] = None,
    remove: Annotated[list[str] | None, "Remove a key."] = None,
    rename: Annotated[list[str] | None, "Rename a key."] = None,
    chat_template: Annotated[str | None, "Jinja text or @FILE; tried on sample conversations first."] = None,
    special_token: Annotated[list[str] | None, "Set a special token by text or id, e.g. eos=<|im_end|>."] = None,
    output: Annotated[str | None, "file; FILE is not changed then."] = None,
    reserve: int | None = None,
    force: bool = False,
    new: bool = False,
    overwrite: bool = False,
    recover: Annotated[bool, "First complete an interrupted edit, or the writing of an interrupted set."] = False,
    roll_back: Annotated[bool, "First undo an interrupted edit, or the writing of an interrupted set."] = False,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    from ...metadata.edit import EditOptions
    from ...metadata.edit import set_metadata as run
    from ..arguments import named_files, once, parse_assignment, read_json_values, split_pair, text_or_file
    from ..edits import operations_of
    from ..ui import bytes_progress, note, print_result, usage

    wanted = (assignments, from_json, type, remove, rename, chat_template, special_token, output, reserve)
    if not any((*wanted, recover, roll_back)):
        usage("no change is given", "KEY=VALUE sets a key, --remove KEY removes one; `gguftools show` lists them")
    values, types = read_json_values(from_json) if from_json else ({}, {})
    operations = operations_of(
        once([*values.items(), *map(parse_assignment, assignments or ())]),
        once([*types.items(), *(split_pair(text, "KEY=TYPE") for text in type or ())]),
        remove or (),
        once(split_pair(text, "OLD=NEW") for text in rename or ()),
        text_or_file(chat_template) if chat_template is not None else None,
        once(split_pair(text, "ROLE=TOKEN") for text in special_token or ()),
    )
    reads = [*named_files([*(assignments or ()), chat_template or ""]), *([from_json] if from_json else [])]
    options = EditOptions(force, new, reserve or 0, reads, recover, roll_back)
    with bytes_progress(f"edit {file.name}") as progress:
        report = run(
            file,
            operations,
            output=output,
            overwrite=overwrite,
            dry_run=dry_run,
            options=options,
            progress=lambda done, total: progress(done, total, ""),
        )
    if report.recovered is not None:
        note(f"interrupted: {report.recovered}")
    if not print_result(report, json, [] if report.dry_run or not report.bytes_written else [report.path]):
        _print(report, output is None)


def _print(report: "EditReport", is_edit: bool) -> None:
    """Print what changed. is_edit: of the file itself, not of a copy."""
    from ..ui import print_line, print_traffic, size

    for change in report.changes:
        for line in change.lines():
            print_line(line)
    if report.preview is not None:
        print_line("a conversation by the new chat template:")
        for line in report.preview.splitlines():
            print_line(f"  | {line}")
    in_store = report.traffic is not None and is_edit
    if report.changes or report.recovered is None:
        how = "in place" if report.in_place else "by a new version" if in_store else "by a copy"
        done = f"was changed {how}, {size(report.bytes_written)} written" if report.bytes_written else "is as it was"
        print_line(f"{report.path} {f'would be changed {how}' if report.dry_run else done}")
    print_traffic(report.traffic)
