"""The report as one page of HTML: nothing is fetched, no script runs, it prints, and follows light and dark."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quants.arguments import PathLike
from quants.errors import GgufToolsError

from ...io.atomic import InputFiles, atomic_output, check_target, output_path
from ...metadata.visible import visible
from . import charts
from .card import described, file_name
from .numbers import NOTHING, byte_size, fixed, percent, significant, with_error
from .results import PERCENTILES, Measured, Position, Results, results_of

HEATS = (0.02, 0.08, 0.25, 0.7, 2.0, 5.0)  # nats from which on a token's colour is the next
KEYS = (f"under {HEATS[0]}", *(f"from {each:g}" for each in HEATS))
STEPS = len(KEYS)
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
    with atomic_output(target, "w", overwrite, InputFiles(option="--html").also(reads)) as file:
        file.write(text)


def check_html_target(path: PathLike, overwrite: bool = False, reads: Sequence[PathLike] = ()) -> None:
    """Raise, before long work, the error that writing the page would end with: of its path, of the extra `report`."""
    check_target(output_path(path), InputFiles(option="--html").also(reads), overwrite)
    with charts.drawing():
        pass


def html(data: Mapping[str, Any], source: str = "the results") -> str:
    """The page as text; see `write_html`."""
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
        tensors = [(f, charts.tensor_errors(f, n), _worst_tensors(f)) for n, f in enumerate(results.files) if f.tensors]
    return environment.get_template("report.html.jinja").render(
        results=results,
        base=file_name(results.base),
        described=described(results),
        facts=_facts(results),
        rows=_rows(results),
        verdicts=_verdicts(results),
        images=images,
        percentiles=_percentiles(results),
        domains=_domains(results),
        tensors=tensors,
        worst=[(f, [_shown(p) for p in f.worst]) for f in results.files],
        columns=COLUMNS,
        keys=KEYS,
    )


@dataclass(frozen=True)
class EmbeddedImage:
    """A chart with what it is called and what to see in it."""

    name: str
    title: str
    caption: str
    svg: str


def _images(results: Results) -> Iterator[EmbeddedImage]:
    """Those that the results have data for."""
    files = results.files
    every = (
        (
            "frontier",
            "Size against divergence",
            "Lower and further left is better. Filled: no other file is both"
            " smaller and nearer to the base. Grey: another one is.",
            charts.frontier(files),
        ),
        (
            "distribution",
            "Distribution of the divergence",
            "How many predictions diverge how much: a hill for each"
            " file. Black: the mean. Orange: 99 % are left of it.",
            charts.distributions(files),
        ),
        (
            "changes",
            "The right token's probability",
            "The dot is the median change; thick: half of all predictions;"
            " pale: 90 %; line: 98 %. Left of 0 the file is less sure of the right token.",
            charts.changes(files),
        ),
        (
            "positions",
            "By position in the window",
            "Whether the loss grows with what was read before.",
            charts.by_position(files),
        ),
        (
            "settling",
            "While the text is read",
            "A line that is level at its end says that the text was long enough.",
            charts.settling(files),
        ),
    )
    yield from (EmbeddedImage(*each) for each in every if each[-1])


def _facts(results: Results) -> list[tuple[str, str]]:
    get = results.figures.get
    facts = [
        ("base", visible(results.base)),
        ("perplexity of the base", with_error(get("base_perplexity"), get("base_perplexity_standard_error"))),
        ("entropy of the base", f"{significant(get('base_entropy'))} nats"),
        ("window", f"{get('n_ctx', 0):.0f} tokens"),
        ("predictions scored", f"{results.scored:,}"),
        ("arithmetic", ", ".join(filter(None, (results.precision, results.products)))),
    ]
    return [(name, value) for name, value in facts if value and not value.startswith((NOTHING, "0 tok"))]


@dataclass(frozen=True)
class Row:
    """A file in the table of all. bar: how long the bar behind its divergence is, in per cent."""

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


def _rows(results: Results) -> list[Row]:
    logs = [math.log10(max(file.kl, charts.LEAST_KL)) for file in results.files if math.isfinite(file.kl)] or [0.0]
    low, high = min(logs) - 0.5, max(logs)
    best = charts.frontier_of(results.files)
    rows = []
    for file, good in zip(results.files, best, strict=True):
        get = file.figures.get
        bound = "≥ " if file.lower_bound else ""
        cells = [
            byte_size(get("size_bytes")),
            fixed(get("bits_per_weight"), 2),
            with_error(file.figures["perplexity"], get("perplexity_standard_error")),
            significant(get("perplexity_ratio"), 5),
            bound + significant(get("kl_divergence.p99_9")),
            percent(get("same_top")),
            percent(get("flips")),
            percent(get("p_change.rms")),
            percent(get("acceptance.mean")),
        ]
        place = math.log10(max(file.kl, charts.LEAST_KL)) if math.isfinite(file.kl) else high
        kl = bound + with_error(file.kl, get("kl_divergence.standard_error"))
        rows.append(Row(file.label, visible(file.path), cells, kl, round(100 * (place - low) / (high - low), 1), good))
    return rows


def _verdicts(results: Results) -> list[tuple[str, str]]:
    """What to take away, each with the file that it is about."""
    files = results.files
    if len(files) < 2:
        get = files[0].figures.get
        return [
            ("mean KL divergence", significant(files[0].kl)),
            ("same top token", percent(get("same_top"))),
            ("perplexity", significant(get("perplexity_ratio"), 4) + " × the base's"),
        ]
    nearest = min(files, key=lambda file: file.kl)
    found = [("nearest to the base", f"{nearest.label}, {significant(nearest.kl)} nats")]
    sized = [file for file in files if "size_bytes" in file.figures]
    if sized:
        smallest = min(sized, key=lambda file: (file.figures["size_bytes"], file.kl))
        found.append(("smallest", f"{smallest.label}, {byte_size(smallest.figures['size_bytes'])}"))
    beaten = [file.label for file, good in zip(files, charts.frontier_of(files), strict=True) if not good]
    if sized:
        found.append(("beaten by a smaller, nearer file", ", ".join(beaten) or "none"))
    return found


def _percentiles(results: Results) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Names of columns and, for each file, cells: percentiles of the divergence."""
    keys = [key for key in PERCENTILES if any(f"kl_divergence.{key}" in file.figures for file in results.files)]
    names = {key: f"{key[1:].replace('_', '.')} %" for key in keys if key.startswith("p")}
    names |= {"min": "least", "max": "most"}
    rows = [(f.label, [significant(f.figures.get(f"kl_divergence.{key}")) for key in keys]) for f in results.files]
    return [names.get(key, key) for key in keys], rows


