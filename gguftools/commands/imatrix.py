"""`gguftools imatrix`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

EXAMPLES = ("gguftools imatrix model-f16.gguf -f calibration.txt -o imatrix.gguf",)


def imatrix(
    model: Annotated[Path, Argument(help="GGUF file, best unquantized.")],
    file: Annotated[Path, Option("--file", "-f", help="Text for the model to read.")],
    output: Annotated[Path, Option("--output", "-o", help="Matrix to write; .dat for the legacy form.")],
    ctx: Annotated[int, Option("--ctx", "-c", help="Tokens of a window.")] = 512,
    chunks: Annotated[int | None, Option("--chunks", help="Read the first so many windows only.")] = None,
    process_output: Annotated[bool, Option("--process-output", help="Also measure the weights of the head.")] = False,
    threads: Annotated[int | None, Option("--threads", "-j", help="Threads; all processors if not given.")] = None,
) -> None:
    """Measure which weights matter while a model reads a text, for `quantize --imatrix`."""
    from ..importance import measure_importance
    from ..progress import window_progress
    from ..ui import print_matrix

    with window_progress(f"read with {model.name}") as progress:
        matrix = measure_importance(
            model, file, output, n_ctx=ctx, chunks=chunks, with_output=process_output, threads=threads,
            progress=progress,
        )  # fmt: skip
    print_matrix(matrix)
