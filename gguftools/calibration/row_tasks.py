"""Let workers encode rows of a weight with error feedback.

Rows are independent of each other, given the factors of their inputs' matrix. These are too large to be sent with each
task. So they are written to a file next to the output, which workers map if they see it. Rows of a worker that doesn't
are encoded by the calling process.
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
from ..writing.remote_tasks import Source, known_to_workers, tensors_of
from .choosing import Encode, Method, encode_aimed, encode_spans
from .computed import SPAN, Floats, Processor, Raw
from .encoded import Encoded, Lent

if TYPE_CHECKING:
    from runtime.products.block_diagonal import BlockDiagonal

ROWS = 4 * SPAN  # of a task


class _Task(NamedTuple):
    """Describe rows start … stop to encode.

    lent: weights of the columns, factors, and if `aimed`, the correction added to rows first. source, name: how workers
    read the rows; or else values: the rows, float32 (rows, width).
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
    """Encode rows on workers. source: how workers read tensors. kept: where factors are written."""

    executor: Executor
    source: Source | None
    kept: Encoded
    threads: int  # of this process

    def encode(
        self, item: Item, first: int, method: Method, change: "BlockDiagonal | None", values: Floats
    ) -> Raw | None:
        """Encode rows of an item's tensor: values (n, width) from its row `first` on, after adding a `correction`.

        Returns None for too few rows, and for ways and formats that workers do not know. Raises FileError, FormatError.
        """
        if method.weights is None or len(values) <= ROWS or not known_to_workers(item.format):
            return None
        changed = [] if change is None else [np.asarray(block, np.float32) for block in change.blocks]
        arrays = [method.weights, *method.factors, *changed]
        lent = self.kept.lend(arrays)
        raw = np.empty((len(values), item.format.row_bytes(values.shape[1])), np.uint8)
        tasks = self._tasks(lent, change is not None, item, first, values)
        with closing(in_turn(self.executor, _encoded, tasks)) as results:
            for task, encoded in results:
                here = slice(task.start - first, task.stop - first)
                if not len(encoded):  # the worker does not see the factors
                    encoded = _encode(arrays, task.aimed, values[here], item.format, self.threads)
                raw[here] = encoded
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
    processor = Processor(threads)
    encode: Encode = partial(processor.encode_by_columns, form, blocks[:count], weights)
    if aimed:
        encode = partial(encode_aimed, encode, BlockDiagonal(tuple(blocks[count:])))
    return encode_spans(encode, rows, form, processor)


def _encoded(task: _Task) -> Raw:
    """Encode rows on a worker; return an empty array if it does not see the factors.

    Raises FileError as `tensors_of`.
    """
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
    """Map a task's arrays. Raises LookupError if they are not here, which is not cached."""
    arrays = lent.arrays()
    if arrays is None:
        raise LookupError(str(lent.path))
    return arrays
