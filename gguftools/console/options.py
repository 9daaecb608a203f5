"""Options that several commands have, with one meaning each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

Threads = Annotated[int | None, Option("--threads", "-j", min=1, help="Threads; all processors if not given.")]
Memory = Annotated[str, Option("--memory", help="What running work may hold, such as 512M.")]
Reserve = Annotated[str | None, Option("--reserve", help="Slack in the header for later edits, as 64K.")]
Resume = Annotated[bool, Option("--resume", help="Go on where an interrupted run stopped.")]
DryRun = Annotated[bool, Option("--dry-run", help="Say what would be written; write nothing.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace what is there.")]
Json = Annotated[bool, Option("--json", help="Print the result as JSON.")]
Markdown = Annotated[bool, Option("--markdown", help="Print tables as Markdown.")]
Context = Annotated[int, Option("--ctx", "-c", min=4, help="Tokens of a window.")]
Chunks = Annotated[int | None, Option("--chunks", min=1, help="Read the first so many windows only.")]
TextFile = Annotated[Path, Option("--file", "-f", help="Text for the model to read.")]
Matrix = Annotated[Path | None, Option("--imatrix", help="Importance matrix, GGUF or legacy form.")]
New = Annotated[bool, Option("--new", help="Add keys that no program is known to read, too.")]
ShardTensors = Annotated[int | None, Option("--split-max-tensors", min=1, help="Tensors of a shard of the output.")]
ShardSize = Annotated[str | None, Option("--split-max-size", help="Tensor bytes of a shard of the output, as 2G.")]


def where(detail: str) -> Any:
    """The option that says where to write; detail: a file or a folder, and which one if it is not given."""
    return Option("--output", "-o", metavar="PATH", help=f"Where to write: {detail}")
