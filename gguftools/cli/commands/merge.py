"""Merge the shards of a split set into one file.

Gives back the file that was split, byte for byte.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument

EXAMPLES = (
    "gguftools merge model-00001-of-00003.gguf",
    "gguftools merge model-00001-of-00003.gguf -o whole.gguf --free",
)
GROUP = "Edit"


def merge(
    shard: Annotated[Path, Argument(help="Any shard of the split set; the others are in the same folder.")],
    output: Annotated[str | None, "file (default PREFIX.gguf next to the shards)."] = None,
    free: Annotated[bool, "Delete each shard once its bytes are safe; if interrupted, run it again."] = False,
    overwrite: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    from ...conversion.shards import merge as run
    from ..ui import bytes_progress, print_shards

    with bytes_progress(f"merge {shard.name}") as progress:
        report = run(shard, output, free=free, overwrite=overwrite, dry_run=dry_run, progress=progress)
    print_shards(report, json, [report.whole])
