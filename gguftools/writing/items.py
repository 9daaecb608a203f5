"""Describe the tensors of a file to be, and read, decode and encode ranges of their rows."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quants import Format, Tensor
from quants.errors import FileError, FormatError

from .finiteness import check_finite, check_finite_values, not_finite

Floats = NDArray[np.float32]


class EncodedRows(NamedTuple):
    """Hold rows that were encoded before.

    tensor: in the output's format. remark: for the report. made_by: what decided its bytes, for resuming.
    """

    tensor: Tensor
    remark: Mapping[str, Any]
    made_by: str


class Groups(NamedTuple):
    """Hold the importance of consecutive groups of rows.

    weights: float32 (groups, width). rows: of a group. first: row of the tensor at which the first of these groups
    begins.
    """

    weights: Floats
    rows: int
    first: int = 0


class Item(NamedTuple):
    """Describe a tensor of a file to be.

    tensor: its source; its name is the stored name. format: of the output. importance: float32 (groups, width) or None;
    each group weighs an equal share of the rows (one group per expert). ready: its rows, if they are encoded already.
    """

    tensor: Tensor
    format: Format
    importance: Floats | None = None
    ready: EncodedRows | None = None

    @property
    def is_copy(self) -> bool:
        return self.format.name == self.tensor.format.name

    @property
    def nbytes(self) -> int:
        return self.tensor.rows * self.format.row_bytes(self.tensor.width) + self.format.tail_bytes

    def groups(self, start: int, stop: int) -> Groups | None:
        """Return the importance of rows start … stop."""
        if self.importance is None:
            return None
        share = max(1, self.tensor.rows // len(self.importance))
        first = start // share
        return Groups(self.importance[first : max(first + 1, -(-stop // share))], share, first * share)


class Piece(NamedTuple):
    """Describe what one file needs of a range of rows, without the tensor. is_copy: the stored bytes."""

    format: Format
    is_copy: bool
    groups: Groups | None = None
    ready: NDArray[np.uint8] | None = None


def read_rows(tensor: Tensor, start: int, stop: int, finite: bool = True) -> NDArray[np.uint8]:
    """Return stored bytes of rows, uint8. Raises FileError; with `finite`, FormatError for a NaN or infinity."""
    try:
        raw = tensor.raw(start, stop)
    except OSError as error:
        raise FileError(f"{tensor.where} cannot be read: {error.strerror or error}") from error
    if finite:
        check_finite(tensor, raw, start)
    return raw


def decode_rows(tensor: Tensor, raw: NDArray[np.uint8], start: int) -> Floats:
    """Decode rows from `start` on to float32. Raises FormatError for a NaN or infinity in a block format."""
    values = tensor.format.decode(np.ascontiguousarray(raw))
    if tensor.format.is_quantized:
        check_finite_values(tensor, values, start)
    return values


def encode_rows(item: Item, values: Floats, first_row: int) -> NDArray[np.uint8]:
    """Encode rows from `first_row` on, each with its group's importance, or take those that are ready.

    Raises FormatError for values beyond the range of F16.
    """
    stop = first_row + len(values)
    return encode_piece(piece(item, first_row, stop), values, first_row, item.tensor.name)


def piece(item: Item, start: int, stop: int) -> Piece:
    """Return what an item needs of rows start … stop."""
    ready = None if item.ready is None else item.ready.tensor.raw(start, stop)
    return Piece(item.format, item.is_copy, item.groups(start, stop), ready)


def encode_piece(wanted: Piece, values: Floats, first_row: int, name: str) -> NDArray[np.uint8]:
    """Encode rows as `encode_rows`, without their tensor. name: for messages."""
    if wanted.ready is not None:
        return wanted.ready
    form, groups = wanted.format, wanted.groups
    if groups is None:
        encoded = form.encode(values, None)
        _check_range(form, encoded, first_row, values.shape[-1], name)
        return encoded
    if len(groups.weights) == 1:
        return form.encode(values, groups.weights[0])
    pieces, start = [], 0
    while start < len(values):
        group = (first_row + start - groups.first) // groups.rows
        stop = min(len(values), groups.first + (group + 1) * groups.rows - first_row)
        pieces.append(form.encode(values[start:stop], groups.weights[group]))
        start = stop
    return np.concatenate(pieces)


def _check_range(form: Format, encoded: NDArray[np.uint8], first_row: int, width: int, name: str) -> None:
    """Raise FormatError for finite values that became infinite in F16: the model would not work."""
    if form.name == "F16" and (wrong := not_finite(form, encoded)) is not None:
        row, column = divmod(int(np.argmax(wrong)), width)
        where = f"row {first_row + row}, column {column}"
        problem = f"tensor {name!r} has a value in {where} that is beyond the range of F16"
        raise FormatError(problem, hint="choose BF16 or F32 for it")
