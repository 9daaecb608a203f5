"""Colour the page's heatmaps, divergences and errors of weights, by one scale."""

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
    """Return the number of a value's colour."""
    return sum(value >= edge for edge in EDGES)


@dataclass(frozen=True)
class Cell:
    """Hold a figure as it is shown. colour: a class of the page's style. why: the tooltip."""

    text: str
    colour: str
    why: str = ""


def cell(value: float | None, missing: str) -> Cell:
    if value is None:
        return Cell(NOTHING, "none", missing)
    return Cell(significant(value), f"h{step(value)}")


def by_text(results: Results) -> tuple[list[str], list[tuple[str, list[Cell]]]]:
    """Return names of texts and each file's mean divergence on them; nothing if there is only one text."""
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
    """Hold relative errors of a file's weights. columns: (first layer, how many) of each mark.

    rows: name of the tensors, the largest error, and a cell a layer.
    """

    label: str
    columns: list[tuple[int, int]]
    rows: list[tuple[str, str, list[Cell]]]
    has_missing: bool


def grids(files: Sequence[Measured]) -> list[Grid]:
    """Return a grid for each file, all with the same rows and layers, so that they can be compared by eye."""
    errors = [_by_layer(file) for file in files]
    places = {place for file_errors in errors for place in file_errors}
    if not places:
        return []
    largest = {name: max(each.get(p, 0.0) for each in errors for p in places if p[0] == name) for name, _ in places}
    names = sorted(largest, key=lambda name: (-largest[name], name))
    layers = max(layer for _, layer in places) + 1
    columns = [(first, min(MARKED, layers - first)) for first in range(0, layers, MARKED)]
    made = []
    for file, file_errors in zip(files, errors, strict=True):
        if file_errors:
            rows = [_row(name, layers, file_errors, places) for name in names]
            has_missing = any(each.colour == "none" for _, _, cells in rows for each in cells)
            made.append(Grid(file.label, columns, rows, has_missing))
    return made


def _by_layer(file: Measured) -> dict[tuple[str, int], float]:
    """Return relative errors of a file's tensors by name and layer."""
    errors = {}
    for name, figures in file.tensors.items():
        error = figures.get("relative", math.nan)
        if (match := re.fullmatch(r"blk\.(\d{1,4})\.(.*?)(?:\.weight)?", name)) and math.isfinite(error) and error > 0:
            errors[visible(match[2]), int(match[1])] = error
    return errors


def _row(
    name: str, layers: int, errors: dict[tuple[str, int], float], places: set[tuple[str, int]]
) -> tuple[str, str, list[Cell]]:
    cells = []
    for layer in range(layers):
        error = errors.get((name, layer))
        missing = "unchanged in this file" if (name, layer) in places else "unchanged, or no such tensor"
        shown = cell(error, missing)
        cells.append(Cell(shown.text, shown.colour, f"layer {layer}: {shown.why or shown.text}"))
    largest = max((error for (tensor, _), error in errors.items() if tensor == name), default=None)
    return name, significant(largest, 2), cells
