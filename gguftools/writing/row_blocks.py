"""Work on the rows of many tensors in threads, with only a few blocks of rows in memory."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from quants import Tensor
from quants.arguments import thread_count
from quants.threads import started_pool

BLOCK_VALUES = 1 << 20  # values of a block: 4 MB of float32, which fits in a core's cache

Progress = Callable[[int, int, str], None]


@dataclass
class RowBlock:
    """Describe rows `start` … `stop` of a tensor."""

    tensor: Tensor
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return (self.stop - self.start) * self.tensor.row_bytes

    @property
    def values(self) -> int:
        return (self.stop - self.start) * self.tensor.width


R = TypeVar("R", bound=RowBlock)
T = TypeVar("T")


def over_rows(
    tensors: Iterable[Tensor],
    look: Callable[[Tensor, int, int], T],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[Tensor, int, T]]:
    """Call `look(tensor, start, stop)` for every block of rows; yields (tensor, start, result) in order.

    progress(bytes done, of how many, tensor): called in this thread. Raises what `look` raises.
    """
    tensors = list(tensors)
    threads, total = thread_count(threads), sum(tensor.nbytes for tensor in tensors)
    blocks = (RowBlock(tensor, *rows) for tensor in tensors for rows in row_ranges(tensor))
    results = run_blocks(
        blocks,
        lambda block: look(block.tensor, block.start, block.stop),
        total,
        threads=threads,
        progress=progress,
        in_order=True,
    )
    for block, result in results:
        yield block.tensor, block.start, result


def by_tensor(
    tensors: Iterable[Tensor],
    look: Callable[[Tensor, int, int], T],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> dict[str, list[T]]:
    """Return the results of `over_rows` by tensor name: a list for the blocks of each."""
    tensors = list(tensors)
    results: dict[str, list[T]] = {tensor.name: [] for tensor in tensors}
    for tensor, _, result in over_rows(tensors, look, threads=threads, progress=progress):
        results[tensor.name].append(result)
    return results


def row_ranges(tensor: Tensor, step: int | None = None) -> Sequence[tuple[int, int]]:
    """Return start and end of each block of `step` rows; by default as many as have BLOCK_VALUES values.

    Rows that are stored together are never parted.
    """
    rows = tensor.rows
    step = step or max(1, BLOCK_VALUES // (tensor.width or 1))
    together = tensor.format.rows_together
    step = max(together, step - step % together)
    return ((0, rows),) if 0 < rows <= step else [(start, min(start + step, rows)) for start in range(0, rows, step)]


def run_blocks(
    blocks: Iterable[R],
    perform: Callable[[R], T],
    total: int,
    *,
    threads: int,
    executor: Executor | None = None,
    progress: Progress | None = None,
    in_order: bool = False,
) -> Generator[tuple[R, T], None, None]:
    """Call `perform(block)` for every block, in threads; yields (block, result) as they are done, or in_order.

    Small tensors go to a thread together. At most two such batches per thread are running or wait for the caller to
    take their results; when this generator is closed, none is running. total: bytes of all blocks. executor: runs the
    batches instead of own threads. progress(bytes done, total, tensor): called in this thread. Raises what `perform`
    raises.
    """
    queue, done = batched(blocks), 0
    running: dict[Future[list[T]], list[R]] = {}  # in the order of the blocks
    with nullcontext(executor) if executor else started_pool(threads) as pool:
        try:
            while True:
                for batch in islice(queue, 2 * threads - len(running)):
                    running[pool.submit(lambda batch: list(map(perform, batch)), batch)] = batch
                if not running:
                    return
                ended = [next(iter(running))] if in_order else wait(running, return_when=FIRST_COMPLETED).done
                for future in ended:
                    batch = running.pop(future)
                    yield from zip(batch, future.result(), strict=True)
                    if progress is not None:
                        done += sum(block.nbytes for block in batch)
                        progress(done, total, batch[-1].tensor.name)
        finally:
            for future in running:
                future.cancel()
            wait(running)


def batched(blocks: Iterable[R]) -> Iterator[list[R]]:
    """Group blocks of small tensors, so that each call of a thread has enough work."""
    batch: list[R] = []
    values = 0
    for block in blocks:
        more = (block.stop - block.start) * block.tensor.width
        if batch and (values + more > BLOCK_VALUES or block.tensor is batch[-1].tensor):
            yield batch
            batch, values = [], 0
        batch.append(block)
        values += more
    if batch:
        yield batch
