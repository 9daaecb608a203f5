"""Examine importance matrices: coverage, what is wrong with them, which layers matter; merge and convert them."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit

EXAMPLES = ("gguftools imatrix-info imatrix.gguf", "gguftools imatrix-info a.gguf b.gguf --merge both.gguf")


def imatrix_info(
    files: Annotated[list[Path], Argument(help="Importance matrices, GGUF or legacy form.")],
    merge: Annotated[str | None, "Write them as one matrix; .dat for the legacy form (also converts one)."] = None,
    overwrite: bool = False, json: bool = False,
) -> None:  # fmt: skip
    from ..console.ui import print_json, print_matrix
    from ..files.atomic import NOTHING, check_target, output_path
    from ..quantization.imatrix import merge as merged
    from ..quantization.imatrix import problems, read_imatrix, write_imatrix

    target = None if merge is None else output_path(merge)
    if target is not None:
        check_target(target, NOTHING.also(files), overwrite)
    matrices = [read_imatrix(path) for path in files]
    if json:
        print_json(matrices[0] if len(matrices) == 1 else matrices)
    else:
        for matrix in matrices:
            print_matrix(matrix)
    if target is not None:
        write_imatrix(merged(matrices), target, overwrite, files)
    if any(problem.kind in ("non-finite", "negative") for matrix in matrices for problem in problems(matrix)):
        raise Exit(1)
