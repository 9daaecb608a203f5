"""Search recipes of several sizes by one measurement: the trade-off of size and loss."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from archs.diffusion.detection import is_tag
from quants.arguments import PathLike, as_path
from quants.errors import GgufToolsError, OptionError

from ..calibration.target import Target, measured, recipe_for, sizing
from ..calibration.texts import Calibration, as_calibration
from ..io.atomic import atomic_output, check_target
from ..models.model import Model, opened
from ..models.outputs import write_quantized
from ..quantization.imatrix import ImportanceMatrix
from ..quantization.options import QuantizeOptions
from ..quantization.recipes import Recipe
from ..writing.options import WriteOptions
from ..writing.report import OutputReport
from ..writing.row_blocks import Progress

IMAGES = (".svg", ".png")


class Point(NamedTuple):
    """Describe a recipe of the frontier.

    nbytes: of the whole file. predicted, measured: KL divergence, nats per token.
    """

    bits_per_weight: float
    nbytes: int
    predicted: float
    measured: float
    recipe: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "bits_per_weight": self.bits_per_weight,
            "size_bytes": self.nbytes,
            "predicted": self.predicted,
            "measured": self.measured,
            "recipe": self.recipe,
        }


@dataclass(frozen=True)
class Frontier:
    """Hold the recipes for a source, the smallest first."""

    source: Path
    points: tuple[Point, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON of `quantize --frontier --json`."""
        return {"source": str(self.source), "points": [point.as_dict() for point in self.points]}


def frontier(
    source: PathLike | Model,
    bits: Sequence[float],
    *,
    calibrate: PathLike | Sequence[PathLike] | Calibration | None = None,
    plot: PathLike | None = None,
    allow_requantize: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> Frontier:
    """Search for the recipe of each of some sizes; no model is written.

    bits: per weight of tensor data. plot: an image of the result, SVG or PNG; overwrite: replace an existing one.
    calibrate: texts to measure on, default the package's own. allow_requantize: also for quantized weights. threads:
    default all processors. progress(done, of how many, step): called now and then. `quantize` writes files of these
    sizes (`target_bpw`). Raises OptionError for sizes out of reach, before any work if possible, FileError, ModelError.
    """
    targets = [Target(bpw=each) for each in sorted(set(bits))]
    if not targets:
        raise OptionError("no size is named", "give bits per weight, as 3.5,4,4.5")
    model = opened(source)
    if is_tag(model.architecture):
        hint = "`quantize` finds the recipe of each size by errors of weights (`target_bpw`)"
        raise OptionError("image and video models are not run, so their predictions are not measured", hint)
    image = None if plot is None else as_path(plot, "the plot")
    if image is not None:
        if image.suffix.lower() not in IMAGES:
            raise OptionError(f"{image} is no name of an image", f"it ends in {' or '.join(IMAGES)}")
        check_target(image, model.origin.reads, overwrite)
        _check_drawing()
    options, nowhere = QuantizeOptions(allow_requantize=allow_requantize), [model.path.with_name("frontier.gguf")]
    run = WriteOptions(threads, dry_run=True, reads=model.origin.reads)

    def plan(recipe: Recipe, matrix: ImportanceMatrix | None) -> OutputReport:
        return write_quantized(model, [recipe], nowhere, run, matrix, options).outputs[0]

    sizes = sizing(model, plan, lambda tensor: False, allow_requantize)
    for target in targets:
        sizes.check_formats(target)
    calibration = Calibration() if calibrate is None else as_calibration(calibrate)
    points = []
    with measured(model, sizes, calibration, replace(run, progress=progress)) as search:
        for target in targets:
            searched = recipe_for(search, sizes, target, plan)
            output = plan(searched.recipe, searched.matrix)
            points.append(
                Point(
                    output.bits_per_weight,
                    output.nbytes,
                    searched.choice.predicted,
                    searched.choice.measured,
                    searched.text,
                )
            )
    result = Frontier(model.path, tuple(points))
    if image is not None:
        with atomic_output(image, overwrite=overwrite, reads=model.origin.reads) as file:
            _draw(result, file, image.suffix[1:].lower())
    return result


def _check_drawing() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        problem = "drawing needs matplotlib, which is not installed"
        raise GgufToolsError(problem, "pip install 'gguftools[report]'") from error


def _draw(result: Frontier, file: Any, form: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    sizes = [point.bits_per_weight for point in result.points]
    axes.plot(sizes, [point.measured for point in result.points], "o-", label="measured")
    axes.plot(sizes, [point.predicted for point in result.points], "x:", label="predicted")
    axes.set_yscale("log")
    axes.set_xlabel("bits per weight")
    axes.set_ylabel("KL divergence, nats a token")
    axes.set_title(result.source.name)
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(file, format=form, metadata={"Date": None} if form == "svg" else None)
