"""Rows of a weight that workers encode with error feedback.

Rows are independent of each other, given the factors of their inputs' matrix. These are too large to be sent with each
task: they are put into a file beside the output, which workers map where they see it. Rows that come to a worker that
doesn't are encoded by the process that asks.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from quants import Format, format_named

from ..measurement.workers import in_turn
from ..writing.items import Item
from ..writing.remote_tasks import Source, can_travel, tensors_of
from .choosing import SPAN, Encode, Floats, Raw, Way, encode_aimed, encode_by_columns, encode_spans
from .encoded import Encoded, Lent

if TYPE_CHECKING:
    from runtime.products.block_diagonal import BlockDiagonal

ROWS = 4 * SPAN  # of a task


class _Task(NamedTuple):
    """Rows start … stop to encode. lent: weights of the columns, factors, and where rows are `aimed` what they are
    changed by first. source, name: how they are read; or else values: themselves, float32 (rows, width).
    """

    lent: Lent
    aimed: bool
    form: str
    start: int
    stop: int
    source: bytes = b""
    name: str = ""
    values: Floats | None = None


@dataclass(frozen=True)
class Workers:
    """What encodes rows elsewhere. source: how workers read tensors, as far as they can. kept: where factors go."""

    executor: Executor
    source: Source | None
    kept: Encoded
    threads: int  # of this process

    def encode(self, item: Item, first: int, way: Way, change: "BlockDiagonal | None", values: Floats) -> Raw | None:
        """Encode rows of an item's tensor, values (n, width) from its row `first` on, changed first by a `correction`.

        None for too few to be sent, and for what workers do not know how to encode. Raises FileError, FormatError.
        """
        if way.weights is None or len(values) <= ROWS or not can_travel(item.format):
            return None
        changed = [] if change is None else [np.asarray(block, np.float32) for block in change.blocks]
        arrays = [way.weights, *way.factors, *changed]
        lent = self.kept.lend(arrays)
        raw = np.empty((len(values), item.format.row_bytes(values.shape[1])), np.uint8)
        tasks = self._tasks(lent, change is not None, item, first, values)
        with closing(in_turn(self.executor, _encoded, tasks)) as results:
            for task, found in results:
                here = slice(task.start - first, task.stop - first)
                if not len(found):  # the worker does not see the factors
                    found = _encode(arrays, task.aimed, values[here], item.format, self.threads)
                raw[here] = found
        return raw

    def _tasks(self, lent: Lent, aimed: bool, item: Item, first: int, values: Floats) -> Iterator[_Task]:
        name = None if self.source is None else self.source.name_of(item.tensor)
        source = b"" if self.source is None else self.source.description
        for start in range(first, first + len(values), ROWS):
            stop = min(start + ROWS, first + len(values))
            if name is not None:
                yield _Task(lent, aimed, item.format.name, start, stop, source, name)
                continue
            rows = np.ascontiguousarray(values[start - first : stop - first])
            yield _Task(lent, aimed, item.format.name, start, stop, values=rows)


def _encode(arrays: Sequence[Floats], aimed: bool, rows: Floats, form: Format, threads: int) -> Raw:
    """Encode rows with the arrays of a task."""
    from runtime.products.block_diagonal import BlockDiagonal

    weights, *blocks = arrays
    count = len(blocks) // 2 if aimed else len(blocks)
    encode: Encode = partial(encode_by_columns, form, blocks[:count], weights)
    if aimed:
        encode = partial(encode_aimed, encode, BlockDiagonal(tuple(blocks[count:])))
    return encode_spans(encode, rows, form, threads)


def _encoded(task: _Task) -> Raw:
    """What a worker does; nothing where it does not see the factors. Raises FileError as `tensors_of` does."""
    try:
        arrays = _mapped(task.lent)
    except LookupError:
        return np.empty(0, np.uint8)
    rows = task.values
    if rows is None:
        rows = tensors_of(task.source)[task.name].float32(task.start, task.stop)
    return _encode(arrays, task.aimed, rows, format_named(task.form), 1)


@lru_cache(maxsize=2)
def _mapped(lent: Lent) -> list[Floats]:
    """Raises LookupError where they are not here, which is not remembered."""
    arrays = lent.arrays()
    if arrays is None:
        raise LookupError(str(lent.path))
    return arrays
