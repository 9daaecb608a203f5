"""Teams of threads that cannot all start say so; those that can go on."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from quants.errors import OptionError
from runtime.kernels import thread_team as kernels
from runtime.kernels.thread_team import FIELDS, WAIT
from runtime.thread_team import BYTES_OF_A_WAIT, Team, worth


def test_a_team_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def counted(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    nothing = np.zeros((0, FIELDS), np.int64)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", counted)
        with pytest.raises(OptionError, match="7 threads were wanted; only 2 could be started"):
            Team(8).run(nothing, lambda: None, lambda: None)
        assert not any(thread.is_alive() for thread in started)
    team = Team(3)
    for _ in range(3):
        team.run(nothing, lambda: None, lambda: None)
    team.helpers.shutdown()


def test_a_thread_that_fails_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise OSError("no kernel")

    nothing, team = np.zeros((0, FIELDS), np.int64), Team(3)
    with monkeypatch.context() as patched:
        patched.setattr(kernels, "serve", broken)
        with pytest.raises(OSError, match="no kernel"):
            team.run(nothing, lambda: None, lambda: None)
    team.run(nothing, lambda: None, lambda: None)
    team.helpers.shutdown()


def test_little_work_is_one_threads() -> None:
    """Where threads would wait for one another longer than they read; operations after which none waits don't count."""
    rows = np.zeros((5, FIELDS), np.int64)
    rows[:3, WAIT] = 1
    assert worth(4, rows, 3 * BYTES_OF_A_WAIT) == 1
    assert worth(4, rows, 3 * BYTES_OF_A_WAIT + 1) == 4
    assert worth(2, np.zeros((0, FIELDS), np.int64), 1) == 2
