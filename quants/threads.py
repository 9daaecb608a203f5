"""Thread pools whose threads all start at once, or which raise an error if they cannot."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

from .errors import OptionError

HINT = "use fewer, or allow more processes and memory (ulimit -u, ulimit -v)"


def started_pool(count: int, name: str = "") -> ThreadPoolExecutor:
    """Start a pool of `count` threads. Raises OptionError if the system does not allow as many.

    A pool of the standard library starts threads on demand. Where one cannot start, its work is already in the queue,
    and the exception says nothing about it.
    """
    pool, begin = ThreadPoolExecutor(count, thread_name_prefix=name), Event()
    started = 0
    try:
        while started < count:
            pool.submit(begin.wait)
            started += 1
    except (RuntimeError, MemoryError) as error:  # can't start new thread
        begin.set()
        pool.shutdown(cancel_futures=True)
        raise OptionError(f"{count} threads were wanted; only {started} could be started", HINT) from error
    begin.set()
    return pool
