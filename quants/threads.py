"""Thread pools whose threads all run from the start, or which say that they cannot."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

from .errors import OptionError

HINT = "use fewer, or allow more processes and memory (ulimit -u, ulimit -v)"


def started_pool(count: int, name: str = "") -> ThreadPoolExecutor:
    """Start a pool of so many threads. Raises OptionError if the system does not allow as many.

    A pool of the standard library starts threads as they are needed. Where one cannot start, the work is in its queue
    already, and an exception says that it is not.
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
