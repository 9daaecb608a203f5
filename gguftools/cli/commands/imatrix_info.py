"""Examine, merge and convert importance matrices.

Shows coverage, defects and the importance of layers. Converts between GGUF and the legacy .dat form.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

if TYPE_CHECKING:
    from ...quantization.imatrix_statistics import MatrixStatistics

EXAMPLES = (
    "gguftools imatrix-info imatrix.gguf --show-statistics",
    "gguftools imatrix-info imatrix.gguf --check-model model-f16.gguf",
    "gguftools imatrix-info a.gguf b.gguf --merge both.gguf",
    "gguftools imatrix-info a.gguf --merge b.gguf --check-model model.gguf --fill",
)
GROUP = "Inspect"


def imatrix_info(
    matrices: Annotated[list[Path], Argument(help="Importance matrices (GGUF or legacy .dat).")],
    show_statistics: Annotated[bool, "Show llama-imatrix's statistics of every tensor and layer."] = False,
    check_model: Annotated[Path | None, "Model that the matrix is for: report missing tensors and sparse data."] = None,
    merge: Annotated[str | None, "Write them as one matrix (.dat for the legacy form); also converts one."] = None,
    fill: Annotated[bool, "Fill tensors without data from tensors with the same input."] = False,
    min_rows: Annotated[
        int | None, Option("--min-rows", min=1, help="Fill experts with fewer inputs than N by the mean of all.")
    ] = None,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    from ...io.atomic import InputFiles, check_target, output_path
    from ...models.model import model_of_weights
    from ...quantization.imatrix import merge as merged
    from ...quantization.imatrix import read_imatrix, write_imatrix
    from ...quantization.imatrix_doctor import examine, filled
    from ...quantization.imatrix_statistics import statistics
    from ..ui import note, print_json, print_line, print_matrix

    target = None if merge is None else output_path(merge)
    model = None if check_model is None else model_of_weights(check_model)
    reads = [*matrices, *([] if model is None else model.files)]
    if target is not None:
        check_target(target, InputFiles(option="--merge").also(reads), overwrite)
    read = [read_imatrix(path) for path in matrices]
    tensors = None if model is None else model.tensors
    found = [examine(matrix, tensors) for matrix in read]
    shown = []
    for matrix, findings in zip(read, found, strict=True):
        figures = statistics(matrix.entries, matrix.next_layers) if show_statistics else None
        if json:
            more = {"findings": [vars(finding) for finding in findings]}
            shown.append(matrix.as_dict() | more | ({"statistics": figures.as_dict()} if figures else {}))
            continue
        print_matrix(matrix, findings)
        if figures:
            _print_statistics(figures)
        if model is not None and not findings:
            print_line(f"{matrix.path} has all that {model.path} needs")
    if json:
        print_json(shown[0] if len(shown) == 1 else shown)
    if target is not None:
        matrix, said = filled(merged(read), tensors if fill else None, min_rows or 0)
        for line in said:
            note(line)
        write_imatrix(matrix, target, overwrite, reads)
    if any(finding.severity == "error" for findings in found for finding in findings):
        raise Exit(1)


def _print_statistics(found: "MatrixStatistics") -> None:
    from ..ui import print_table

    def shown(value: float | None, places: int = 4) -> str:
        return "-" if value is None else f"{value:.{places}f}"

    columns = ("mean", "deviation", "skewness", "kurtosis", "entropy", "sum of squares", "gain")
    beside = ("distance", "cosine", "Pearson", "covariance")
    rows = [
        (
            name,
            *map(shown, (each.mean, each.deviation, each.skewness, each.kurtosis)),
            shown(each.entropy),
            shown(each.energy),
            shown(each.gain, 2),
            *map(shown, (each.distance, each.cosine, each.pearson, each.covariance)),
        )
        for name, each in found.tensors.items()
    ]
    print_table(None, ("weight", *columns, *beside), rows, "l" + "r" * 11)
    layers = [
        (
            str(layer),
            shown(each.energy),
            shown(each.gain, 2),
            *map(shown, (each.distance, each.cosine, each.pearson, each.covariance)),
        )
        for layer, each in found.layers.items()
    ]
    print_table(None, ("layer", "sum of squares", "gain", *beside), layers, "r" * 7)
