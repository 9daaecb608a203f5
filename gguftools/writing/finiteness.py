"""Check that stored rows are finite: by exponents and scales where these are enough, else by decoded values."""

import numpy as np
from numpy.typing import NDArray

from quants import Format, Tensor
from quants.errors import FormatError

HALF_EXPONENT = np.uint16(0x7C00)


def not_finite(form: Format, raw: NDArray[np.uint8]) -> NDArray[np.bool_] | None:
    """Return for each block of rows (uint8, contiguous) whether a scale is NaN or infinite; None if none is.

    A block format multiplies small integers with its scales, so its values are finite if these are. None is also
    returned for formats whose scales are not fields of a block.
    """
    if form.dialect:  # its scales are not fields of a block
        return None
    if form.infinity is not None:
        bits = raw.reshape(-1).view(f"<u{form.block_bytes}")
        mask = bits.dtype.type(form.infinity)
        # As integers, all that is not finite is largest: what is positive if the sign counts, else what is negative.
        negative = mask | bits.dtype.type(1 << 8 * form.block_bytes - 1)
        if not bits.size or (bits.view(f"<i{form.block_bytes}").max() < form.infinity and bits.max() < negative):
            return None
        return np.asarray((bits & mask) == mask)
    blocks = raw.reshape(-1).view(form.block)
    if form.bad_blocks:
        return form.bad_blocks(blocks)
    halves = [blocks[name].view("<u2") for name, (dtype, *_) in (form.block.fields or {}).items() if dtype == "<f2"]
    wrong = [(bits & HALF_EXPONENT) == HALF_EXPONENT for bits in halves]
    return np.logical_or.reduce(wrong) if wrong else None


def check_finite(tensor: Tensor, raw: NDArray[np.uint8], first_row: int) -> None:
    """Raise FormatError for a NaN or infinity in stored rows of a float format."""
    wrong = None if tensor.format.infinity is None else not_finite(tensor.format, np.ascontiguousarray(raw))
    if wrong is not None:
        row = int(np.argmax(wrong)) // tensor.width
        check_finite_values(tensor, tensor.format.decode(np.ascontiguousarray(raw[row : row + 1])), first_row + row)


def check_finite_values(tensor: Tensor, values: NDArray[np.float32], first_row: int) -> None:
    """Raise FormatError for a NaN or infinity in decoded rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.add.reduce(values, axis=None)):  # an infinite sum may still have finite terms
            return
    places = np.argwhere(~np.isfinite(values))
    if len(places):
        row, column = (int(n) for n in places[0])
        what = "NaN" if np.isnan(values[row, column]) else "infinity"
        where = f"row {first_row + row}, column {column} ({tensor.origin or 'source'})"
        raise FormatError(f"tensor {tensor.name!r} has {what} in {where}", "the source is damaged: fetch it again")
