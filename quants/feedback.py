"""Encode with GPTQ error feedback: later columns make up for what rounding a column loses.

The error D of a row of weights changes the product's output by D H D^T, where H is the mean of x x^T over the inputs x.
Rounding each weight to its nearest neighbour ignores correlations between inputs. Here columns are rounded in the order
they are stored in, and each error is carried to the columns that are not rounded yet, as far as they can make up for it
(Frantar et al. 2022, "GPTQ", arXiv 2210.17323). The blocks are ggml's. Scales come from the format's own encoder, run
on the corrected weights when their block's turn comes and weighted by the diagonal of H; nearby scales are used where a
group's columns lose less with them.

Where each value has a code of its own (`Codes`), errors are carried from column to column. Where several values are a
point of a grid (`Points`), a step is eight columns, and the points nearest by the remaining error are chosen. In other
formats errors are carried from block to block.
"""

import numpy as np
from numpy.typing import NDArray

from .codes import Codes
from .errors import FormatError
from .format import Format, format_named

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
INVERTED_AT_ONCE = 128  # rows of a triangle
MIN_DIAGONAL = 1e-7  # of the largest one is added, which keeps nearly dependent columns apart
# Offsets to the scale and minimum numbers that the encoder chose: what else is tried.
MOVES, MINIMUM_MOVES = (-1, 1, -2, 2), (-1, 1)
STEP = 256  # columns within which errors are carried at once; beyond them by a product of matrices


def upper_factor(hessian: Floats | Doubles, damping: float) -> Floats:
    """Return the upper triangular U with U^T U = (H + damping * median of its diagonal)^-1: float32 (width, width).

    hessian: (width, width), symmetric. The median is used because a few columns with large inputs dominate the mean.
    Columns without any input count as having some that correlate with nothing.
    """
    work = np.array(hessian, np.float64)
    work[np.diag_indices_from(work)] += damping_of(work.diagonal().copy(), damping)
    # Reverse the columns, take the lower factor and reverse it back: that gives the upper factor without inverting H.
    upper = np.asarray(np.linalg.cholesky(work[::-1, ::-1]), np.float64)[::-1, ::-1]
    return np.ascontiguousarray(_inverse_of_upper(upper), np.float32)


def damping_of(diagonal: Doubles, damping: float) -> Doubles:
    """Return what `upper_factor` adds to a matrix's diagonal: float64 (width,)."""
    seen = diagonal > 0
    typical = float(np.median(diagonal[seen])) if seen.any() else 1.0
    minimum = MIN_DIAGONAL * diagonal.max(initial=0.0)
    added: Doubles = damping * typical + minimum + np.where(seen, 0.0, typical)
    return added


def _inverse_of_upper(upper: Doubles) -> Doubles:
    """Return the inverse of an upper triangular matrix, computed by halves."""
    size = len(upper)
    if size <= INVERTED_AT_ONCE:
        return np.triu(np.linalg.inv(upper))
    half = size // 2
    inverse = np.zeros_like(upper)
    inverse[:half, :half] = _inverse_of_upper(upper[:half, :half])
    inverse[half:, half:] = _inverse_of_upper(upper[half:, half:])
    inverse[:half, half:] = -inverse[:half, :half] @ upper[:half, half:] @ inverse[half:, half:]
    return inverse


