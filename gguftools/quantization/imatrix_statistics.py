"""Compute statistics of an importance matrix: the spread of each weight's inputs, and their change between layers.

They are those that `llama-imatrix --show-statistics` prints and stores in files (b11434), by its definitions. They say
little about the best types of tensors (ik_llama.cpp, discussion 2361).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .imatrix_entry import Entry, Floats

Doubles = NDArray[np.float64]

# What files call the figures, in the order in which they store them.
FIGURES = (
    "sum_sq",
    "mean",
    "elements",
    "std_deviation",
    "skewness",
    "kurtosis",
    "gain",
    "h_norm",
    "l2_dist",
    "cossim",
    "pearson",
    "covariance",
)
EPSILON = 1e-10  # a sum, spread or share below it counts as none
LAYER = re.compile(r"(?<!\w)blk\.(\d+)(?!\w)")


@dataclass(frozen=True)
class Statistics:
    """Hold statistics of one weight's inputs, in the order of FIGURES; None if one is not defined.

    Over the columns of all experts that saw inputs: energy: sum of the mean squares; mean, deviation, skewness and
    excess kurtosis of the mean inputs (of the mean squares if the matrix has no sums of inputs); elements: columns;
    entropy: of the columns' shares of the energy, divided by its maximum. Compared with the same weight of the nearest
    earlier layer: gain: quotient of the root mean squares; distance, cosine, pearson, covariance of the mean inputs.
    """

    energy: float
    mean: float
    elements: int
    deviation: float
    skewness: float
    kurtosis: float
    gain: float | None = None
    entropy: float | None = None
    distance: float | None = None
    cosine: float | None = None
    pearson: float | None = None
    covariance: float | None = None

    def as_stored(self) -> Floats:
        """Return float32 (12,), as a file has them: NaN for undefined ones."""
        stored = replace(self, entropy=None if self.entropy is None else 100 * self.entropy)  # per cent in a file
        values = [getattr(stored, field.name) for field in fields(stored)]
        return np.array([np.nan if value is None else value for value in values], np.float32)


@dataclass(frozen=True)
class LayerStatistics:
    """Hold the statistics of all weights of a layer, compared with the layers before."""

    energy: float
    gain: float | None = None
    distance: float | None = None
    cosine: float | None = None
    pearson: float | None = None
    covariance: float | None = None


@dataclass(frozen=True)
class MatrixStatistics:
    """Hold the statistics of a matrix by weight, in the order of layers, and by layer."""

    tensors: dict[str, Statistics]
    layers: dict[int, LayerStatistics]

    def as_dict(self) -> dict[str, Any]:
        """Return lists of plain data."""
        return {
            "tensors": [{"name": name} | asdict(each) for name, each in self.tensors.items()],
            "layers": [{"layer": layer} | asdict(each) for layer, each in self.layers.items()],
        }


@dataclass
class _Sums:
    """Sum over pairs of columns, a weight's and the earlier one's; added up for a layer."""

    pairs: int = 0
    products: float = 0.0
    squares: float = 0.0
    earlier_squares: float = 0.0
    differences: float = 0.0
    covariance: float = 0.0
    variance: float = 0.0
    earlier_variance: float = 0.0
    energy: float = 0.0
    elements: int = 0
    earlier_energy: float = 0.0
    earlier_elements: int = 0

    def add(self, other: "_Sums") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @property
    def cosine(self) -> float | None:
        return _quotient(self.products, self.squares, self.earlier_squares)

    @property
    def pearson(self) -> float | None:
        return _quotient(self.covariance, self.variance, self.earlier_variance)


def _quotient(product: float, one: float, other: float) -> float | None:
    if one > 0 and other > 0:
        return min(1.0, max(-1.0, product / (math.sqrt(one) * math.sqrt(other))))
    return None if one == other == 0 else 0.0


def statistics(entries: Mapping[str, Entry], next_layers: int = 0) -> MatrixStatistics:
    """Compute the statistics of a matrix. next_layers: the number of MTP layers at the end.

    MTP layers are compared only with each other. Weights without a finite value have no statistics.
    """
    # what is not finite is left out, and named by `problems`
    with np.errstate(over="ignore", invalid="ignore"):
        own = {name: figures for name, entry in entries.items() if (figures := _own(entry)) is not None}
        first = _first_next_layer(own, next_layers)
        tensors: dict[str, Statistics] = {}
        layers: dict[int, tuple[float, _Sums]] = {}
        for name in sorted(own, key=lambda name: (_layer(name), name)):
            layer, figures = _layer(name), own[name]
            sums = _compared(name, entries, own, first)
            tensors[name] = figures if sums is None else _with_comparison(figures, sums)
            if 0 <= layer < math.inf:
                energy, total = layers.setdefault(int(layer), (0.0, _Sums()))
                total.add(sums or _Sums())
                layers[int(layer)] = energy + figures.energy, total
    return MatrixStatistics(tensors, {layer: _of_layer(*figures) for layer, figures in layers.items()})


def _layer(name: str) -> float:
    """Return the layer in a name; infinity outside layers."""
    match = LAYER.search(name)
    return int(match[1]) if match else math.inf


def _first_next_layer(names: Mapping[str, Statistics], next_layers: int) -> float:
    last = max((layer for name in names if (layer := _layer(name)) < math.inf), default=-1)
    if next_layers > 0 and last >= 0:
        return max(0, last + 1 - next_layers)
    return min((_layer(name) for name in names if ".nextn." in name), default=math.inf)


def _own(entry: Entry) -> Statistics | None:
    seen = entry.counts > 0
    counts = entry.counts[seen, None].astype(np.float64)
    squares = entry.sums[seen] / counts
    values = squares if entry.inputs is None else entry.inputs[seen] / counts
    good = np.isfinite(squares) & np.isfinite(values)
    squares, values = squares[good], values[good]
    if not values.size:
        return None
    off = values - values.mean()
    variance = float((off**2).mean())
    deviation, skewness, kurtosis = math.sqrt(variance), 0.0, 0.0
    if deviation > EPSILON:
        skewness = float((off**3).mean()) / (variance * deviation)
        kurtosis = float((off**4).mean()) / variance**2 - 3
    entropy, energy = 0.0, float(squares[squares > 0].sum())
    if energy > 0:
        shares = squares / energy
        shares = shares[shares > EPSILON]
        entropy = float(-(shares * np.log2(shares)).sum())
    return Statistics(
        float(squares.sum()),
        float(values.mean()),
        values.size,
        deviation,
        skewness,
        kurtosis,
        entropy=entropy / math.log2(values.size) if values.size > 1 else None,
    )


def _compared(
    name: str, entries: Mapping[str, Entry], own: Mapping[str, Statistics], first_next: float
) -> _Sums | None:
    """Sum over the columns of a weight and of the same one in the nearest earlier layer; None if there is none."""
    layer = _layer(name)
    if layer in (0, first_next, math.inf):
        return None
    first_layer = int(first_next) if layer > first_next else 0
    names = (LAYER.sub(f"blk.{earlier}", name, count=1) for earlier in range(int(layer) - 1, first_layer - 1, -1))
    earlier = next((each for each in names if each in own), None)
    if earlier is None:
        return None
    one, other = entries[name], entries[earlier]
    by_inputs = one.inputs is not None and other.inputs is not None
    x, y = _means(one, by_inputs), _means(other, by_inputs)
    if x.size != y.size:
        return None
    good = np.isfinite(x) & np.isfinite(y)
    x, y = x[good], y[good]
    if not x.size:
        return None
    dx, dy = x - x.mean(), y - y.mean()
    of_one, of_other = own[name], own[earlier]
    sums = _Sums(
        x.size,
        float(x @ y),
        float(x @ x),
        float(y @ y),
        float(((x - y) ** 2).sum()),
        float(dx @ dy),
        float(dx @ dx),
        float(dy @ dy),
    )
    sums.energy, sums.elements = of_one.energy, of_one.elements
    sums.earlier_energy, sums.earlier_elements = of_other.energy, of_other.elements
    return sums


def _means(entry: Entry, by_inputs: bool) -> Doubles:
    """Return mean inputs or mean squares, float64 (experts × width,), rounded to float32 as in the reference."""
    values = entry.inputs if by_inputs and entry.inputs is not None else entry.sums
    scale = np.float32(1) / np.where(entry.counts > 0, entry.counts, np.float32(np.nan))
    means: Doubles = (values * scale[:, None]).astype(np.float64).reshape(-1)
    return means


def _gain(sums: _Sums) -> float | None:
    if sums.energy < 0 or sums.earlier_energy < 0:
        return None  # sums of squares that are none, which `problems` names
    if sums.earlier_energy > EPSILON:
        return math.sqrt(sums.energy / sums.elements) / math.sqrt(sums.earlier_energy / sums.earlier_elements)
    return 1.0 if sums.energy <= EPSILON else None


def _with_comparison(own: Statistics, sums: _Sums) -> Statistics:
    covariance = sums.covariance / sums.pairs if sums.pairs > 1 else None
    return replace(
        own,
        gain=_gain(sums),
        distance=math.sqrt(sums.differences),
        cosine=sums.cosine,
        pearson=sums.pearson,
        covariance=covariance,
    )


def _of_layer(energy: float, sums: _Sums) -> LayerStatistics:
    if not sums.pairs:
        return LayerStatistics(energy)
    return LayerStatistics(
        energy, _gain(sums), math.sqrt(sums.differences), sums.cosine, sums.pearson, sums.covariance / sums.pairs
    )
