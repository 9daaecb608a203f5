"""Looking at every row of many tensors: blocks of rows, in threads, never more than a few blocks in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from quants import Tensor

from .pipeline import BLOCK_VALUES, Progress, thread_count

T = TypeVar("T")
Block = tuple[Tensor, int, int]  # rows start … stop of a tensor


def over_rows(
    tensors: Iterable[Tensor],
    look: Callable[[Tensor, int, int], T],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[Tensor, int, T]]:
    """Call `look(tensor, start, stop)` for every block of rows; yields (tensor, start, result) in order.

    progress(bytes done, of how many, tensor): called in this thread. What `look` raises is raised here.
    """
    tensors = list(tensors)
    threads = thread_count(threads)
    total, done = sum(tensor.nbytes for tensor in tensors), 0
    running: deque[tuple[list[Block], Future[list[T]]]] = deque()

    def look_at(batch: list[Block]) -> list[T]:
        return [look(*block) for block in batch]

    with ThreadPoolExecutor(threads) as pool:
        try:
            queue = _batches(tensors)
            while True:
                while len(running) < 2 * threads and (waiting := next(queue, None)):
                    running.append((waiting, pool.submit(look_at, waiting)))
                if not running:
                    return
                batch, future = running.popleft()
                for (tensor, start, stop), result in zip(batch, future.result(), strict=True):
                    yield tensor, start, result
                    done += (stop - start) * tensor.row_bytes
                if progress:
                    progress(done, total, batch[-1][0].name)
        finally:
            for _, future in running:
                future.cancel()


def _batches(tensors: Iterable[Tensor]) -> Iterator[list[Block]]:
    """Blocks, small ones together, so that a thread is asked once for many small tensors."""
    batch: list[Block] = []
    values = 0
    for tensor, start, stop in _blocks(tensors):
        more = (stop - start) * tensor.width
        if batch and values + more > BLOCK_VALUES:
            yield batch
            batch, values = [], 0
        batch.append((tensor, start, stop))
        values += more
    if batch:
        yield batch


def _blocks(tensors: Iterable[Tensor]) -> Iterator[Block]:
    for tensor in tensors:
        step = max(1, BLOCK_VALUES // max(1, tensor.width))
        for start in range(0, tensor.rows, step):
            yield tensor, start, min(start + step, tensor.rows)
