"""Compare two models: metadata key by key, tensors by type, shape, bytes and decoded values.

Either side may be a GGUF file, a split set, or a Hugging Face folder, which counts as the GGUF file it would become.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quants import Tensor
from quants.arguments import PathLike

from ..io.gguf.writer import RESERVE_KEY
from ..metadata.difference import KeyDifference, compare_metadata
from ..models.contents import streamed_tensors
from ..models.model import Model, opened
from ..writing.row_blocks import Progress, by_tensor

# Keys that a conversion or quantization sets: no difference between a checkpoint and a file made from it.
OUTPUT_KEYS = ("general.file_type", "general.quantization_version", "quantize.", RESERVE_KEY)
# Formats whose encoding depends on the values only, so that rounding a checkpoint's tensor is deterministic.
ROUNDING_FORMATS = ("F32", "F16", "BF16", "Q8_0")


@dataclass(frozen=True)
class Figures:
    """How far B's decoded values are from A's: RMSE and largest error, in units of the values.

    relative: RMSE over the root mean square of A. row: row of the largest error.
    """

    rmse: float
    max_error: float
    relative: float
    row: int


@dataclass(frozen=True)
class TensorDifference:
    """How one tensor differs.

    kind: "same", "rounded" (other types, but B's values are A's rounded to B's type), "type", "shape", "bytes" (one
    type, other values), "added", "removed". a, b: the formats. figures: distance of B's values from A's; None if they
    cannot be compared ("shape", "added", "removed").
    """

    name: str
    kind: str
    a: str | None
    b: str | None
    shape_a: tuple[int, ...] | None = None
    shape_b: tuple[int, ...] | None = None
    figures: Figures | None = None


@dataclass(frozen=True)
class DiffReport:
    """The differences of two models. checkpoint: one of them is a Hugging Face folder.

    keys: the metadata that differs. tensors: all of both models, in A's order, with the distance of their values.
    """

    a: Path
    b: Path
    checkpoint: bool
    keys: tuple[KeyDifference, ...]
    tensors: tuple[TensorDifference, ...]

    @property
    def different_tensors(self) -> list[TensorDifference]:
        """Return all tensors that differ; "rounded" is no difference if one side is a checkpoint."""
        equal = ("same", "rounded") if self.checkpoint else ("same",)
        return [tensor for tensor in self.tensors if tensor.kind not in equal]

    @property
    def differ(self) -> bool:
        """Return whether anything differs."""
        return bool(self.keys or self.different_tensors)

    @property
    def verdict(self) -> str:
        """Return a summary in one sentence."""
        changed = self.different_tensors
        rounded = sum(tensor.kind == "rounded" for tensor in self.tensors)
        if not changed:
            tensors = f"all {len(self.tensors)} tensors hold the same values"
            tensors += f", {rounded} of them rounded to their type" if rounded else ""
        else:
            tensors = f"{len(changed)} of {len(self.tensors)} tensors differ"
            worst = max((t.figures.relative for t in changed if t.figures), default=0.0)
            tensors += f", by {100 * worst:.3g} % of their values' root mean square at most" if worst else ""
        keys = f"{len(self.keys)} metadata keys differ" if self.keys else "the metadata is the same"
        return f"{tensors}; {keys}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "a": str(self.a),
            "b": str(self.b),
            "differ": self.differ,
            "summary": self.verdict,
            "metadata": [key.as_dict() for key in self.keys],
            "tensors": [asdict(tensor) for tensor in self.tensors],
        }


def diff(
    a: PathLike | Model, b: PathLike | Model, *, threads: int | None = None, progress: Progress | None = None
) -> DiffReport:
    """Compare two models: GGUF files, split sets or Hugging Face folders. Figures give the distance of B from A.

    a, b: paths or Models. threads: default all processors. progress(bytes of A read, of how many, tensor). Raises
    FileError, ModelError, VocabularyError for what cannot be opened, FormatError for tensors of a type that cannot be
    decoded.
    """
    first, second = opened(a), opened(b)
    folder = bool(first.origin.outtype or second.origin.outtype)
    keys = tuple(compare_metadata(first.metadata, second.metadata, OUTPUT_KEYS if folder else (RESERVE_KEY,)))
    tensors = _compare_tensors(streamed_tensors(first), streamed_tensors(second), threads, progress)
    return DiffReport(first.path, second.path, folder, keys, tuple(tensors))


def _compare_tensors(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor], threads: int | None, progress: Progress | None
) -> Iterator[TensorDifference]:
    pairs = [a[name] for name in a if name in b and a[name].shape == b[name].shape]
    parts = by_tensor(pairs, partial(_compare_rows, b), threads=threads, progress=progress)
    for name in dict.fromkeys((*a, *b)):
        left, right, own_parts = a.get(name), b.get(name), parts.get(name)
        form, other = (None if tensor is None else tensor.format.name for tensor in (left, right))
        if left is None or own_parts is None:
            difference = "added" if left is None else "removed" if right is None else "shape"
        elif form == other:
            difference = "same" if all(part.same for part in own_parts) else "bytes"
        else:
            difference = "rounded" if all(part.rounded for part in own_parts) else "type"
        shape, other_shape = (None if tensor is None else tensor.shape for tensor in (left, right))
        figures = None if left is None or own_parts is None else _figures(left, own_parts)
        yield TensorDifference(name, difference, form, other, shape, other_shape, figures)


class _Part(NamedTuple):
    """The comparison of some rows of a pair; equal ones are not decoded, and so have no figures."""

    rows: tuple[int, int]
    same: bool = True
    rounded: bool = True
    squares: float = 0.0
    power: float = 0.0
    largest: float = 0.0
    row: int = 0


def _figures(a: Tensor, parts: list[_Part]) -> Figures:
    if all(part.same for part in parts):
        return Figures(0.0, 0.0, 0.0, 0)
    power = sum(part.power for part in parts)
    for rows in (a.float32(*part.rows).astype(np.float64) for part in parts if part.same):
        power += float(np.vdot(rows, rows))  # relative errors count rows without errors, too
    rmse, scale = (math.sqrt(total / max(1, a.size)) for total in (sum(part.squares for part in parts), power))
    worst = max(parts, key=lambda part: (math.isnan(part.largest), part.largest))
    return Figures(rmse, worst.largest, rmse / scale if scale else 0.0 if rmse == 0 else math.inf, worst.row)


def _decoded(tensor: Tensor, raw: NDArray[np.uint8], start: int) -> NDArray[np.float32]:
    """Return the values of stored rows from `start` on; rows of a dialect, which may overlap, are read again."""
    return tensor.float32(start, start + len(raw)) if tensor.format.dialect else tensor.format.decode(raw)


def _compare_rows(others: Mapping[str, Tensor], a: Tensor, start: int, stop: int) -> _Part:
    b = others[a.name]
    raw_a, raw_b = np.ascontiguousarray(a.raw(start, stop)), np.ascontiguousarray(b.raw(start, stop))
    if a.format.name == b.format.name and np.array_equal(raw_a, raw_b):
        return _Part((start, stop))
    left = _decoded(a, raw_a, start)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = b.format.name in ROUNDING_FORMATS and np.array_equal(b.format.encode(left), raw_b)
        x, y = left.astype(np.float64), _decoded(b, raw_b, start).astype(np.float64)
        error = np.abs(y - x)
    error[np.isnan(x) & np.isnan(y)] = 0.0
    at = int(np.argmax(error)) if error.size else 0
    return _Part(
        (start, stop),
        same=False,
        rounded=rounded,
        squares=float(np.vdot(error, error)),
        power=float(np.vdot(x, x)),
        largest=float(error.max(initial=0.0)),
        row=start + at // max(1, a.width),
    )
