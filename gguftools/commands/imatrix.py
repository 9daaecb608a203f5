"""Measure which weights matter while a model reads a text, for `quantize --imatrix`."""

from pathlib import Path
from typing import Annotated

from typer import Argument

EXAMPLES = ("gguftools imatrix model-f16.gguf -f calibration.txt -o imatrix.gguf",)


def imatrix(
    model: Annotated[Path, Argument(help="GGUF file, best unquantized.")],
    file: Path,
    output: Annotated[str, "a file; .dat for the legacy form."],
    ctx: int = 512, chunks: int | None = None,
    process_output: Annotated[bool, "Also measure the weights of the head."] = False,
    overwrite: bool = False, threads: int | None = None, json: bool = False,
) -> None:  # fmt: skip
    from ..console.ui import note, note_slow_products, print_json, print_matrix, window_progress
    from ..measurement.importance import imatrix
    from ..measurement.perplexity import context_warning
    from ..model import opened_gguf

    source = opened_gguf(model)
    if warning := context_warning(source, ctx):
        note(f"warning: {warning}")
    note_slow_products(threads)
    with window_progress(f"read with {model.name}") as progress:
        matrix = imatrix(
            source, file, output, n_ctx=ctx, chunks=chunks, with_output=process_output, threads=threads,
            overwrite=overwrite, progress=progress,
        )  # fmt: skip
    print_json(matrix) if json else print_matrix(matrix)
