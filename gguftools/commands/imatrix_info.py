"""`gguftools imatrix-info`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from ..options import Json

EXAMPLES = (
    "gguftools imatrix-info imatrix.gguf",
    "gguftools imatrix-info a.gguf b.gguf --merge both.gguf",
)


def imatrix_info(
    files: Annotated[list[Path], Argument(help="Importance matrices, GGUF or legacy form.")],
    merge: Annotated[
        Path | None, Option("--merge", help="Write them as one matrix; .dat for the legacy form (also converts one).")
    ] = None,
    json: Json = False,
) -> None:
    """Examine importance matrices: coverage, what is wrong with them, which layers matter; merge and convert them."""
    from ..imatrix import as_dict, problems, read_imatrix, write_imatrix
    from ..imatrix import merge as merged
    from ..ui import print_json, print_matrix

    matrices = [read_imatrix(path) for path in files]
    if json:
        documents = [as_dict(matrix) for matrix in matrices]
        print_json(documents[0] if len(documents) == 1 else documents)
    else:
        for matrix in matrices:
            print_matrix(matrix)
    if merge is not None:
        write_imatrix(merged(matrices), merge)
    if any(problem.kind in ("non-finite", "negative") for matrix in matrices for problem in problems(matrix)):
        raise Exit(1)
