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
    from ...inspection.importance import imatrix_info as examine
    from ...inspection.importance import merge_imatrices
    from ...models.model import model_of_weights
    from ..ui import named_progress, note, print_json, print_line, print_matrix

    model = None if check_model is None else model_of_weights(check_model)
    reports, merged = [], None
    with named_progress("examine") as progress:
        for i, path in enumerate(matrices):
            progress(i, len(matrices), path.name)
            reports.append(examine(path, model, statistics=show_statistics))
        progress(len(matrices), len(matrices), "")
    if merge is not None:
        given = [each.matrix for each in reports]
        merged = merge_imatrices(
            given, merge, fill=model if fill else None, min_rows=min_rows or 0, overwrite=overwrite
        )
    if json:
        print_json(reports[0] if len(reports) == 1 else reports)
    for each in () if json else reports:
        print_matrix(each.matrix, each.findings)
        if each.statistics:
            _print_statistics(each.statistics)
        if model is not None and not each.findings:
            print_line(f"{each.matrix.path} has all that {model.path} needs")
    for line in merged.remarks if merged else ():
        note(line)
    if any(each.has_errors for each in reports):
        raise Exit(1)


def _print_statistics(statistics: "MatrixStatistics") -> None:
    from ..ui import print_table

    def shown(value: float | None, places: int = 4) -> str:
        return "-" if value is None else f"{value:.{places}f}"

    columns = ("mean", "deviation", "skewness", "kurtosis", "entropy", "sum of squares", "gain")
    comparisons = ("distance", "cosine", "Pearson", "covariance")
    rows = [
        (
            name,
            *map(shown, (each.mean, each.deviation, each.skewness, each.kurtosis)),
            shown(each.entropy),
            shown(each.energy),
            shown(each.gain, 2),
            *map(shown, (each.distance, each.cosine, each.pearson, each.covariance)),
        )
        for name, each in statistics.tensors.items()
    ]
    print_table(None, ("weight", *columns, *comparisons), rows, "l" + "r" * 11)
    layers = [
        (
            str(layer),
            shown(each.energy),
            shown(each.gain, 2),
            *map(shown, (each.distance, each.cosine, each.pearson, each.covariance)),
        )
        for layer, each in statistics.layers.items()
    ]
    print_table(None, ("layer", "sum of squares", "gain", *comparisons), layers, "r" * 7)
