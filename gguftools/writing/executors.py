"""Run functions of plain data on executors outside this process; repeat tasks whose worker was lost.

An executor is one of `concurrent.futures`: a process pool, a Dask client's `get_executor()`, or any object with
`submit`. Thread pools are not handled here.
"""

import logging
import os
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import suppress
from multiprocessing import connection
from operator import itemgetter
from threading import Lock
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from quants.errors import FileError

log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")

LOSSES = 24  # in a row without a result between them
FIRST_WAIT, LONGEST_WAIT = 0.1, 3.0  # seconds before a lost task is sent again
WATCH = 2.0  # seconds between two checks of a silent pool
WAKE = 10.0  # seconds that a pool gets to notice that it is broken
LAST_WAIT = 60.0  # seconds that unneeded running tasks get to end
AHEAD = 2  # tasks sent per worker
LOST = (BrokenExecutor, CancelledError, ConnectionError, TimeoutError, EOFError)
FOREIGN = ("distributed", "ray")  # their own errors are about workers, unless a task raised them

# Pools that replace broken ones, as long as the broken one is referenced: a run sends work several times.
_standing_in: WeakKeyDictionary[Executor, ProcessPoolExecutor] = WeakKeyDictionary()
_renewing = Lock()


def leaves_process(executor: Executor | None) -> bool:
    """Return True if tasks must be plain data: for every executor but threads of this process."""
    return executor is not None and not isinstance(executor, ThreadPoolExecutor)


def worker_count(executor: Executor) -> int:
    """Return how many tasks an executor runs at a time, as far as it tells."""
    client: Any = getattr(executor, "_client", None)  # Dask's
    if client is not None and hasattr(client, "nthreads"):
        with suppress(Exception):  # no worker has come yet, or a scheduler of another version
            return max(1, int(sum(client.nthreads().values())))
    known = getattr(executor, "_max_workers", None)
    return known if isinstance(known, int) else os.cpu_count() or 1


def current_executor(executor: Executor) -> Executor:
    """Return the executor itself, or the pool that replaced it after it broke."""
    return _standing_in.get(executor, executor)


def release(executor: Executor) -> None:
    """End the processes of the pool that replaced an executor; without an executor left, they end by themselves."""
    pool = _standing_in.pop(executor, None)
    if pool is not None:
        pool.shutdown(wait=True, cancel_futures=True)


def _renewed(given: Executor, broken: ProcessPoolExecutor) -> Executor:
    """Return a pool like one that broke; another thread may have made it already."""
    with _renewing:
        if current_executor(given) is broken:
            # A pool's settings are private.
            pool: Any = broken
            _kill(pool)
            same = {"mp_context": pool._mp_context, "initializer": pool._initializer, "initargs": pool._initargs}
            release(given)
            _standing_in[given] = ProcessPoolExecutor(pool._max_workers, **same)
        return current_executor(given)


class _Sent(NamedTuple):
    """Hold a running task: its number, and the executor it was sent to."""

    number: int
    task: Any
    executor: Executor


class _Work:
    """Track tasks on an executor: those to repeat, those that run, and the pool that replaces a broken one."""

    def __init__(self, executor: Executor, function: Callable[[Any], Any], tasks: Iterable[Any]) -> None:
        self._given, self._executor = executor, current_executor(executor)
        self._function = function
        self._queue = enumerate(tasks)
        self._again: list[tuple[int, Any]] = []
        self._losses = 0
        self.running: dict[Future[Any], _Sent] = {}

    def send(self, kept: int) -> None:
        """Send tasks, lost ones first, until enough are running or wait for their turn."""
        room = AHEAD * worker_count(self._executor) - len(self.running) - kept
        while room > 0 and (entry := self._again.pop(0) if self._again else next(self._queue, None)):
            number, task = entry
            try:
                future = self._executor.submit(self._function, task)
            except Exception as error:
                # A breaking pool may close its pipes before it reports that it is broken.
                closed = isinstance(error, OSError) and isinstance(self._executor, ProcessPoolExecutor)
                if not is_worker_loss(error) and not closed:
                    raise
                self._again.insert(0, entry)
                self.lost(BrokenExecutor(_first_line(error)) if closed else error, self._executor)
                continue
            self.running[future] = _Sent(number, task, self._executor)
            room -= 1

    def result(self, future: Future[Any]) -> Any:
        """Return the result of a task; None if its worker was lost, so that the task will be repeated."""
        try:
            error = future.exception()  # not raised here: its traceback would keep this work, and so the pool, alive
        except CancelledError as cancelled:
            error = cancelled.with_traceback(None)
        if error is None:
            self._losses = 0
            return future.result()
        error = raised(error)
        if not is_worker_loss(error):
            raise error
        self.lost(error, self.running[future].executor, future)
        return None

    def lost(self, error: BaseException, executor: Executor, future: Future[Any] | None = None) -> None:
        """Take back lost tasks, wait, and replace a broken pool. Raises FileError after too many losses."""
        broken = isinstance(error, BrokenExecutor)
        gone = [f for f, sent in self.running.items() if f is future or (broken and sent.executor is executor)]
        again = [self.running.pop(each) for each in gone]
        self._again = sorted([*((sent.number, sent.task) for sent in again), *self._again], key=itemgetter(0))
        self._losses += 1
        if self._losses > LOSSES:
            problem = f"workers were lost {self._losses} times in a row: {_first_line(error)}"
            hint = "see whether they have enough memory; the same call with `resume` goes on from what is written"
            raise FileError(problem, hint) from OSError(str(error))  # not the source's fault: what is written is kept
        log.info("a worker was lost (%s); its work is done again", _first_line(error))
        time.sleep(min(LONGEST_WAIT, FIRST_WAIT * 2 ** (self._losses - 1)))
        if broken and executor is self._executor and isinstance(executor, ProcessPoolExecutor):
            self._executor = _renewed(self._given, executor)  # for it is unusable once a process of it died

    def check(self) -> None:
        """Check for a pool that broke silently: a task sent to it meanwhile can hang.

        Replace lost workers of a visible Dask cluster.
        """
        if getattr(self._executor, "_broken", False) or _has_ended_processes(self._executor):
            self.lost(BrokenExecutor("a process of the pool ended"), self._executor)
        cluster: Any = getattr(getattr(self._executor, "_client", None), "cluster", None)
        if hasattr(cluster, "worker_spec"):  # Dask gives up workers of this machine that are away for 15 seconds
            cluster.scale(len(cluster.worker_spec))

    def end(self) -> None:
        """Wait until no task is running."""
        wait([future for future in self.running if not future.cancel()], LAST_WAIT)


