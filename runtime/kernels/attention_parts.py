"""Division of attention's work for a few tokens: positions into parts, rows into pieces, groups of heads into spans."""

import numpy as np

from quants.kernels.jit import inlined
from quants.kernels.lanes import LANES

from .attention_tiles import ROWS
from .context_state import POSITIONS, SLOTS, TOKENS
from .head_operations import HEADS

# Fields of `attend` and `finish_heads`, in addition to those of `head_operations`. HEADS: of a group with common keys;
# PARTS: the maximum number of parts of the positions
GROUPS, VALUE_WIDTH, WINDOW, CHUNK, PARTIAL, PARTS = 13, 14, 15, 16, 17, 18

ROW_LIMIT = 16  # rows of queries that use a key together
MIN_PART = 96  # positions
UNITS = 24  # maximum of a text, unless its heads make more: as many for two threads as for three
FEW_PARTS = 4  # with fewer, groups are in several spans
LONGEST, BLOCK_FLOATS = 64, 8192  # positions of a block, and what fits a core's first cache
SCORES = LONGEST + LANES  # from one row of scores to the next: tiles write past the last position


@inlined
def first_seen(op, at):  # type: ignore[no-untyped-def]
    """Return the first position visible to the token at this one."""
    first = max(0, at - op[WINDOW] + 1) if op[WINDOW] else np.int64(0)
    return max(first, at // op[CHUNK] * op[CHUNK]) if op[CHUNK] else first


@inlined
def end_of_text(state, t):  # type: ignore[no-untyped-def]
    """Return the number of the token after those of the text of token t."""
    slot = state[SLOTS + t]
    while t < state[TOKENS] and state[SLOTS + t] == slot:
        t += 1
    return t


@inlined
def row_pieces(op, rows):  # type: ignore[no-untyped-def]
    """Return the number of pieces of a text's rows, and the rows of each."""
    pieces = (rows + ROW_LIMIT - 1) // ROW_LIMIT
    each = ((rows + pieces - 1) // pieces + ROWS - 1) // ROWS * ROWS
    return (rows + each - 1) // each, each


@inlined
def position_parts(op, pieces, length):  # type: ignore[no-untyped-def]
    """Return the number of parts of the positions, and the length of each."""
    wanted = min(length // MIN_PART, op[PARTS], UNITS // pieces)
    wanted = wanted // 2 * 2 if wanted > 1 else 1
    each = ((length + wanted - 1) // wanted + 3) // 4 * 4
    return (length + each - 1) // each, each


@inlined
def group_spans(op, pieces, parts):  # type: ignore[no-untyped-def]
    """Return the number of spans of the groups, and the groups of each."""
    wanted = 1 if parts >= FEW_PARTS else max(1, min(op[GROUPS], UNITS // (pieces * parts)))
    each = (op[GROUPS] + wanted - 1) // wanted
    return (op[GROUPS] + each - 1) // each, each


@inlined
def parts_of(op, state, t):  # type: ignore[no-untyped-def]
    """Return the number of parts of the positions of the text of token t."""
    first, text_end = t, end_of_text(state, t)
    while first > 0 and state[SLOTS + first - 1] == state[SLOTS + t]:
        first -= 1
    pieces, _ = row_pieces(op, (text_end - first) * op[HEADS])
    length = state[POSITIONS + text_end - 1] + 1 - first_seen(op, state[POSITIONS + first])
    return position_parts(op, pieces, length)[0]


def max_parts(heads: int) -> int:
    """Return the maximum number of parts of a text's positions, by how many heads have common keys."""
    return max(1, UNITS // -(-heads // ROW_LIMIT))


def scratch_room(groups: int, width: int, value_width: int) -> int:
    """Return the float32 that a thread needs: a block of keys and of values, scores, results and queries of a span."""
    wide, value_wide = (-(-each // LANES) * LANES for each in (width, value_width))
    rows = ROW_LIMIT * groups
    return rows * (SCORES + wide + value_wide + LANES) + ROWS * SCORES + LONGEST * (wide + value_wide) + LANES


def partial_room(heads: int, value_width: int, parts: int, tokens: int) -> int:
    """Return float32 for partial results."""
    return tokens * heads * parts * (-(-value_width // LANES) * LANES + LANES)
