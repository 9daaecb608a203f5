"""Read and check results of `gguftools divergence --json`, which may be old, incomplete or wrong."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from quants.arguments import PathLike, as_path
from quants.errors import FileError

from ...metadata.visible import visible

EXPECTED = "write one with `gguftools divergence … --json > RESULTS.json`"
LONGEST_LABEL = 28
PERCENTILES = ("min", "p0_1", "p1", "p5", "p10", "p25", "median", "p75", "p90", "p95", "p99", "p99_9", "max")


# Names of figures that older versions saved: perplexity_error, p99.9.
OLDER = re.compile(r"(perplexity(?:_ratio|_difference)?|log_ratio|rms|same_top)_error$|p(99|0)\.([19])$")


@dataclass(frozen=True)
class Curve:
    """Hold values over edges: one more edge than values, or as many."""

    edges: list[float]
    values: list[float]

    def __bool__(self) -> bool:
        return len(self.values) > 0 and len(self.edges) in (len(self.values), len(self.values) + 1)


@dataclass(frozen=True)
class Position:
    """Hold one of the worst predictions: its place, the expected token, and tokens around it with divergences."""

    text: str
    window: int | None
    position: int | None
    kl: float | None
    before: str
    token: str
    p_base: float | None
    p: float | None
    base_top: str
    top: str
    passage: list[tuple[str, float]]


@dataclass
class Measured:
    """Hold the figures of one file. figures: single numbers by their path, such as "kl_divergence.mean".

    label: a short name that no other file of the results has. tensors: name → figure → value.
    """

    path: str
    type: str
    figures: dict[str, float]
    lower_bound: bool
    texts: dict[str, dict[str, float]]
    positions: Curve
    histogram: Curve
    chunks: list[float]
    worst: list[Position]
    tensors: dict[str, dict[str, float]]
    label: str = ""

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def kl(self) -> float:
        return self.figures["kl_divergence.mean"]


@dataclass(frozen=True)
class Results:
    """Hold all files, in the order of the results. texts: name → its figures."""

    base: str
    figures: dict[str, float]
    precision: str
    products: str
    texts: dict[str, dict[str, float]]
    files: list[Measured] = field(default_factory=list)
    device: str = ""

    @property
    def lower_bound(self) -> bool:
        return any(file.lower_bound for file in self.files)

    @property
    def scored(self) -> int:
        return int(sum(text.get("scored", 0) for text in self.texts.values()))


def read_results(path: PathLike) -> Mapping[str, Any]:
    """Return the plain data of a saved result. Raises FileError for what is no JSON object."""
    from archs.small_files import read_json_object

    try:
        return read_json_object(as_path(path, "the results"))
    except FileError as error:
        raise FileError(str(error), error.hint or EXPECTED) from error


def results_of(data: Mapping[str, Any], source: str = "the results") -> Results:
    """Check plain data and take it apart; each file needs a path, a perplexity and a mean divergence.

    source: what messages call the data. Raises FileError that names what is missing or is not what it should be.
    """
    whole = _Entry(data, source)
    files = [_measured(entry) for entry in whole.entries("files")]
    if not files:
        raise FileError(f"{source} has no files", EXPECTED)
    for file, label in zip(files, labels([file.path for file in files], [file.type for file in files]), strict=True):
        file.label = label
    texts = {
        entry.text("name") or f"text {number}": entry.figures()
        for number, entry in enumerate(whole.entries("texts", optional=True), 1)
    }
    return Results(
        whole.text("base", needed=True),
        whole.figures(),
        whole.text("precision"),
        whole.text("products"),
        texts,
        files,
        whole.text("device"),
    )


def _today(name: str) -> str:
    """Return a figure's present name, also if an older version saved it."""
    return OLDER.sub(
        lambda older: f"{older[1]}_standard_error" if older[1] else f"p{older[2]}_{older[3]}",
        "size_bytes" if name == "size" else name,
    )


def labels(paths: list[str], types: list[str]) -> list[str]:
    """Return a short name for each file: its type if unique, else its file name without the common prefix."""
    if all(types) and len(set(types)) == len(types):
        return [_short(each) for each in types]
    stems = [visible(Path(path).name.removesuffix(".gguf")) for path in paths]
    parts = [re.split(r"(?<=[-_.])", stem) for stem in stems]
    same = takewhile(lambda each: len(parts) > 1 and len(set(each)) == 1, zip(*parts, strict=False))
    cut = sum(len(each[0]) for each in same)
    short = [_short(stem[cut:] or stem) for stem in stems]
    seen: dict[str, int] = {}
    for number, each in enumerate(short):
        seen[each] = seen.get(each, 0) + 1
        if short.count(each) > 1:
            short[number] = f"{each} ({seen[each]})" if seen[each] > 1 else each
    return short