@dataclass(frozen=True)
class Cell:
    """A figure with the step of colour it stands on."""

    text: str
    heat: int


def _domains(results: Results) -> tuple[list[str], list[tuple[str, list[Cell]]]]:
    """Names of texts and, for each file, the mean divergence on each; nothing where there is one text."""
    names = list(dict.fromkeys(name for file in results.files for name in file.texts))
    means = {(f.label, name): f.texts[name].get("kl_divergence.mean") for f in results.files for name in f.texts}
    known = [value for value in means.values() if value is not None and 0 < value < math.inf]
    if len(names) < 2 or not known:
        return [], []
    low, high = math.log(min(known)), math.log(max(known))

    def cell(label: str, name: str) -> Cell:
        value = means.get((label, name))
        if value is None or value <= 0 or high == low:
            return Cell(significant(value), 0)
        share = (math.log(min(value, math.exp(high))) - low) / (high - low)
        return Cell(significant(value), min(STEPS - 1, int(share * STEPS)))

    return [visible(name) for name in names], [(f.label, [cell(f.label, n) for n in names]) for f in results.files]


def _worst_tensors(file: Measured, most: int = 8) -> list[tuple[str, str, str]]:
    """Name, relative error and SQNR of those that lost most."""
    errors = {name: figures.get("relative", 0.0) for name, figures in file.tensors.items()}
    worst = sorted(errors, key=lambda name: -errors[name])[:most]
    return [(visible(name), significant(errors[name]), fixed(file.tensors[name].get("sqnr"), 1)) for name in worst]


@dataclass(frozen=True)
class Passage:
    """A bad prediction as it is shown. tokens: text, step of colour, divergence, and whether it is the one."""

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
    tokens = [(_seen(text), _heat(kl), significant(kl), n == centre) for n, (text, kl) in enumerate(around)]
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
    """Which token of a passage it is about: of those that read like it, the one whose divergence is nearest."""
    same = [n for n, (text, _) in enumerate(around) if text == worst.token]
    return min(same, key=lambda n: abs(around[n][1] - (worst.kl or 0.0)), default=-1)


def _heat(kl: float) -> int:
    """A token's step of colour."""
    return sum(kl >= edge for edge in HEATS)


def _seen(text: str, inline: bool = False) -> str:
    """A token's text with signs for what nobody sees; inline: on one line, in quotes of the page's own."""
    signs = "".join(SEEN.get(character, visible(character)) for character in text)
    return signs.replace("\n", "").replace("\t", "") if inline else signs