def run_on_executor(
    executor: Executor, function: Callable[[T], R], tasks: Iterable[T], *, in_order: bool = False
) -> Generator[tuple[T, R], None, None]:
    """Call `function(task)` for every task on the executor; yields (task, result) as they are done, or in_order.

    function: of a module, so that workers can import it; never returns None. Tasks and results are pickled. At a time,
    only as many tasks are sent as keep workers busy; when this generator is closed, none is running. A task whose
    worker was lost is repeated, on a new pool if the old one broke. Raises what the function raises; FileError after
    too many losses in a row.
    """
    work = _Work(executor, function, tasks)
    kept: dict[int, tuple[T, R]] = {}  # done before their turn
    following = 0
    try:
        while True:
            work.send(len(kept))
            if not work.running:
                return
            ended = wait(work.running, WATCH, return_when=FIRST_COMPLETED).done
            if not ended:
                work.check()
            for future in ended:
                sent = work.running.get(future)
                if sent is None or (result := work.result(future)) is None:  # lost with others, or by itself
                    continue
                del work.running[future]
                if not in_order:
                    yield sent.task, result
                    continue
                kept[sent.number] = sent.task, result
                while following in kept:
                    yield kept.pop(following)
                    following += 1
    finally:
        work.end()


def _has_ended_processes(executor: Executor) -> bool:
    """Return True if a process of a pool has ended, though the pool does not report that it is broken."""
    processes = (getattr(executor, "_processes", None) or {}) if isinstance(executor, ProcessPoolExecutor) else {}
    return bool(processes and connection.wait([each.sentinel for each in list(processes.values())], 0))


def _kill(pool: Any) -> None:
    """End the remaining processes of a broken pool; Python would wait for them at exit."""
    for process in list((pool._processes or {}).values()):
        process.kill()
    _wake(pool)


def _wake(pool: Any) -> None:
    """Make a pool notice that it is broken.

    If a process is killed while it sends a result, Python's pool waits for the rest for ever. So it gets zeros, which
    are no result.
    """
    writer = getattr(getattr(pool, "_result_queue", None), "_writer", None)
    if writer is None or os.name != "posix":
        return
    end = time.monotonic() + WAKE
    with suppress(OSError, ValueError):  # the pipe is closed: the pool has seen it
        os.set_blocking(writer.fileno(), False)
        while _is_watched(pool) and not pool._broken and time.monotonic() < end:
            with suppress(BlockingIOError):
                os.write(writer.fileno(), bytes(4096))
            time.sleep(0.001)


def _is_watched(pool: Any) -> bool:
    """Return True if the thread that reads a pool's results is alive."""
    thread = getattr(pool, "_executor_manager_thread", None)
    return thread is not None and thread.is_alive()


def raised(error: BaseException) -> BaseException:
    """Return the error that a task raised; Ray wraps it in one of its own."""
    cause = getattr(error, "cause", None)
    is_wrapped = type(error).__module__ == "ray.exceptions" and type(error).__name__.startswith("RayTaskError")
    return cause if is_wrapped and isinstance(cause, BaseException) else error


def is_worker_loss(error: BaseException) -> bool:
    """Return True for an error about a worker or its connection, not about the task."""
    return isinstance(error, LOST) or type(error).__module__.partition(".")[0] in FOREIGN


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
