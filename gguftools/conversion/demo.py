"""Convert a checkpoint, quantize it, and measure what each file costs, so that sizes and quality stand side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quants.arguments import PathLike, as_path
from quants.errors import OptionError
from quants.spelling import did_you_mean, quote

from ..io.atomic import NOTHING
from ..io.folders import made_folder
from ..measurement.perplexity import perplexity
from ..measurement.text_tokens import read_text
from ..writing.options import WriteOptions
from ..writing.report import Report
from .convert import convert
from .quantize import quantize

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
RECIPES = ("Q8_0", "Q4_K_M", "Q2_K")

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Row(Report):
    """A file of the comparison: its size, and its perplexity with the standard error and the speed of measuring."""

    recipe: str
    file: Path
    bytes: int
    bits_per_weight: float
    perplexity: float
    standard_error: float
    tokens_per_second: float


def example(name: str) -> Path:
    """Return the path of an example that comes with the package: "austen-4m", a checkpoint, or "persuasion.txt".

    Raises OptionError for another name.
    """
    known = sorted(path.name for path in EXAMPLES.iterdir())
    if name not in known:
        hint = did_you_mean(str(name), known, f"they are {', '.join(known)}")
        raise OptionError(f"there is no example {quote(name)}", hint)
    return EXAMPLES / name


def demo(
    model: PathLike | None = None,
    text: PathLike | None = None,
    output: PathLike = "demo",
    *,
    recipes: Sequence[str] = RECIPES,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> list[Row]:
    """Convert a checkpoint, quantize it with some recipes, and measure the perplexity of each file on a text.

    model, text: a Hugging Face folder and a file; None for the examples of the package. output: the folder for the
    files. overwrite: replace files that exist. progress(steps done, of how many, next one).
    Raises as `convert`, `quantize` and `perplexity` do.
    """
    model = example("austen-4m") if model is None else as_path(model, "model")
    text = example("persuasion.txt") if text is None else as_path(text, "text")
    folder = as_path(output, "output")
    steps = ["convert", "quantize", "measure the conversion", *(f"measure {recipe}" for recipe in recipes), ""]

    def report(done: int) -> None:
        if progress is not None:
            progress(done, len(steps) - 1, steps[done])

    write = WriteOptions(overwrite=overwrite, reads=NOTHING.also([text]))
    read_text(text)  # a wrong one is found before anything is written
    with made_folder(folder):
        report(0)
        converted = convert(model, folder, write=write).outputs[0]
    report(1)
    write = replace(write, reads=write.reads.also([model]))
    quantized = quantize(converted.file, list(recipes), folder, write=write)
    rows = []
    for done, measured in enumerate((converted, *quantized.outputs), 2):
        report(done)
        result = perplexity(measured.file, text)
        figures = result.perplexity, result.standard_error, result.tokens_per_second
        rows.append(Row(measured.recipe, measured.file, measured.nbytes, measured.bits_per_weight, *figures))
    report(len(steps) - 1)
    return rows
