"""Work shared between threads: the caller's own and a few helpers.

numba kernels (`nogil`) and numpy's products release the interpreter lock, so plain threads are enough. Their number is
an argument everywhere: concurrent passes each have their own.
"""

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from quants.threads import started_pool

from .blas import one_thread

Span = tuple[int, int]


@cache
def _pool(count: int) -> ThreadPoolExecutor:
    return started_pool(count, "runtime")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads are not inherited


def spans(count: int, step: int) -> list[Span]:
    """Return 0 … count in pieces of `step`."""
    return [(start, min(start + step, count)) for start in range(0, count, step)]


def shares(count: int, min_share: int, threads: int) -> list[Span]:
    """Return 0 … count in at most one piece a thread, none (but a single one) much smaller than `min_share`."""
    pieces = max(1, min(threads, count // max(1, min_share)))
    return spans(count, -(-count // pieces)) if count else []


def share_out(body: Callable[[int, int], None], count: int, min_share: int, threads: int) -> None:
    """Call body(start, stop) for the `shares` of 0 … count, as `parallel` does."""
    parallel(body, shares(count, min_share, threads), threads)


def parallel(body: Callable[[int, int], None], pieces: Sequence[Span], threads: int) -> None:
    """Call body(start, stop) for every piece, on whichever of the threads is free. Raises what a piece raises.

    Matrix products inside stay on the calling thread.
    """
    turn = itertools.count()  # `next` on it is atomic

    def work() -> None:
        while (i := next(turn)) < len(pieces):
            body(*pieces[i])

    with one_thread():
        waiting = [_pool(threads - 1).submit(work) for _ in range(min(threads, len(pieces)) - 1)]
        try:
            work()
        finally:
            # a helper that has not begun is no longer needed: no work is left, and the pool may have no free thread
            # when pieces themselves call `parallel`
            begun = [future for future in waiting if not future.cancel()]
            for future in begun:
                future.exception()
        for future in begun:
            future.result()
