"""Write the report as one HTML page without scripts or external resources, for light, dark and print."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quants.arguments import PathLike
from quants.errors import GgufToolsError

from ...io.atomic import InputFiles, atomic_output, check_target, output_path
from ...metadata.visible import visible
from . import charts, heat
from .card import described, file_name
from .numbers import NOTHING, byte_size, fixed, percent, significant, with_error
from .results import PERCENTILES, Measured, Position, Results, results_of
from .verdict import LIMIT, beaten_by, verdict

SEEN = {"\n": "↵\n", "\t": "⇥\t", "\r": "␍"}  # what has a sign of its own


def write_html(
    data: Mapping[str, Any],
    path: PathLike,
    *,
    source: str = "the results",
    overwrite: bool = False,
    reads: Sequence[PathLike] = (),
) -> None:
    """Write the plain data that `divergence --json` prints as a self-contained page of HTML, UTF-8.

    A file's dict may have `tensors`, too: {name: {"rmse", "relative", "sqnr"}}. source: what messages call the data.
    reads: files that must not be the page.
    Raises FileError where the data are not such a result or the file cannot be written, OptionError where it is read,
    GgufToolsError without the extra `report`.
    """
    target = output_path(path)
    check_html_target(target, overwrite, reads)
    text = html(data, source)
    with atomic_output(target, "w", overwrite, InputFiles(parameter="html").also(reads)) as file:
        file.write(text)


def check_html_target(path: PathLike, overwrite: bool = False, reads: Sequence[PathLike] = ()) -> None:
    """Raise, before long work, the error that writing the page would end with: of its path, of the extra `report`."""
    check_target(output_path(path), InputFiles(parameter="html").also(reads), overwrite)
    with charts.drawing():
        pass


def html(data: Mapping[str, Any], source: str = "the results") -> str:
    """Return the page as text; see `write_html`."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise GgufToolsError("a report needs jinja2, which is not installed", charts.EXTRA) from error
    results = results_of(data, source)
    environment = Environment(
        loader=PackageLoader("gguftools.publish.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    with charts.drawing():
        images = list(_images(results))
    columns, rows = _rows(results)
    return environment.get_template("report.html.jinja").render(
        results=results,
        base=file_name(results.base),
        described=described(results),
        facts=_facts(results),
        verdict=verdict(results),
        columns=columns,
        missing=[name for name in COLUMNS if name not in columns],
        rows=rows,
        images=images,
        percentiles=_percentiles(results),
        texts=heat.by_text(results),
        grids=heat.grids(results.files),
        tensors=[(f.label, _worst_tensors(f)) for f in results.files if f.tensors],
        without_tensors=[f.label for f in results.files if not f.tensors],
        worst=[(f, [_shown(p) for p in f.worst]) for f in results.files],
        limit=LIMIT,
        keys=heat.KEYS,
    )


@dataclass(frozen=True)
class EmbeddedImage:
    """Hold a chart with its title and caption."""

    name: str
    title: str
    caption: str
    svg: str


def _images(results: Results) -> Iterator[EmbeddedImage]:
    """Draw the charts that the results have data for."""
    files = results.files
    for name, title, caption, draw, is_drawn in IMAGES:
        if image := draw(files):
            missing = [file.label for file in files if not is_drawn(file)]
            more = f" Not in the results: {', '.join(missing)}." if missing else ""
            yield EmbeddedImage(name, title, caption + more, image)


IMAGES: Sequence[tuple[str, str, str, Callable[[Sequence[Measured]], str], Callable[[Measured], bool]]] = (
    (
        "frontier",
        "Size against divergence",
        "Lower and further left is better. Grey: another file is no larger and measurably closer to the base. Bars are"
        " two standard errors.",
        charts.frontier,
        charts.has_size,
    ),
    (
        "distribution",
        "Distribution of the divergence",
        "How many predictions diverge by how much. Black: the mean. Orange: 99 % of the predictions are left of it.",
        charts.distributions,
        charts.has_histogram,
    ),
    (
        "changes",
        "Probability of the right token",
        "Dot: median change. Thick bar: half of the predictions. Pale bar: 90 %. Line: 98 %. Left of 0 the file gives"
        " the right token less than the base does.",
        charts.changes,
        charts.has_changes,
    ),
    (
        "positions",
        "Divergence by position",
        "A line that rises: the divergence grows with the context.",
        charts.by_position,
        charts.has_positions,
    ),
    (
        "settling",
        "Running mean",
        "The mean over the windows read so far. A line that is level at its end: the text was long enough.",
        charts.settling,
        charts.has_windows,
    ),
)


def _facts(results: Results) -> list[tuple[str, str]]:
    get = results.figures.get
    facts = [
        ("base", visible(results.base)),
        ("perplexity of the base", with_error(get("base_perplexity"), get("base_perplexity_standard_error"))),
        ("entropy of the base", f"{significant(get('base_entropy'))} nats"),
        ("window", f"{get('n_ctx', 0):.0f} tokens"),
        ("predictions scored", f"{results.scored:,}"),
        ("arithmetic", ", ".join(filter(None, (results.precision, results.products)))),
        ("device", visible(results.device)),
        ("noise floor", f"{get('noise_floor', 0.0):.1e} nats" if "noise_floor" in results.figures else ""),
    ]
    return [(name, value) for name, value in facts if value and not value.startswith((NOTHING, "0 tok"))]


@dataclass(frozen=True)
class Row:
    """Hold a row of the table of all files. bar: length of the bar under its divergence, in per cent."""

    label: str
    path: str
    cells: list[str]
    kl: str
    bar: float
    best: bool


COLUMNS = (
    "size",
    "bits per weight",
    "perplexity",
    "PPL ratio",
    "99.9 % KL",
    "same top",
    "flips",
    "RMS Δp",
    "acceptance",
)


def _rows(results: Results) -> tuple[list[str], list[Row]]:
    """Return the columns that any file has a figure for, and the rows."""
    files = results.files
    logs = [math.log10(max(file.kl, charts.MIN_KL)) for file in files if math.isfinite(file.kl)] or [0.0]
    low, high = min(logs) - 0.5, max(logs)
    cells = [_cells(file) for file in files]
    kept = [n for n in range(len(COLUMNS)) if any(not row[n].endswith(NOTHING) for row in cells)]
    rows = []
    for file, own in zip(files, cells, strict=True):
        place = math.log10(max(file.kl, charts.MIN_KL)) if math.isfinite(file.kl) else high
        kl = "≥ " * file.lower_bound + with_error(file.kl, file.figures.get("kl_divergence.standard_error"))
        bar = round(100 * (place - low) / (high - low), 1)
        best = beaten_by(file, files) is None
        rows.append(Row(file.label, visible(file.path), [own[n] for n in kept], kl, bar, best))
    return [COLUMNS[n] for n in kept], rows


def _cells(file: Measured) -> list[str]:
    """Return a file's figures of COLUMNS."""
    get = file.figures.get
    p99_9 = significant(get("kl_divergence.p99_9"))
    return [
        byte_size(get("size_bytes")),
        fixed(get("bits_per_weight"), 2),
        with_error(file.figures["perplexity"], get("perplexity_standard_error")),
        significant(get("perplexity_ratio"), 5),
        p99_9 if p99_9 == NOTHING else "≥ " * file.lower_bound + p99_9,
        percent(get("same_top")),
        percent(get("flips")),
        percent(get("p_change.rms")),
        percent(get("acceptance.mean")),
    ]


def _percentiles(results: Results) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return names of columns and, for each file, percentiles of the divergence."""
    keys = [key for key in PERCENTILES if any(f"kl_divergence.{key}" in file.figures for file in results.files)]
    names = {key: f"{key[1:].replace('_', '.')} %" for key in keys if key.startswith("p")}
    rows = [(f.label, [significant(f.figures.get(f"kl_divergence.{key}")) for key in keys]) for f in results.files]
    return [names.get(key, key) for key in keys], rows


def _worst_tensors(file: Measured, count: int = 8) -> list[tuple[str, str, str]]:
    """Return name, relative error and SQNR of the tensors with the largest errors."""
    errors = {name: figures.get("relative", 0.0) for name, figures in file.tensors.items()}
    worst = sorted(errors, key=lambda name: -errors[name])[:count]
    return [(visible(name), significant(errors[name]), fixed(file.tensors[name].get("sqnr"), 1)) for name in worst]


@dataclass(frozen=True)
class Passage:
    """Hold a bad prediction as it is shown. tokens: text, number of the colour, divergence, whether it is predicted."""

    place: str
    kl: str
    expected: str
    p_base: str
    p: str
    base_top: str
    top: str
    tokens: list[tuple[str, int, str, bool]]


def _shown(worst: Position) -> Passage:
    place = [visible(worst.text) or "text", *([f"window {worst.window + 1}"] if worst.window is not None else [])]
    if worst.position is not None:
        place.append(f"token {worst.position}")
    around = worst.passage or [(worst.before, 0.0), (worst.token, worst.kl or 0.0)]
    centre = _centre(around, worst)
    tokens = [(_seen(text), heat.step(kl), significant(kl), n == centre) for n, (text, kl) in enumerate(around)]
    return Passage(
        ", ".join(place),
        significant(worst.kl),
        _seen(worst.token, inline=True),
        percent(worst.p_base, 1),
        percent(worst.p, 1),
        _seen(worst.base_top, inline=True),
        _seen(worst.top, inline=True),
        tokens,
    )


def _centre(around: Sequence[tuple[str, float]], worst: Position) -> int:
    """Return which token of a passage is the predicted one: of equal texts, the one with the closest divergence."""
    same = [n for n, (text, _) in enumerate(around) if text == worst.token]
    return min(same, key=lambda n: abs(around[n][1] - (worst.kl or 0.0)), default=-1)


def _seen(text: str, inline: bool = False) -> str:
    """Return a token's text with signs for invisible characters; inline: on one line."""
    signs = "".join(SEEN.get(character, visible(character)) for character in text)
    return signs.replace("\n", "").replace("\t", "") if inline else signs
