"""Measure the errors of every tensor of a model, compared with the model that it was made from."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quants import Tensor
from quants.arguments import PathLike
from quants.errors import OptionError
from quants.spelling import did_you_mean
from quants.tensor import readable
from runtime.arrays import Doubles

from ..models.contents import streamed_tensors
from ..models.model import Model, opened
from ..quantization.imatrix import ImportanceMatrix, entry_for, importance_for, usable_matrix
from ..quantization.planning import without_layers
from ..quantization.recipes import layer_of
from ..writing.items import read_rows
from ..writing.row_blocks import Progress, over_rows

LAYER = re.compile(r"^blk\.\d+\.")
INTEGERS = ("I8", "I16", "I32", "I64")
SORTS = ("worst", "name", "layer", "rmse", "size")


@dataclass(frozen=True)
class Errors:
    """Errors of one or several tensors: sums over their values, and figures derived from them.

    values: how many. nbytes: of the second side. squares, power: of the errors and of the first side's values.
    weighted_squares, weighted_power: the same, times the importance of each column. largest: largest error. non_finite:
    values that are NaN or infinite on one side only; no sum includes them.
    """

    values: int = 0
    nbytes: int = 0
    squares: float = 0.0
    power: float = 0.0
    weighted_squares: float = 0.0
    weighted_power: float = 0.0
    largest: float = 0.0
    non_finite: int = 0

    @property
    def rmse(self) -> float:
        """Return the root mean squared error, in units of the values."""
        return math.sqrt(self.squares / max(1, self.values))

    @property
    def relative(self) -> float | None:
        """Return rmse over the root mean square of the first side; None if that is zero and the other side is not."""
        return _ratio(self.squares, self.power)

    @property
    def weighted(self) -> float | None:
        """Return `relative` with columns weighted by importance; None without an importance matrix."""
        return _ratio(self.weighted_squares, self.weighted_power) if self.weighted_power > 0 else None

    @property
    def sqnr(self) -> float | None:
        """Return the signal-to-quantization-noise ratio in dB; None without noise or without signal."""
        return 10 * math.log10(self.power / self.squares) if self.squares > 0 and self.power > 0 else None

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.nbytes / max(1, self.values)

    def __add__(self, other: "Errors") -> "Errors":
        return Errors(
            self.values + other.values,
            self.nbytes + other.nbytes,
            self.squares + other.squares,
            self.power + other.power,
            self.weighted_squares + other.weighted_squares,
            self.weighted_power + other.weighted_power,
            max(self.largest, other.largest),
            self.non_finite + other.non_finite,
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "values": self.values,
            "size_bytes": self.nbytes,
            "bits_per_weight": self.bits_per_weight,
            "rmse": self.rmse,
            "max_error": self.largest,
            "relative": self.relative,
            "weighted": self.weighted,
            "sqnr": self.sqnr,
            "non_finite": self.non_finite,
        }


def _ratio(squares: float, power: float) -> float | None:
    return math.sqrt(squares / power) if power > 0 else 0.0 if squares == 0 else None


@dataclass(frozen=True)
class TensorErrors:
    """The errors of one tensor. a, b: formats of the two sides.

    weighted_by_expert: `weighted` of each expert, where there are several and an importance matrix; None for one
    without samples in the matrix.
    """

    name: str
    shape: tuple[int, ...]
    a: str
    b: str
    errors: Errors
    weighted_by_expert: tuple[float | None, ...] = ()

    @property
    def kind(self) -> str:
        """Return the name without the layer's number: "ffn_down.weight"."""
        return role_of(self.name)

    @property
    def layer(self) -> int:
        """Return the layer's number; -1 outside layers."""
        return layer_of(self.name)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "layer": self.layer,
            "shape": list(self.shape),
            "a": self.a,
            "b": self.b,
            **self.errors.as_dict(),
            "weighted_by_expert": list(self.weighted_by_expert),
        }


