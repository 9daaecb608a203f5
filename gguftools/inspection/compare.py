"""What differs between two models: metadata key by key, tensors by type, shape, bytes and decoded values.

Either side may be a GGUF file, a split set, or a Hugging Face folder, which counts as the GGUF file it would become.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archs.metadata import Metadata, Value, ValueType
from quants import Tensor

from ..files.gguf.writer import RESERVE_KEY
from ..inputs import Input, PathLike, open_input
from ..metadata.text import brief, plain, type_name
from ..writing.pipeline import Progress
from ..writing.row_blocks import over_rows

# What a conversion or quantization says of itself: no difference between a checkpoint and a file made from it.
OF_THE_OUTPUT = ("general.file_type", "general.quantization_version", "quantize.", RESERVE_KEY)
# Types whose encoding depends on nothing but the values: what a checkpoint's tensor becomes in them is certain.
CERTAIN = ("F32", "F16", "BF16", "Q8_0")


@dataclass(frozen=True)
class KeyDifference:
    """One metadata key. kind: "added" (only B has it), "removed" (only A), "changed", "type" (stored otherwise).

    a, b: type and value of each side in short; note: where long arrays part.
    """

    key: str
    kind: str
    a: str | None
    b: str | None
    note: str | None = None


@dataclass(frozen=True)
class Figures:
    """How far B's decoded values are from A's. relative: rmse over the root mean square of A. row: of the largest."""

    rmse: float
    max_error: float
    relative: float
    row: int


@dataclass(frozen=True)
class TensorDifference:
    """One tensor. kind: "same", "rounded" (other types, but B's values are A's rounded to B's type), "type", "shape",
    "bytes" (of one type, other values), "added", "removed".
    """

    name: str
    kind: str
    a: str | None
    b: str | None
    shape_a: tuple[int, ...] | None = None
    shape_b: tuple[int, ...] | None = None
    figures: Figures | None = None


@dataclass(frozen=True)
class Comparison:
    """Two models side by side. checkpoint: one side is a Hugging Face folder."""

    a: Path
    b: Path
    checkpoint: bool
    keys: tuple[KeyDifference, ...]
    tensors: tuple[TensorDifference, ...]

    @property
    def different_tensors(self) -> list[TensorDifference]:
        """All but those that are the same; rounding counts where no checkpoint is compared with what it became."""
        equal = ("same", "rounded") if self.checkpoint else ("same",)
        return [tensor for tensor in self.tensors if tensor.kind not in equal]

    @property
    def differ(self) -> bool:
        return bool(self.keys or self.different_tensors)

    @property
    def verdict(self) -> str:
        """One sentence."""
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
            "a": str(self.a), "b": str(self.b), "differ": self.differ, "verdict": self.verdict,
            "metadata": [asdict(key) for key in self.keys],
            "tensors": [asdict(tensor) for tensor in self.tensors],
        }  # fmt: skip


def compare(
    a: PathLike, b: PathLike, *, threads: int | None = None, progress: Progress | None = None
) -> Comparison:
    """Compare two models: GGUF files, split sets or Hugging Face folders. Figures say how far B is from A.

    progress(bytes of A read, of how many, tensor). Raises FileError, ModelError, VocabularyError for what cannot be
    opened, FormatError for tensors of a type that cannot be decoded.
    """
    first, second = open_input(Path(a)), open_input(Path(b))
    folder = Path(a).is_dir() or Path(b).is_dir()
    keys = tuple(compare_metadata(first.metadata, second.metadata, OF_THE_OUTPUT if folder else (RESERVE_KEY,)))
    return Comparison(Path(a), Path(b), folder, keys, tuple(_compare_tensors(first, second, threads, progress)))


def compare_metadata(a: Metadata, b: Metadata, ignored: tuple[str, ...] = ()) -> Iterator[KeyDifference]:
    """Keys in A's order, then those that only B has. ignored: beginnings of keys that don't count."""
    for key in [*a, *(key for key in b if key not in a)]:
        if key.startswith(ignored):
            continue
        if key not in b:
            yield KeyDifference(key, "removed", _shown(a.value(key)), None)
        elif key not in a:
            yield KeyDifference(key, "added", None, _shown(b.value(key)))
        elif found := _compare_values(key, a.value(key), b.value(key)):
            yield found


def _compare_values(key: str, a: Value, b: Value) -> KeyDifference | None:
    note = _parting(a, b) if a.type is b.type is ValueType.ARRAY else None
    if (a.type, a.element) != (b.type, b.element):
        return KeyDifference(key, "type", _shown(a), _shown(b), note)
    if a.type is ValueType.ARRAY:
        return KeyDifference(key, "changed", _shown(a), _shown(b), note) if note else None
    return None if _number(a) == _number(b) else KeyDifference(key, "changed", _shown(a), _shown(b))


def _shown(value: Value) -> str:
    return f"{type_name(value)} {brief(value)}"


def _number(value: Value) -> Any:
    """A value that equals another if the files hold the same: floats by their bits, so that NaN is NaN."""
    if value.type in (ValueType.FLOAT32, ValueType.FLOAT64):
        return np.array(value.data, "<f4" if value.type is ValueType.FLOAT32 else "<f8").tobytes()
    return value.data


def _parting(a: Value, b: Value) -> str | None:
    """Where two arrays part; None where they don't."""
    if (a.element is ValueType.STRING) != (b.element is ValueType.STRING):
        return None
    numbers = isinstance(a.data, np.ndarray) or isinstance(b.data, np.ndarray)
    left, right = (np.asarray(a.data), np.asarray(b.data)) if numbers else (plain(a), plain(b))
    count = min(len(left), len(right))
    if numbers:
        x, y = left[:count], right[:count]
        wrong = np.flatnonzero((x != y) & ~((x != x) & (y != y))).tolist()  # NaN is what NaN was
    else:
        wrong = [i for i in range(count) if left[i] != right[i]]
    if wrong:
        return f"{len(wrong):,} of {count:,} items differ, the first is item {wrong[0]}"
    return f"equal up to item {count:,}; lengths {len(left):,} and {len(right):,}" if len(left) != len(right) else None


def _compare_tensors(
    a: Input, b: Input, threads: int | None, progress: Progress | None
) -> Iterator[TensorDifference]:
    pairs = {name: (a.tensors[name], b.tensors[name]) for name in a.tensors if name in b.tensors}
    alike = {name: pair for name, pair in pairs.items() if pair[0].shape == pair[1].shape}
    found = _measure(alike, threads, progress)
    for name, tensor in a.tensors.items():
        if name not in pairs:
            yield TensorDifference(name, "removed", tensor.format.name, None, tensor.shape, None)
            continue
        other = pairs[name][1]
        both = (name, tensor.format.name, other.format.name, tensor.shape, other.shape)
        yield _judged(both, found[name]) if name in alike else TensorDifference(both[0], "shape", *both[1:])
    for name, tensor in b.tensors.items():
        if name not in a.tensors:
            yield TensorDifference(name, "added", None, tensor.format.name, None, tensor.shape)


@dataclass
class _Sums:
    """Of what blocks of rows of a pair showed."""

    values: int = 0
    squares: float = 0.0
    power: float = 0.0
    largest: float = 0.0
    row: int = 0
    same: bool = True
    rounded: bool = True

    def figures(self) -> Figures:
        rmse = math.sqrt(self.squares / self.values) if self.values else 0.0
        scale = math.sqrt(self.power / self.values) if self.values else 0.0
        relative = rmse / scale if scale else 0.0 if rmse == 0 else math.inf
        return Figures(rmse, self.largest, relative, self.row)


def _judged(
    both: tuple[str, str, str, tuple[int, ...], tuple[int, ...]], sums: _Sums
) -> TensorDifference:
    name, form, other, shape, _ = both
    if sums.same and form == other:
        return TensorDifference(name, "same", form, other, shape, shape)
    kind = "bytes" if form == other else "rounded" if sums.rounded else "type"
    return TensorDifference(name, kind, form, other, shape, shape, sums.figures())


def _measure(
    pairs: Mapping[str, tuple[Tensor, Tensor]], threads: int | None, progress: Progress | None
) -> dict[str, _Sums]:
    """Compare the rows of each pair."""
    sums = {name: _Sums() for name in pairs}
    others = {id(a): b for a, b in pairs.values()}

    def look(tensor: Tensor, start: int, stop: int) -> _Sums:
        return _compare_rows(tensor, others[id(tensor)], start, stop)

    tensors = [a for a, _ in pairs.values()]
    names = {id(a): name for name, (a, _) in pairs.items()}
    for tensor, _, part in over_rows(tensors, look, threads=threads, progress=progress):
        total = sums[names[id(tensor)]]
        total.values += part.values
        total.squares += part.squares
        total.power += part.power
        total.same &= part.same
        total.rounded &= part.rounded
        if part.largest > total.largest or math.isnan(part.largest):
            total.largest, total.row = part.largest, part.row
    return sums


def _compare_rows(a: Tensor, b: Tensor, start: int, stop: int) -> _Sums:
    raw_a, raw_b = np.ascontiguousarray(a.raw(start, stop)), np.ascontiguousarray(b.raw(start, stop))
    if a.format.name == b.format.name and np.array_equal(raw_a, raw_b):
        return _Sums(values=(stop - start) * a.width)
    left = a.format.decode(raw_a)
    rounded = b.format.name in CERTAIN and np.array_equal(_encoded(b, left), raw_b)
    x, y = left.astype(np.float64), b.format.decode(raw_b).astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(y - x)
    error[np.isnan(x) & np.isnan(y)] = 0.0
    at = int(np.argmax(error)) if error.size else 0
    return _Sums(
        values=x.size, squares=float(np.vdot(error, error)), power=float(np.vdot(x, x)),
        largest=float(error.reshape(-1)[at]) if error.size else 0.0, row=start + at // max(1, a.width),
        same=False, rounded=rounded,
    )  # fmt: skip


def _encoded(like: Tensor, values: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    with np.errstate(over="ignore", invalid="ignore"):
        return like.format.encode(values)
