"""The threads that run machine operations together (see `kernels.thread_team`): one team in a process, shared by all
graphs.

Helper threads wait for the next graph for a while. If each model had its own, they would compete with those of another
model that alternates with it, as a draft model does.
"""

import os
from collections.abc import Callable
from functools import cache
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from quants.threads import started_pool

from .kernels import thread_team

BYTES_OF_A_WAIT = 1 << 16  # of weights that a thread reads in the time that a barrier may take
FOREVER = 1 << 62  # more than any count of arrivals: nobody waits


class Team:
    """A number of threads, including the caller's; one graph runs at a time."""

    def __init__(self, threads: int) -> None:
        self.threads, self.lock = threads, Lock()
        self.task, self.counter = np.zeros(2, np.int64), np.zeros(1, np.int64)
        self.states = np.full(thread_team.APART * threads, thread_team.GONE)
        self.helpers = started_pool(max(1, threads - 1), "token")
        self.error: BaseException | None = None

    def run(self, rows: NDArray[np.int64], prepare: Callable[[], None], empty: Callable[[], None]) -> None:
        """Run operations, (n, FIELDS), after `prepare` has filled them in.

        empty: makes operations do nothing, for threads that wait for an interrupted one. Raises what prepare does, and
        any error of another thread.
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
        """Let a thread run the operations: one that lingers from the last run, or a new one."""
        if thread_team.call(self.states, thread):
            return
        self.states[thread_team.APART * thread] = thread_team.CALLED
        try:
            self.helpers.submit(self._serve, thread)
        except BaseException:
            self.states[thread_team.APART * thread] = thread_team.GONE
            raise

    def _serve(self, thread: int) -> None:
        """Run graphs as a thread of the pool. If that fails, as for a kernel that cannot be loaded, the others no
        longer wait for this thread, and `run` raises the error.
        """
        try:
            thread_team.serve(self.task, self.counter, thread, self.threads, self.states)
        except BaseException as error:
            self.error = error
            self.counter[0] = FOREVER
            self.states[thread_team.APART * thread] = thread_team.GONE


def worth(threads: int, rows: NDArray[np.int64], read: int) -> int:
    """Return how many threads to run operations with that read so many bytes: one if waiting would cost more than it
    saves.
    """
    return threads if read > BYTES_OF_A_WAIT * int(rows[:, thread_team.WAIT].sum()) else 1


@cache
def team_of(threads: int) -> Team:
    """Return the process's team of this many threads."""
    return Team(threads)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=team_of.cache_clear)  # threads are not inherited
