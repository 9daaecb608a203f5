"""Pools start all their threads, or none and say so."""

from __future__ import annotations

import threading

import pytest

from quants.arguments import thread_count
from quants.errors import OptionError
from quants.threads import started_pool


@pytest.fixture
def few_threads(monkeypatch: pytest.MonkeyPatch) -> int:
    """As many threads may start as are returned."""
    start, started = threading.Thread.start, []

    def counted(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counted)
    return 3


def test_pools_start_at_once(few_threads: int) -> None:
    with started_pool(few_threads) as pool:
        meeting = threading.Barrier(few_threads, timeout=60)
        for future in [pool.submit(meeting.wait) for _ in range(few_threads)]:
            future.result()


def test_threads_that_cannot_start(few_threads: int) -> None:
    before = threading.active_count()
    with pytest.raises(OptionError, match="8 threads were wanted; only 3 could be started") as caught:
        started_pool(8)
    assert "ulimit" in str(caught.value.hint)
    assert threading.active_count() == before


def test_more_threads_than_any_machine_has() -> None:
    assert thread_count(1024) == 1024
    with pytest.raises(OptionError, match="100000 threads are wanted; at most 1024"):
        thread_count(100_000)
