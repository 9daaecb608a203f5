"""Work is shared between threads, also in a process that was forked from one that has shared work."""

from __future__ import annotations

import os
import threading

import pytest

from runtime.kernels.threads import parallel

PIECES = [(0, 1), (1, 2)]


def meet() -> None:
    """Do two pieces that wait for each other. Raises BrokenBarrierError where one thread alone works."""
    barrier = threading.Barrier(2, timeout=60)

    def piece(start: int, stop: int) -> None:
        barrier.wait()

    parallel(piece, PIECES, 2)


def test_pieces_run_at_the_same_time() -> None:
    meet()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    meet()
    child = os.fork()
    if child == 0:
        try:
            meet()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
