"""Shared by the methods: matching the tensors that store a weight, and lazy tensors over them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants import Tensor, format_named
from quants.errors import FormatError, ModelError

from ..cached_rows import CachedRows
from ..spec import Floats, Tensors

Settings = Mapping[str, Any]  # `quantization_config` of config.json


@dataclass(frozen=True)
class Unpacked:
    """A checkpoint's tensors, with weights stored in parts as one tensor each.

    ignored: stored tensors that no weight needs, such as the scales of activations.
    """

    tensors: dict[str, Tensor]
    ignored: list[str] = field(default_factory=list)


def replaced(tensors: Tensors, wholes: Iterable[tuple[Tensor, Iterable[str]]], ignored: Iterable[str] = ()) -> Unpacked:
    """Return `tensors` with each weight in place of the first of its parts."""
    owner = {part: whole for whole, parts in wholes for part in parts}
    left = dict.fromkeys(name for name in ignored if name not in owner)
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        kept = owner.get(name, tensor)
        if name not in left:
            result[kept.name] = kept
    return Unpacked(result, list(left))


def part(tensors: Tensors, name: str, of: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    """Return the tensor `name` that belongs to `of`. Raises ModelError if it is missing or of another shape."""
    tensor = tensors.get(name)
    if tensor is None:
        problem = f"{of.where} is a quantized weight that needs {name!r}, which is missing"
        raise ModelError(problem, hint="a shard may be missing")
    if shape is not None and tensor.shape != shape:
        raise ModelError(f"{tensor.where} has shape {list(tensor.shape)}; {list(shape)} was expected")
    return tensor


def decoded(name: str, shape: tuple[int, ...], read: Callable[[int, int], Floats], origin: str) -> Tensor:
    """Return a float32 tensor whose rows start … stop are `read(start, stop)`, float32 (rows, width)."""

    def raw(start: int, stop: int) -> NDArray[np.uint8]:
        rows = np.ascontiguousarray(read(start, stop), "<f4")
        return rows.reshape(stop - start, shape[-1]).view(np.uint8)

    return Tensor(name, shape, format_named("F32"), raw, origin)


def words(tensor: Tensor) -> Callable[[int, int], NDArray[np.uint32]]:
    """Return columns start … stop of a matrix of 32-bit integers, as uint32 (rows, columns)."""
    check_words(tensor)
    kept = CachedRows(tensor)
    return lambda start, stop: np.ascontiguousarray(kept.elements()[:, start:stop]).view("<u4")


def check_words(tensor: Tensor) -> None:
    """Raise ModelError for anything but a matrix of 32-bit integers."""
    if tensor.format.name not in ("I32", "U32") or len(tensor.shape) != 2:
        problem = f"{tensor.where} is {tensor.format.name} {list(tensor.shape)}"
        raise ModelError(f"{problem}; a matrix of I32 was expected")


def columns(tensor: Tensor) -> Callable[[int, int], Floats]:
    """Return columns start … stop of a matrix of numbers as float32 (columns, rows)."""
    kept = CachedRows(tensor)

    def read(start: int, stop: int) -> Floats:
        part = np.ascontiguousarray(kept.elements()[:, start:stop])
        return np.ascontiguousarray(tensor.format.decode(part.view(np.uint8)).T)

    return read


def groups_in_order(width: int, count: int, size: int | None) -> NDArray[np.int64]:
    """Return the group of each column for consecutive groups of one size.

    size: as in config.json, if the last group is shorter.
    """
    each = width // count if count and width % count == 0 else size or 0
    if each < 1 or -(-width // each) != count:
        raise ModelError(f"rows of {width} values have {count} scales; groups of {size} values were expected")
    return np.arange(width) // each


def checked_groups(tensor: Tensor, count: int) -> NDArray[np.int64]:
    """Return the group of each column as stored. Raises FormatError for one without a scale."""
    group = tensor.elements().reshape(-1).astype(np.int64)
    if group.size and (group.min() < 0 or group.max() >= count):
        raise FormatError(f"{tensor.where} names group {int(group.max())}; there are {count} groups")
    return group


def refused(method: str, what: str = "") -> ModelError:
    """Return the error for an unsupported method, or for `what` of it."""
    return ModelError(
        f"the checkpoint's weights are quantized with {method}{f' ({what})' if what else ''}, which is not read",
        hint="fetch the model in 16 bits, or in a quantization that docs/convert.md lists",
    )
