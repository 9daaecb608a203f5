"""Split a GGUF file into shards PREFIX-00001-of-0000N.gguf.

Without a limit, shards have 128 tensors each.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument

EXAMPLES = (
    "gguftools split model.gguf --split-max-size 2G",
    "gguftools split model.gguf --split-max-tensors 100 --dry-run",
)
GROUP = "Edit"


def split(
    file: Annotated[Path, Argument(help="GGUF file to split.")],
    output: Annotated[str | None, "PREFIX of the shards' names (default: the file's own)."] = None,
    split_max_size: int | None = None,
    split_max_tensors: int | None = None,
    no_tensor_first_split: Annotated[bool, "Put only metadata into the first shard."] = False,
    overwrite: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    from ...conversion.shards import split as run
    from ..ui import bytes_progress, note, print_shards

    with bytes_progress(f"split {file.name}") as progress:
        report = run(
            file,
            output,
            max_size=split_max_size,
            max_tensors=split_max_tensors,
            metadata_alone=no_tensor_first_split,
            overwrite=overwrite,
            dry_run=dry_run,
            progress=progress,
        )
    if split_max_size is not None and (count := report.oversized(split_max_size)) > len(report.shards) / 2:
        note(f"warning: {count} of {len(report.shards)} shards have one tensor, which is larger than --split-max-size")
    print_shards(report, json, [shard.path for shard in report.shards])
