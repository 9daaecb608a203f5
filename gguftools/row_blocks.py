"""Looking at every row of many tensors: blocks of rows, in threads, never more than a few blocks in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from quants import Tensor

from .pipeline import BLOCK_VALUES, Progress, thread_count

T = TypeVar("T")


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
    running: deque[tuple[Tensor, int, int, Future[T]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            queue = _blocks(tensors)
            while True:
                while len(running) < 2 * threads and (block := next(queue, None)):
                    running.append((*block, pool.submit(look, *block)))
                if not running:
                    return
                tensor, start, stop, future = running.popleft()
                yield tensor, start, future.result()
                done += (stop - start) * tensor.row_bytes
                if progress:
                    progress(done, total, tensor.name)
        finally:
            for *_, future in running:
                future.cancel()


def _blocks(tensors: Iterable[Tensor]) -> Iterator[tuple[Tensor, int, int]]:
    for tensor in tensors:
        step = max(1, BLOCK_VALUES // max(1, tensor.width))
        for start in range(0, tensor.rows, step):
            yield tensor, start, min(start + step, tensor.rows)