def encode_with_feedback(form: Format, rows: Floats, factor: Floats, weights: Floats) -> NDArray[np.uint8]:
    """Encode float32 rows (n, width): uint8 (n, bytes of a row).

    factor: `upper_factor` of the inputs' matrix, (width, width). weights: its diagonal, float32 (width,), by which the
    format's encoder finds scales. Raises FormatError for a width that blocks do not fit.
    """
    n, width = rows.shape
    if width % form.block_size:
        raise FormatError(f"rows of {width} values; {form.name} needs a multiple of {form.block_size}")
    if form.like:
        other = format_named(form.like)
        return form.encode(other.decode(encode_with_feedback(other, rows, factor, weights)))
    left, raw = np.array(rows, np.float32), np.empty((n, form.row_bytes(width)), np.uint8)
    step, size = step_of(form), form.block_bytes
    for first in range(0, width, step):
        last = min(first + step, width)
        upper = factor[first:last, first:last]
        blocks, errors = encode_step(form, left[:, first:last].copy(), upper, weights[first:last])
        raw[:, first // form.block_size * size : last // form.block_size * size] = blocks
        if last < width:
            left[:, last:] -= errors @ factor[first:last, last:]
    return raw


def step_of(form: Format) -> int:
    """Return the columns that `encode_step` takes, but for the last ones of a row."""
    return max(STEP, form.block_size)


def encode_step(form: Format, own: Floats, upper: Floats, weights: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """Encode neighbouring columns, carrying errors among them.

    own: of rows, corrected by what earlier columns lost, float32 (n, columns); changed. upper, weights: the part of the
    factor and of its diagonal for these columns. Returns their blocks, and their errors (n, columns) over the factor's
    diagonal: columns after them lose errors @ the factor's rows.
    """
    n, width = own.shape
    errors, raw = np.empty((n, width), np.float32), []
    for at in range(0, width, form.block_size):
        here = np.ascontiguousarray(own[:, at : at + form.block_size])
        mattering = np.ascontiguousarray(weights[at : at + form.block_size])
        blocks = form.encode(here, mattering)
        rest = np.ascontiguousarray(upper[at:, at:])
        if form.codes:
            _round(form, form.codes, blocks, own, at, rest, errors, mattering)
        elif form.points:
            from .grid_feedback import choose  # its kernels take long to load

            choose(form, form.points, blocks, own, at, rest, errors, mattering)
        else:
            _carry_block(form, blocks, own, at, rest, errors)
        raw.append(blocks)
    return np.concatenate(raw, axis=1), errors


def _round(
    form: Format,
    codes: Codes,
    blocks: NDArray[np.uint8],
    own: Floats,
    at: int,
    upper: Floats,
    errors: Floats,
    weights: Floats,
) -> None:
    """Choose the codes of blocks (n, bytes) and scales near theirs, for the columns of `own` from `at` on."""
    from .kernels.feedback import round_columns
    from .near_scales import HELD_BACK, with_scales_near

    groups = form.block_size // codes.group
    chosen = np.empty((len(blocks), form.block_size), np.uint8)
    which = np.zeros((len(blocks), groups), np.uint8)
    tried = with_scales_near(blocks, groups, [(codes.scale, MOVES), (codes.minimum, MINIMUM_MOVES)])
    known = np.array([codes.first, codes.last] if codes.even else range(codes.first, codes.last + 1), np.uint8)
    table = meanings(form, codes, tried.blocks.reshape(-1, form.block_bytes), known)
    round_columns(
        own.reshape(-1),
        len(own),
        own.shape[1],
        at,
        upper.reshape(-1),
        len(upper),
        weights * HELD_BACK,
        table.reshape(-1),
        len(tried.blocks),
        len(known),
        codes.group,
        form.block_size,
        codes.first,
        codes.last,
        codes.even,
        np.empty(codes.group, np.float32),
        which.reshape(-1),
        chosen.reshape(-1),
        errors.reshape(-1),
    )
    tried.take(blocks, which)
    put_codes(codes, blocks, chosen)


def _carry_block(form: Format, blocks: NDArray[np.uint8], own: Floats, at: int, upper: Floats, errors: Floats) -> None:
    """Carry the error of whole blocks to the columns after them."""
    size = form.block_size
    lost = own[:, at : at + size] - form.decode(blocks)
    scaled = np.linalg.solve(upper[:size, :size].T.astype(np.float64), lost.T.astype(np.float64)).T
    errors[:, at : at + size] = scaled
    if upper.shape[1] > size:
        own[:, at + size :] -= errors[:, at : at + size] @ upper[:size, size:]


def meanings(form: Format, codes: Codes, blocks: NDArray[np.uint8], known: NDArray[np.uint8]) -> Floats:
    """Return the values of the codes `known` in each group of blocks (n, bytes): float32 (n, groups, known), by the
    format's decoder.
    """
    groups = form.block_size // codes.group
    table, work = np.empty((len(blocks), groups, len(known)), np.float32), blocks.copy()
    for first in range(0, len(known), codes.group):
        these = known[first : first + codes.group]
        each = np.tile(np.resize(these, codes.group), groups)
        put_codes(codes, work, np.broadcast_to(each, (len(work), form.block_size)))
        decoded = form.decode(work).reshape(len(work), groups, codes.group)
        table[:, :, first : first + len(these)] = decoded[:, :, : len(these)]
    return table


def put_codes(codes: Codes, blocks: NDArray[np.uint8], chosen: NDArray[np.uint8]) -> None:
    """Write codes (n, values of a block) into blocks (n, bytes of a block); all other bits stay."""
    from .bit_fields import put

    for plane in codes.planes:
        put(plane, blocks, chosen ^ np.uint8(128) if codes.signed else chosen, plane.place)
