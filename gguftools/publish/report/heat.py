"""The page's one scale of colours, and the tables that are coloured by it: divergences and errors of weights."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...metadata.visible import visible
from .numbers import NOTHING, significant
from .results import Measured, Results

EDGES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # from which on a colour is the next
KEYS = (f"< {EDGES[0]:g}", *(f"{edge:g}" for edge in EDGES[:-1]), f"{EDGES[-1]:g} or more")
MARKED = 4  # every so many layers the number of one is written


def step(value: float) -> int:
    """The number of a value's colour."""
    return sum(value >= edge for edge in EDGES)


@dataclass(frozen=True)
class Cell:
    """A figure as it is shown. colour: a class of the page's style. why: the tooltip."""

    text: str
    colour: str
    why: str = ""


def cell(value: float | None, missing: str) -> Cell:
    if value is None:
        return Cell(NOTHING, "none", missing)
    return Cell(significant(value), f"h{step(value)}")


def by_text(results: Results) -> tuple[list[str], list[tuple[str, list[Cell]]]]:
    """Names of texts and, for each file, the mean divergence on each; nothing where there is one text."""
    names = list(dict.fromkeys(name for file in results.files for name in file.texts))
    if len(names) < 2:
        return [], []
    rows = []
    for file in results.files:
        means = [file.texts.get(name, {}).get("kl_divergence.mean") for name in names]
        rows.append((file.label, [cell(mean, "not in the results") for mean in means]))
    return [visible(name) for name in names], rows


@dataclass(frozen=True)
class Grid:
    """Relative errors of a file's weights. columns: (first layer, how many) of each mark.

    rows: name of the tensors, the largest error, and a cell a layer.
    """

    label: str
    columns: list[tuple[int, int]]
    rows: list[tuple[str, str, list[Cell]]]
    has_missing: bool


def grids(files: Sequence[Measured]) -> list[Grid]:
    """A grid for each file, all with the same rows and layers, so that they can be compared by eye."""
    errors = [_by_layer(file) for file in files]
    places = {place for found in errors for place in found}
    if not places:
        return []
    largest = {name: max(found.get(p, 0.0) for found in errors for p in places if p[0] == name) for name, _ in places}
    names = sorted(largest, key=lambda name: (-largest[name], name))
    layers = max(layer for _, layer in places) + 1
    columns = [(first, min(MARKED, layers - first)) for first in range(0, layers, MARKED)]
    made = []
    for file, found in zip(files, errors, strict=True):
        if found:
            rows = [_row(name, layers, found, places) for name in names]
            has_missing = any(each.colour == "none" for _, _, cells in rows for each in cells)
            made.append(Grid(file.label, columns, rows, has_missing))
    return made


def _by_layer(file: Measured) -> dict[tuple[str, int], float]:
    """Relative errors of a file's tensors by name and layer."""
    found = {}
    for name, figures in file.tensors.items():
        error = figures.get("relative", math.nan)
        if (match := re.fullmatch(r"blk\.(\d{1,4})\.(.*?)(?:\.weight)?", name)) and math.isfinite(error) and error > 0:
            found[visible(match[2]), int(match[1])] = error
    return found


def _row(
    name: str, layers: int, found: dict[tuple[str, int], float], places: set[tuple[str, int]]
) -> tuple[str, str, list[Cell]]:
    cells = []
    for layer in range(layers):
        error = found.get((name, layer))
        missing = "unchanged in this file" if (name, layer) in places else "unchanged, or no such tensor"
        shown = cell(error, missing)
        cells.append(Cell(shown.text, shown.colour, f"layer {layer}: {shown.why or shown.text}"))
    largest = max((error for (kind, _), error in found.items() if kind == name), default=None)
    return name, significant(largest, 2), cells
