"""Decode dialects, and convert them to ggml's own formats where one holds the same values exactly."""

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from ..format import F32Rows, Format, RawRows, format_named
from . import reading
from .bits import Fields, Layout, Move, moved, moves, put_together, take_apart
from .layouts import LAYOUTS


@cache
def _layout(form: Format) -> Layout:
    layout = reading(form).layout
    return layout() if layout else {}


@cache
def _stock_layout(name: str) -> Layout:
    return LAYOUTS[name]()


@cache
def _moves(form: Format) -> list[Move]:
    wanted = format_named(form.same_values or "")
    return moves(_layout(form), _stock_layout(wanted.name), wanted.block_bytes)


def _whole_groups(form: Format, raw: RawRows) -> None:
    if len(raw) % form.rows_together:
        some = f"{len(raw)} rows are no whole number of such groups"
        raise FormatError(f"{form.name} has {form.rows_together} rows together; {some}")


def encode(form: Format, rows: F32Rows, importance: NDArray[np.float32] | None) -> RawRows:
    """Raise FormatError: dialects are read only."""
    raise FormatError(f"{form.name} is a format of {form.dialect}; gguftools reads it, and does not write it")


def decode(form: Format, raw: RawRows) -> F32Rows:
    """Decode whole groups of interleaved rows, uint8 (n, bytes of a row) → float32 (n, width).

    Raises FormatError if rows interleaved with them are missing.
    """
    if form.same_values:
        return format_named(form.same_values).decode(restate(form, raw))
    heads, fields = _fields(form, raw)
    values = reading(form).values
    assert values is not None
    return values(heads, fields).reshape(len(raw), -1)


def of_rows(form: Format, tail: NDArray[np.uint8]) -> Format:
    """Return a format with one scale after the tensor as one whose rows begin with it; if it is a half, Q2_0 holds the
    same values.
    """
    scale = np.ascontiguousarray(tail[:4]).view("<f4")
    with np.errstate(over="ignore", invalid="ignore"):
        is_half = scale == scale.astype(np.float16).astype(np.float32)
    return replace(form, head_bytes=4, tail_bytes=0, same_values="Q2_0" if is_half else None)


def restate(form: Format, raw: RawRows) -> RawRows:
    """Return the same rows in the format that `form.same_values` names. Raises FormatError as `decode` does."""
    assert form.same_values is not None
    wanted, restated, rows = format_named(form.same_values), reading(form).restated, form.rows_together
    if restated is None:
        _whole_groups(form, raw)
        blocks = raw.reshape(-1, rows * form.block_bytes)
        separate = moved(blocks, _moves(form), rows * wanted.block_bytes)
        by_row = separate.reshape(len(raw) // rows, -1, rows, wanted.block_bytes)
        return np.ascontiguousarray(by_row.transpose(0, 2, 1, 3)).reshape(len(raw), -1)
    fields = restated(*_fields(form, raw))
    flat = {name: each.reshape(-1, each.shape[-1]) for name, each in fields.items()}
    return put_together(flat, _stock_layout(wanted.name), wanted.block_bytes).reshape(len(raw), -1)


def _fields(form: Format, raw: RawRows) -> tuple[NDArray[np.uint8], Fields]:
    """Return the bytes before the blocks of each row, (n, bytes), and each field's numbers, (n, blocks, count)."""
    rows, n = form.rows_together, len(raw)
    _whole_groups(form, raw)
    groups = raw.reshape(n // rows, -1)
    heads = groups[:, : rows * form.head_bytes].reshape(n, form.head_bytes)
    blocks = np.ascontiguousarray(groups[:, rows * form.head_bytes :]).reshape(-1, rows * form.block_bytes)
    fields: Fields = {}
    for name, labels in _layout(form).items():
        numbers = take_apart(blocks, labels).reshape(len(groups), -1, rows, labels.shape[1])
        fields[name] = numbers.transpose(0, 2, 1, 3).reshape(n, numbers.shape[1], -1)
    return heads, fields
