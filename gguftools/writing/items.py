"""What a file wants of a tensor, and how ranges of its rows are read, decoded and encoded."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quants import Format, Tensor
from quants.errors import FileError, FormatError

from .finiteness import check_finite, check_finite_values, not_finite

Floats = NDArray[np.float32]


class Ready(NamedTuple):
    """Rows that were encoded before: a tensor in the format that is wanted; what was said of it, and by what it was
    made, for who takes up a run again.
    """

    tensor: Tensor
    remark: Mapping[str, Any]
    made_by: str


class Groups(NamedTuple):
    """Importance of groups of rows, one after another. weights: float32 (groups, width). rows: of a group. first: row
    of the tensor at which the first of these groups begins.
    """

    weights: Floats
    rows: int
    first: int = 0


class Item(NamedTuple):
    """A tensor of a file to be written.

    tensor: what is read; its name is the name that is stored. format: what it is stored in.
    importance: float32 (groups, width) or None; each group weighs an equal share of the rows (one group an expert).
    ready: where its rows are encoded already.
    """

    tensor: Tensor
    format: Format
    importance: Floats | None = None
    ready: Ready | None = None

    @property
    def is_copy(self) -> bool:
        return self.format.name == self.tensor.format.name

    @property
    def nbytes(self) -> int:
        return self.tensor.rows * self.format.row_bytes(self.tensor.width) + self.format.tail_bytes

    def groups(self, start: int, stop: int) -> Groups | None:
        """The importance of rows start … stop."""
        if self.importance is None:
            return None
        share = max(1, self.tensor.rows // len(self.importance))
        first = start // share
        return Groups(self.importance[first : max(first + 1, -(-stop // share))], share, first * share)


class Piece(NamedTuple):
    """What one file wants of a range of rows, without the tensor that they are of. is_copy: as they are stored."""

    format: Format
    is_copy: bool
    groups: Groups | None = None
    ready: NDArray[np.uint8] | None = None


def read_rows(tensor: Tensor, start: int, stop: int, finite: bool = True) -> NDArray[np.uint8]:
    """Stored bytes of rows. Raises FileError; FormatError for a NaN or infinity, if all are to be finite."""
    try:
        raw = tensor.raw(start, stop)
    except OSError as error:
        raise FileError(f"{tensor.where} cannot be read: {error.strerror or error}") from error
    if finite:
        check_finite(tensor, raw, start)
    return raw


def decode_rows(tensor: Tensor, raw: NDArray[np.uint8], start: int) -> Floats:
    """Values of rows from `start` on. Raises FormatError for a NaN or infinity that decoding a block format gives."""
    values = tensor.format.decode(np.ascontiguousarray(raw))
    if tensor.format.is_quantized:
        check_finite_values(tensor, values, start)
    return values


def encode_rows(item: Item, values: Floats, first_row: int) -> NDArray[np.uint8]:
    """Encode rows from `first_row` on, each with its group's importance, or take those that are ready.

    Raises FormatError beyond the range of F16.
    """
    stop = first_row + len(values)
    return encode_piece(piece(item, first_row, stop), values, first_row, item.tensor.name)


def piece(item: Item, start: int, stop: int) -> Piece:
    """What an item wants of rows start … stop."""
    ready = None if item.ready is None else item.ready.tensor.raw(start, stop)
    return Piece(item.format, item.is_copy, item.groups(start, stop), ready)


def encode_piece(wanted: Piece, values: Floats, first_row: int, name: str) -> NDArray[np.uint8]:
    """The same of rows without their tensor, whose name is for messages."""
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
    """Refuse finite values that became infinite in F16: they make a model that doesn't work."""
    if form.name == "F16" and (wrong := not_finite(form, encoded)) is not None:
        row, column = divmod(int(np.argmax(wrong)), width)
        where = f"row {first_row + row}, column {column}"
        problem = f"tensor {name!r} has a value in {where} that is beyond the range of F16"
        raise FormatError(problem, hint="choose BF16 or F32 for it")
