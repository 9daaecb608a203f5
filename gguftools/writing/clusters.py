"""Make executors for workers named on the command line: local processes, or a Dask cluster."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import wait
from typing import Any

from quants.arguments import as_count
from quants.errors import FileError, OptionError
from quants.spelling import quote

from .executors import release

CONNECT_SECONDS = 5
INSTALL = "pip install 'gguftools[distributed]'"


@contextmanager
def executor_for(
    workers: int | None = None, scheduler: str | None = None, tell: Callable[[str], None] = lambda text: None
) -> Iterator[Executor | None]:
    """Yield an executor for `workers` local processes, or for the Dask scheduler at an address; None without either.

    Local workers are a Dask cluster if Dask is installed, and tell(text) gets its dashboard's address; else they are a
    process pool. Raises OptionError for both at once, or for a scheduler without Dask; FileError if none answers.
    """
    if workers is not None and scheduler is not None:
        raise OptionError("workers of this machine and a scheduler were named", "leave out `workers` or `scheduler`")
    if workers is None and scheduler is None:
        yield None
        return
    dask = _dask(scheduler is not None)
    if scheduler is not None:
        with _connected(dask, scheduler) as client:
            yield client.get_executor()
        return
    count = as_count(workers, "workers")
    if dask is None:
        with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=serve) as pool:
            try:
                yield pool
            finally:
                release(pool)
        return
    local = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    with _uninterrupted():
        cluster = dask.LocalCluster(n_workers=count, processes=True, **local)
    with cluster, dask.Client(cluster) as client:
        tell(f"{count} workers; {cluster.dashboard_link} shows them")
        yield client.get_executor()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Block SIGINT in threads and processes started in the block, for good; this thread gets it when the block ends."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # starting this helper process unblocks SIGINT in its thread
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _dask(needed: bool) -> Any:
    try:
        import distributed
    except ImportError:
        if needed:
            raise OptionError("a scheduler needs the package distributed, which is not installed", INSTALL) from None
        return None
    return distributed


@contextmanager
def _connected(dask: Any, address: str) -> Iterator[Any]:
    """Yield a client of the scheduler at an address. It is called first: a client that finds none logs a lot."""

    async def call() -> None:
        await (await dask.comm.connect(address, timeout=CONNECT_SECONDS)).close()

    try:
        asyncio.run(call())
        client = dask.Client(address, timeout=CONNECT_SECONDS)
    except Exception as error:  # a server with another protocol may cause any error
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        hint = "start one with `dask scheduler`, and workers with `dask worker ADDRESS`"
        raise FileError(f"no scheduler answers at {quote(address)}: {reason}", hint) from error
    with client:
        yield client


def serve() -> None:
    """Prepare a worker process: ignore SIGINT, which is for the parent, and end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
