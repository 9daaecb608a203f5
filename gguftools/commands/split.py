"""`gguftools split`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

EXAMPLES = (
    "gguftools split model.gguf --split-max-size 2G",
    "gguftools split model.gguf --split-max-tensors 100 --dry-run",
)


def split(
    file: Annotated[Path, Argument(help="GGUF file to split.")],
    output: Annotated[
        Path | None, Option("--output", "-o", help="PREFIX of the shards' names; the file's own if not given.")
    ] = None,
    split_max_size: Annotated[
        str | None, Option("--split-max-size", help="Tensor bytes of a shard, as 2G.")
    ] = None,
    split_max_tensors: Annotated[
        int | None, Option("--split-max-tensors", help="Tensors of a shard; 128 if neither is given.")
    ] = None,
    no_tensor_first_split: Annotated[
        bool, Option("--no-tensor-first-split", help="The first shard has the metadata alone.")
    ] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace shards that exist.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Say what would be written, and write nothing.")] = False,
    json: Annotated[bool, Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Cut a GGUF file into shards PREFIX-00001-of-0000N.gguf, named and marked as everyone reads them."""
    from ..progress import bytes_progress
    from ..shards import split as run
    from ..sizes import parse_size
    from ..ui import print_shards

    with bytes_progress(f"split {file.name}") as progress:
        report = run(
            file, output, max_size=parse_size(split_max_size) if split_max_size else None,
            max_tensors=split_max_tensors, metadata_alone=no_tensor_first_split, overwrite=overwrite, dry_run=dry_run,
            progress=progress,
        )  # fmt: skip
    print_shards(report, json)
