"""The whole road on one checkpoint: convert, quantize, measure, so that sizes and quality stand side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .conversion.convert import convert
from .conversion.quantize import quantize
from .io.atomic import NOTHING
from .io.folders import made_folder
from .measurement.perplexity import perplexity
from .measurement.text_tokens import read_text
from .writing.options import WriteOptions
from .writing.report import Report

EXAMPLES = Path(__file__).resolve().parent / "examples"
RECIPES = ("Q8_0", "Q4_K_M", "Q2_K")

Step = Callable[[str], None]


@dataclass(frozen=True)
class Row(Report):
    """One file of the comparison."""

    recipe: str
    file: Path
    bytes: int
    bits_per_weight: float
    perplexity: float
    standard_error: float
    tokens_per_second: float


def example(name: str) -> Path:
    """A file or folder of the examples that come with the package."""
    return EXAMPLES / name


def demo(
    model: Path,
    text: Path,
    folder: Path,
    recipes: Sequence[str] = RECIPES,
    step: Step | None = None,
    overwrite: bool = False,
) -> list[Row]:
    """Convert `model` and quantize the result by every recipe into `folder`; measure all on `text`.

    step: told what is being done. overwrite: replace files that are there.
    """
    tell = step or (lambda what: None)
    write = WriteOptions(overwrite=overwrite, reads=NOTHING.also([text]))
    read_text(text)  # a wrong one is found before anything is written
    with made_folder(folder):
        tell(f"convert {model}")
        converted = convert(model, folder, write=write).outputs[0]
    tell(f"quantize to {', '.join(recipes)}, in one pass")
    write = replace(write, reads=write.reads.also([model]))
    quantized = quantize(converted.file, list(recipes), folder, write=write)
    rows = []
    for output in (converted, *quantized.outputs):
        tell(f"measure {output.file}")
        measured = perplexity(output.file, text)
        figures = measured.perplexity, measured.standard_error, measured.tokens_per_second
        rows.append(Row(output.recipe, output.file, output.nbytes, output.bits_per_weight, *figures))
    return rows
