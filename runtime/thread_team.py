"""The threads that run lists of operations in step (see `kernels.team`): one team in a process, whoever has a list.

Helpers linger for the next list. Were they those of one model, they would be in the way of another that takes turns
with it, as a draft does.
"""

import os
from collections.abc import Callable
from functools import cache
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from quants.threads import started_pool

from .kernels import thread_team

BYTES_OF_A_WAIT = 1 << 16  # of weights that a thread reads in the time that threads may take to wait for one another
FOREVER = 1 << 62  # more than any count of arrivals: nobody waits for another


class Team:
    """So many threads, the caller's among them; one list runs at a time."""

    def __init__(self, threads: int) -> None:
        self.threads, self.lock = threads, Lock()
        self.task, self.counter = np.zeros(2, np.int64), np.zeros(1, np.int64)
        self.states = np.full(thread_team.APART * threads, thread_team.GONE)
        self.helpers = started_pool(max(1, threads - 1), "token")
        self.error: BaseException | None = None

    def run(self, rows: NDArray[np.int64], prepare: Callable[[], None], empty: Callable[[], None]) -> None:
        """Run operations, (n, FIELDS), when `prepare` has written what is in them.

        empty: makes operations do nothing, for those who wait for a thread that was interrupted. Raises what prepare
        does, and what kept another thread from running.
        """
        with self.lock:
            self.counter[0], self.task[:], self.error = 0, (rows.ctypes.data, len(rows)), None
            try:
                for thread in range(1, self.threads):  # they wake while `prepare` runs, and wait for this thread
                    self._call(thread)
                prepare()
                thread_team.run(self.task, self.counter, self.threads, self.states)
                if self.error is not None:
                    raise self.error
            except BaseException:
                empty()
                self.counter[0] = FOREVER
                thread_team.run(self.task, self.counter, self.threads, self.states)
                raise

    def _call(self, thread: int) -> None:
        """Have a thread run the operations: one that lingers from the list before, or a new one."""
        if thread_team.call(self.states, thread):
            return
        self.states[thread_team.APART * thread] = thread_team.CALLED
        try:
            self.helpers.submit(self._serve, thread)
        except BaseException:
            self.states[thread_team.APART * thread] = thread_team.GONE
            raise

    def _serve(self, thread: int) -> None:
        """Run lists as a thread of the pool. Where that fails, as a kernel that cannot be loaded does, the others no
        longer wait for this thread, and `run` raises the error.
        """
        try:
            thread_team.serve(self.task, self.counter, thread, self.threads, self.states)
        except BaseException as error:
            self.error = error
            self.counter[0] = FOREVER
            self.states[thread_team.APART * thread] = thread_team.GONE


def worth(threads: int, rows: NDArray[np.int64], read: int) -> int:
    """Return how many threads to run operations with that read so many bytes: one where others would wait more than
    help.
    """
    return threads if read > BYTES_OF_A_WAIT * int(rows[:, thread_team.WAIT].sum()) else 1


@cache
def team_of(threads: int) -> Team:
    """Return the process's team of so many."""
    return Team(threads)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=team_of.cache_clear)  # threads don't come along
