"""Work on executors: everything once in the end, whatever is lost on the way; order where it is asked for."""

import os
import random
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from gguftools.writing import executors
from gguftools.writing.executors import leaves_process, run_on_executor, worker_count
from quants.errors import FileError, FormatError

from ..elsewhere import spawned


def square(n: int) -> int:
    return n * n


def slow_square(n: int) -> int:
    time.sleep(0.02)
    return n * n


def refused(n: int) -> int:
    raise FormatError(f"{n} is odd", hint="take another")


def die(n: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return n


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(executors, "LONGEST_WAIT", 0.3)


class Losing(Executor):
    """Loses the tasks that `loses` says, of all that it was ever handed, in a way that `how` makes."""

    def __init__(self, loses: Callable[[int], bool], how: Callable[[], BaseException] = ConnectionResetError) -> None:
        self.loses, self.how, self.calls = loses, how, 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += 1
        done: Future[Any] = Future()
        if self.loses(self.calls):
            done.set_exception(self.how())
        else:
            done.set_result(fn(*args, **kwargs))
        return done


def processes(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"))


@pytest.mark.parametrize("how", [ConnectionResetError, CancelledError, TimeoutError, EOFError])
@pytest.mark.parametrize("in_order", [False, True])
def test_what_was_lost_is_done_again(how: Callable[[], BaseException], in_order: bool) -> None:
    executor = Losing(lambda call: call % 3 == 0, how)
    results = list(run_on_executor(executor, square, range(100), in_order=in_order))
    assert sorted(results) == [(n, n * n) for n in range(100)]
    assert executor.calls == 100 + (executor.calls // 3)  # more losses than LOSSES, but never in a row
    if in_order:
        assert results == sorted(results)


def test_errors_of_the_work_itself_are_raised_once() -> None:
    executor = Losing(lambda call: False)
    with pytest.raises(FormatError) as caught:
        list(run_on_executor(executor, refused, [1, 2, 3]))
    assert caught.value.hint == "take another"


def test_nothing_but_losses_is_given_up() -> None:
    executor = Losing(lambda call: True)
    with pytest.raises(FileError, match="workers were lost 25 times in a row") as caught:
        list(run_on_executor(executor, square, [1, 2, 3]))
    assert isinstance(caught.value.__cause__, OSError)  # so that what was written is kept


class Closing(ProcessPoolExecutor):
    """A pool as it is for a moment when a process of it was killed."""

    def submit(self, *call: Any, **options: Any) -> Future[Any]:
        raise OSError("handle is closed")


def test_a_pool_that_is_about_to_break_is_replaced() -> None:
    with Closing(1, mp_context=get_context("spawn")) as pool:
        assert sorted(run_on_executor(pool, square, [1, 2, 3])) == [(1, 1), (2, 4), (3, 9)]
        executors.release(pool)


def test_tasks_are_made_when_there_is_room_for_them() -> None:
    made: list[int] = []

    def tasks() -> Iterator[int]:
        for n in range(100):
            made.append(n)
            yield n

    with ThreadPoolExecutor(2) as pool:
        results = run_on_executor(pool, slow_square, tasks(), in_order=True)
        next(results)
        assert len(made) <= 2 * executors.AHEAD + 1
        results.close()
    assert len(made) <= 2 * executors.AHEAD + 1


def test_of_what_was_lost_the_first_is_done_first() -> None:
    class FourAtATime(Losing):
        _max_workers = 4

    done: list[int] = []

    def noted(n: int) -> bool:
        done.append(n)
        return True

    list(run_on_executor(FourAtATime(lambda call: call <= 8), noted, range(20)))  # all that is sent at first
    assert done == list(range(20))


class Silent(Executor):
    """Does the first task; of others nothing is ever heard, not even when they are cancelled, as of Dask's."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.futures.append(Future())
        if len(self.futures) == 1:
            self.futures[0].set_result(fn(*args, **kwargs))
        return self.futures[-1]


def test_tasks_that_were_cancelled_are_not_waited_for() -> None:
    executor = Silent()
    results = run_on_executor(executor, square, range(1, 5))
    assert next(results) == (1, 1)
    begin = time.monotonic()
    results.close()
    assert time.monotonic() - begin < executors.LAST_WAIT / 2
    assert all(future.cancelled() for future in executor.futures[1:])


def test_errors_of_other_processes_keep_their_hint() -> None:
    with processes(1) as pool, pytest.raises(FormatError, match="1 is odd") as caught:
        list(run_on_executor(pool, refused, [1]))
    assert caught.value.hint == "take another"


def test_a_task_that_kills_every_worker_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "LOSSES", 2)
    with processes(1) as pool, pytest.raises(FileError, match="workers were lost 3 times in a row"):
        list(run_on_executor(pool, die, [1]))


def kill_some(count: int, stop: threading.Event, killed: list[int], find: Callable[[], list[int]]) -> None:
    chance = random.Random(count)
    while len(killed) < count and not stop.wait(chance.uniform(0.01, 0.4)):
        if found := find():
            victim = chance.choice(found)
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed.append(victim)


# Python up to 3.11 iterates over a pool's tasks when it breaks, while others add to them.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="finds processes by /proc")
@pytest.mark.parametrize("kills", [8, pytest.param(20, marks=pytest.mark.slow)])
def test_workers_that_are_killed_again_and_again_lose_nothing(kills: int) -> None:
    stop, killed = threading.Event(), []  # type: tuple[threading.Event, list[int]]
    thread = threading.Thread(target=kill_some, args=(kills, stop, killed, spawned))
    found = []
    with processes(3) as pool:
        thread.start()
        for n, result in run_on_executor(
            pool, slow_square, iter(lambda: len(found) if len(killed) < kills else -1, -1)
        ):
            assert result == n * n
            found.append(n)
        stop.set()
        thread.join()
    assert len(killed) == kills
    assert len(found) > 0


def test_which_executors_leave_the_process() -> None:
    with ThreadPoolExecutor(3) as threads, processes(2) as pool:
        assert not leaves_process(None)
        assert not leaves_process(threads)
        assert leaves_process(pool)
        assert (worker_count(threads), worker_count(pool)) == (3, 2)


def die_first(mark: str) -> str:
    """Kill the worker that does this first, and no other."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return mark
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def killed_while_sending(mark: str) -> str:
    """The first time, send the beginning of a result and be killed, as a process can be that sends a large one."""
    try:
        Path(mark).touch(exist_ok=False)
    except FileExistsError:
        return mark
    frame = sys._getframe()
    while "result_queue" not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    os.write(frame.f_locals["result_queue"]._writer.fileno(), struct.pack("!i", 1000))
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def test_a_worker_that_is_killed_while_it_sends_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "WATCH", 0.1)
    marks = [str(tmp_path / name) for name in "abc"]
    with processes(1) as own:
        assert [result for _, result in run_on_executor(own, killed_while_sending, marks, in_order=True)] == marks
        executors.release(own)


def test_a_broken_pool_is_replaced_once_for_all_that_follows(tmp_path: Path) -> None:
    before = set(spawned())  # of other tests: they end a little later
    with processes(1) as pool:
        assert executors.current_executor(pool) is pool
        assert list(run_on_executor(pool, die_first, [str(tmp_path / "a")])) == [(str(tmp_path / "a"),) * 2]
        instead = executors.current_executor(pool)
        assert instead is not pool
        assert list(run_on_executor(pool, square, [3])) == [(3, 9)]
        assert executors.current_executor(pool) is instead
        executors.release(pool)
        assert executors.current_executor(pool) is pool
    assert set(spawned()) <= before


def test_what_stands_in_for_a_pool_ends_with_it(tmp_path: Path) -> None:
    pool = processes(1)
    list(run_on_executor(pool, die_first, [str(tmp_path / "a")]))
    own = set(spawned())
    assert own
    pool.shutdown()
    del pool
    until = time.monotonic() + 200
    while own & set(spawned()):
        assert time.monotonic() < until
        time.sleep(0.05)


def ray_error(cause: BaseException) -> BaseException:
    """As Ray wraps what a task raised: in a class that is made for it."""
    made = type("RayTaskError(X)", (Exception,), {"__module__": "ray.exceptions", "cause": cause})
    error: BaseException = made("where it was raised, on many lines")
    return error


def test_what_rays_tasks_raise_is_no_loss() -> None:
    pool = Losing(lambda _: True, lambda: ray_error(FormatError("3 is odd", hint="take another")))
    with pytest.raises(FormatError, match=r"^3 is odd$") as caught:
        list(run_on_executor(pool, square, range(9)))
    assert caught.value.hint == "take another"
    gone = type("WorkerCrashedError", (Exception,), {"__module__": "ray.exceptions"})
    for how in (gone, lambda: ray_error(ConnectionResetError())):
        losing = Losing(lambda call: call % 3 == 0, how)
        assert sorted(result for _, result in run_on_executor(losing, square, range(9))) == [n * n for n in range(9)]