@dataclass(frozen=True)
class WeightErrors:
    """Errors of B's weights compared with A's.

    imatrix: the matrix that errors are weighted by. tensors: those that both sides have with one shape, in the
    requested order. only_a, only_b: names that the other side lacks. shapes: (name, A's shape, B's) where these differ.
    unread: tensors whose formats cannot be decoded. warnings: for the user.
    """

    a: Path
    b: Path
    imatrix: Path | None
    tensors: tuple[TensorErrors, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    shapes: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()
    unread: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def total(self) -> Errors:
        """Return the errors of all tensors together."""
        return sum((tensor.errors for tensor in self.tensors), Errors())

    @property
    def kinds(self) -> dict[str, Errors]:
        """Return the errors by role of tensor, the largest first."""
        groups = _grouped(self.tensors, lambda tensor: tensor.kind)
        return dict(sorted(groups.items(), key=lambda item: _badness(item[1]), reverse=True))

    @property
    def layers(self) -> dict[int, Errors]:
        """Return the errors by layer; -1 are the tensors outside layers."""
        return dict(sorted(_grouped(self.tensors, lambda tensor: tensor.layer).items()))

    @property
    def is_complete(self) -> bool:
        """Return whether every tensor of either side could be compared."""
        return not (self.only_a or self.only_b or self.shapes or self.unread)

    @property
    def verdict(self) -> str:
        """Return a summary in one sentence."""
        total = self.total
        if not self.tensors:
            return "no tensor can be compared"
        text = f"{len(self.tensors)} tensors, {total.bits_per_weight:.2f} bits per weight"
        if total.non_finite:
            text += f"; {total.non_finite} values are NaN or infinite on one side"
        if not total.squares:
            return f"{text}; no errors"
        text += f"; error {_percent(total.relative)} of the root mean square"
        text += f", SQNR {total.sqnr:.2f} dB" if total.sqnr is not None else ""
        return text + (f", weighted {_percent(total.weighted)}" if total.weighted is not None else "")

    def by_name(self) -> dict[str, dict[str, float | None]]:
        """Return name → rmse, relative error and SQNR, for reports."""
        return {
            tensor.name: {
                "rmse": tensor.errors.rmse,
                "relative": tensor.errors.relative,
                "sqnr": tensor.errors.sqnr,
                "weighted": tensor.errors.weighted,
            }
            for tensor in self.tensors
        }

    def as_dict(self) -> dict[str, Any]:
        return {
            "a": str(self.a),
            "b": str(self.b),
            "imatrix": str(self.imatrix) if self.imatrix else None,
            "summary": self.verdict,
            "total": self.total.as_dict(),
            "kinds": {name: errors.as_dict() for name, errors in self.kinds.items()},
            "layers": {str(layer): errors.as_dict() for layer, errors in self.layers.items()},
            "tensors": [tensor.as_dict() for tensor in self.tensors],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "shapes": [{"name": name, "a": list(a), "b": list(b)} for name, a, b in self.shapes],
            "unread": list(self.unread),
            "warnings": list(self.warnings),
        }


def weight_errors(
    a: PathLike | Model,
    b: PathLike | Model,
    *,
    imatrix: PathLike | ImportanceMatrix | None = None,
    sort: str = "worst",
    threads: int | None = None,
    progress: Progress | None = None,
) -> WeightErrors:
    """Measure the errors of every tensor of B compared with A, such as a quantized file and its original.

    a, b: GGUF files, split sets, Hugging Face folders (each as the GGUF file that it would become) or Models. imatrix:
    an importance matrix or its file, which errors are weighted by, too. sort: "worst" (by the weighted error, where
    there is one, else by the relative one), "name", "layer", "rmse" or "size". threads: default all processors.
    progress(bytes of A read, of how many, tensor). Raises OptionError for an unknown order, FileError, ModelError,
    VocabularyError for what cannot be opened, FileError for a matrix of another model.
    """
    order = _order_named(sort)
    first, second = opened(a), opened(b)
    matrix, warnings = usable_matrix(imatrix)
    pairs = Pairs(plain_shapes(first), plain_shapes(second))
    weights = {name: _weights(matrix, tensor) for name, tensor in pairs.a.items() if name in pairs.readable}
    sums = {name: np.zeros((1 if w is None else len(w), 4)) for name, w in weights.items()}
    worst = dict.fromkeys(weights, (0.0, 0))
    tensors = [pairs.a[name] for name in weights]
    look = partial(_compare_rows, pairs.b, weights)
    for tensor, _, row_parts in over_rows(tensors, look, threads=threads, progress=progress):
        for part in row_parts:
            largest, non_finite = worst[tensor.name]
            sums[tensor.name][part.group] += part.sums
            worst[tensor.name] = max(largest, part.largest), non_finite + part.non_finite
    results = [_result(pairs, name, sums[name], *worst[name]) for name in weights]
    path = None if matrix is None else matrix.path
    if matrix is not None and not any(each is not None for each in weights.values()):
        warnings = [*warnings, f"{matrix.path} has nothing on any of the tensors"]
    return WeightErrors(
        first.path,
        second.path,
        path,
        tuple(sorted(results, key=order)),
        pairs.only_a,
        pairs.only_b,
        pairs.shapes,
        pairs.unread,
        tuple(warnings),
    )


def role_of(name: str) -> str:
    """Return a tensor's name without the number of its layer."""
    return LAYER.sub("", name)


def plain_shapes(model: Model) -> dict[str, Tensor]:
    """Return a model's tensors for reading, without outer dimensions of 1, which programs write or leave out."""
    return without_layers(model.metadata, streamed_tensors(model), ()).tensors


class Pairs:
    """Tensors of two models, and which of them can be compared; integers are no weights."""

    def __init__(self, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
        self.a, self.b = a, b
        self.only_a = tuple(name for name in a if name not in b)
        self.only_b = tuple(name for name in b if name not in a)
        both = [name for name in a if name in b]
        self.shapes = tuple((name, a[name].shape, b[name].shape) for name in both if a[name].shape != b[name].shape)
        same = [name for name in both if a[name].shape == b[name].shape]
        weights = [name for name in same if not {a[name].format.name, b[name].format.name} <= {*INTEGERS}]
        self.readable = {name for name in weights if a[name].format.has_codec and b[name].format.has_codec}
        self.unread = tuple(name for name in weights if name not in self.readable)


def _order_named(sort: str) -> Callable[[TensorErrors], Any]:
    orders: dict[str, Callable[[TensorErrors], Any]] = {
        "worst": lambda tensor: (*(-each for each in _badness(tensor.errors)), tensor.name),
        "name": lambda tensor: tensor.name,
        "layer": lambda tensor: (tensor.layer, tensor.name),
        "rmse": lambda tensor: (-tensor.errors.non_finite, -tensor.errors.rmse, tensor.name),
        "size": lambda tensor: (-tensor.errors.nbytes, tensor.name),
    }
    if sort not in orders:
        raise OptionError(f"there is no order {sort!r}", did_you_mean(str(sort), SORTS, f"it is {', '.join(SORTS)}"))
    return orders[sort]


def _badness(errors: Errors) -> tuple[float, float]:
    """Return a sort key, larger for larger errors: values that are not finite come first."""
    figure = errors.relative if errors.weighted is None else errors.weighted
    return float(errors.non_finite), math.inf if figure is None else figure


def _grouped(tensors: Iterable[TensorErrors], key: Callable[[TensorErrors], Any]) -> dict[Any, Errors]:
    groups: dict[Any, Errors] = {}
    for tensor in tensors:
        groups[key(tensor)] = groups.get(key(tensor), Errors()) + tensor.errors
    return groups


def _weights(matrix: ImportanceMatrix | None, tensor: Tensor) -> Doubles | None:
    """Return sums of squared inputs, float64 (experts, width): not means, as an expert counts by its use."""
    entry = None if matrix is None else entry_for(matrix, tensor.name)
    if matrix is None or entry is None or importance_for(matrix, tensor, allow_missing_experts=True) is None:
        return None
    return entry.sums.reshape(-1, tensor.width).astype(np.float64)


class _Part(NamedTuple):
    """Sums over rows of one expert: squares, power, weighted squares, weighted power."""

    group: int
    sums: tuple[float, float, float, float]
    largest: float
    non_finite: int


def _compare_rows(
    others: Mapping[str, Tensor], weights: Mapping[str, Doubles | None], a: Tensor, start: int, stop: int
) -> list[_Part]:
    from quants.kernels.column_errors import column_errors  # here, because numba takes long to import

    b, columns = others[a.name], weights[a.name]
    a, b = readable(a), readable(b)
    raw_a, raw_b = (np.ascontiguousarray(read_rows(each, start, stop, finite=False)) for each in (a, b))
    wanted = a.format.decode(raw_a)
    same = a.format.name == b.format.name and np.array_equal(raw_a, raw_b)
    values = wanted if same else b.format.decode(raw_b)
    share = a.rows if columns is None else max(1, a.rows // len(columns))
    parts = []
    for group in range(start // max(1, share), -(-stop // max(1, share))):
        rows = slice(max(0, group * share - start), min(stop, (group + 1) * share) - start)
        errors = column_errors(values[rows], wanted[rows])
        factors = np.zeros(a.width) if columns is None else columns[group]
        weighted = float(errors.squares @ factors), float(errors.powers @ factors)
        sums = float(errors.squares.sum()), float(errors.powers.sum()), *weighted
        parts.append(_Part(group, sums, errors.largest, errors.non_finite))
    return parts


def _result(pairs: Pairs, name: str, sums: Doubles, largest: float, non_finite: int) -> TensorErrors:
    a, b = pairs.a[name], pairs.b[name]
    squares, power, weighted_squares, weighted_power = map(float, sums.sum(axis=0))
    errors = Errors(a.size, b.nbytes, squares, power, weighted_squares, weighted_power, largest, non_finite)
    experts = [_ratio(*map(float, row[2:])) if row[3] > 0 else None for row in sums] if len(sums) > 1 else []
    return TensorErrors(name, a.shape, a.format.name, b.format.name, errors, tuple(experts))


def _percent(value: float | None) -> str:
    return "infinite" if value is None else f"{100 * value:.3g} %"