def _short(text: str) -> str:
    text = visible(text)
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL // 2]}…{text[1 - LONGEST_LABEL // 2 :]}"


def _measured(entry: "_Entry") -> Measured:
    figures = entry.figures()
    path = entry.text("file") or entry.text("path") or entry.text("file", needed=True)
    for key in ("perplexity", "kl_divergence.mean"):
        if key not in figures:
            raise FileError(f"{entry.where} has no number {key}", EXPECTED)
    return Measured(
        path=path,
        type=entry.text("type"),
        figures=figures,
        lower_bound=entry.value("lower_bound") is True,
        texts={name: inner.figures() for name, inner in entry.named("texts")},
        positions=Curve(entry.numbers("positions", "edges"), entry.numbers("positions", "kl_mean")),
        histogram=Curve(entry.numbers("histogram", "edges"), entry.numbers("histogram", "counts")),
        chunks=entry.numbers("chunks"),
        worst=[_position(each) for each in entry.entries("worst", optional=True)],
        tensors={name: inner.figures() for name, inner in entry.named("tensors")},
    )


def _position(entry: "_Entry") -> Position:
    figures = entry.figures()
    passage = []
    for each in entry.value("passage") or []:
        if not isinstance(each, (list, tuple)) or len(each) != 2 or not isinstance(each[0], str):
            raise FileError(f"{entry.where}.passage has something else than pairs of token and divergence", EXPECTED)
        passage.append((each[0], _finite(each[1]) or 0.0))
    window, position = figures.get("window"), figures.get("position")
    return Position(
        entry.text("text"),
        None if window is None else int(window),
        None if position is None else int(position),
        figures.get("kl"),
        entry.text("before"),
        entry.text("token"),
        figures.get("p_base"),
        figures.get("p"),
        entry.text("base_top"),
        entry.text("top"),
        passage,
    )


def _finite(value: Any) -> float | None:
    """Return a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer that no float is near
        return None


def _number(value: Any) -> float | None:
    """Return a number, also an infinite one, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return None if math.isnan(value) else float(value)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class _Entry:
    """Hold an object of the data and its place in it."""

    data: Any
    where: str

    def __post_init__(self) -> None:
        if not isinstance(self.data, Mapping):
            raise FileError(f"{self.where} is {type(self.data).__name__}, not an object", EXPECTED)

    def value(self, key: str) -> Any:
        return self.data.get(key)

    def text(self, key: str, needed: bool = False) -> str:
        value = self.value(key)
        if value is None and not needed:
            return ""
        if not isinstance(value, str):
            what = "has no text" if value is None else f"has {type(value).__name__} instead of a text at"
            raise FileError(f"{self.where} {what} {key}", EXPECTED)
        return value

    def entries(self, key: str, optional: bool = False) -> list["_Entry"]:
        value = self.value(key)
        if value is None and optional:
            return []
        if not isinstance(value, (list, tuple)):
            raise FileError(f"{self.where} has no list {key}", EXPECTED)
        return [_Entry(each, f"{self.where}: {key}[{number}]") for number, each in enumerate(value)]

    def named(self, key: str) -> Iterator[tuple[str, "_Entry"]]:
        value = self.value(key)
        if value is not None:
            for name, each in _Entry(value, f"{self.where}: {key}").data.items():
                yield str(name), _Entry(each, f"{self.where}: {key}.{visible(str(name))}")

    def numbers(self, *keys: str) -> list[float]:
        """Return a list of finite numbers, up to the first item that is none."""
        value: Any = self.data
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is None:
            return []
        if not isinstance(value, (list, tuple)):
            raise FileError(f"{self.where} has no list {'.'.join(keys)}", EXPECTED)
        values = [_finite(each) for each in value]
        end = next((number for number, each in enumerate(values) if each is None), len(values))
        return [each for each in values[:end] if each is not None]

    def figures(self) -> dict[str, float]:
        """Return the numbers of this object, and of the objects in it, by their path."""
        numbers = {}
        for key, each in self.data.items():
            inner = each.items() if isinstance(each, Mapping) and key not in ("texts", "tensors") else [("", each)]
            for name, value in inner:
                if (number := _number(value)) is not None:
                    numbers[_today(f"{key}.{name}" if name else str(key))] = number
        return numbers
