"""Lists of operations by several threads in step."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from runtime.kernels import thread_team
from runtime.kernels.thread_team import FIELDS, array_at, operation
from runtime.thread_team import Team, team_of

WAITS, BEFORE, AFTER, SIZE, SHIFT = range(1, 6)  # fields: whether all wait, addresses of numbers, how many, by how much


@operation
def mix(row, thread, threads):
    """AFTER becomes BEFORE, shifted and mixed; what each thread reads others have written."""
    op = array_at(row, FIELDS, np.int64)
    size = op[SIZE]
    before, after = array_at(op[BEFORE], size, np.int64), array_at(op[AFTER], size, np.int64)
    for i in range(size * thread // threads, size * (thread + 1) // threads):
        after[i] = before[(i + op[SHIFT]) % size] * 3 + i + op[SHIFT]


@operation
def count_own(row, thread, threads):
    """Each thread adds one to its own number."""
    op = array_at(row, FIELDS, np.int64)
    array_at(op[BEFORE], threads, np.int64)[thread] += 1


class CountedPool(ThreadPoolExecutor):
    """Counts what it starts."""

    started = 0

    def submit(self, *anything, **named):
        self.started += 1
        return super().submit(*anything, **named)


def team_of_so_many(threads):
    found = Team(threads)
    found.helpers = CountedPool(max(1, threads - 1))
    return found


def nothing():
    pass


def run(rows, threads, helpers=None):
    helpers = helpers or team_of_so_many(threads)
    helpers.run(rows, nothing, nothing)
    assert thread_team.CALLED not in helpers.states
    return helpers.counter[0]


def mixed(threads, count, size):
    """Numbers after so many operations, each on what the one before made of all of them."""
    halves = np.arange(size), np.zeros(size, np.int64)
    rows = np.zeros((count, FIELDS), np.int64)
    for i, row in enumerate(rows):
        row[[0, WAITS, BEFORE, AFTER, SIZE, SHIFT]] = (
            mix(),
            1,
            halves[i % 2].ctypes.data,
            halves[1 - i % 2].ctypes.data,
            size,
            i * 37 % size,
        )
    assert run(rows, threads) == (threads * (count + 1) if threads > 1 else 0)
    return halves[count % 2]


def wanted(count, size):
    numbers = np.arange(size)
    for i in range(count):
        shift = i * 37 % size
        numbers = np.roll(numbers, -shift) * 3 + np.arange(size) + shift
    return numbers


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("count", "size"), [(1, 5), (1000, 40), (1001, 2), (300, 5000)])
def test_every_operation_sees_all_of_the_one_before(threads, count, size):
    np.testing.assert_array_equal(mixed(threads, count, size), wanted(count, size))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_operations_that_do_not_wait(threads):
    """Every thread runs every operation; where none has to wait for others, they only begin together."""
    counts = np.zeros(threads, np.int64)
    rows = np.zeros((500, FIELDS), np.int64)
    rows[:, 0], rows[:, BEFORE] = count_own(), counts.ctypes.data
    assert run(rows, threads) == (threads if threads > 1 else 0)
    assert counts.tolist() == [500] * threads
    rows[::10, WAITS] = 1
    assert run(rows, threads) == (51 * threads if threads > 1 else 0)
    assert counts.tolist() == [1000] * threads


def test_teams_beside_each_other():
    """Each has a counter of its own."""
    found = {}
    teams = [threading.Thread(target=lambda k=k: found.update({k: mixed(2, 400, 30 + k)})) for k in range(3)]
    for each in teams:
        each.start()
    for each in teams:
        each.join(60)
    for k in range(3):
        np.testing.assert_array_equal(found[k], wanted(400, 30 + k))


def test_an_operation_is_compiled_once():
    assert mix() == mix() != 0


def gone(helpers):
    end = time.monotonic() + 300
    while thread_team.WAITING in helpers.states:
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("threads", [2, 3])
def test_helpers_stay_for_the_next_run_and_go_when_none_comes(threads):
    counts, helpers = np.zeros(threads, np.int64), team_of_so_many(threads)
    rows = thread_team.operation_row(count_own(), {BEFORE: counts})[None]
    for _ in range(2000):
        run(rows, 0, helpers)
    assert helpers.helpers.started < 2000 * (threads - 1)
    np.testing.assert_array_equal(counts, 2000)
    gone(helpers)
    started = helpers.helpers.started
    run(rows, 0, helpers)
    assert helpers.helpers.started == started + threads - 1
    np.testing.assert_array_equal(counts, 2001)


def test_runs_at_the_moment_when_helpers_go():
    """Pauses about as long as they linger: a run is neither lost nor done twice."""
    counts, helpers = np.zeros(2, np.int64), team_of_so_many(2)
    rows = thread_team.operation_row(count_own(), {BEFORE: counts})[None]
    run(rows, 0, helpers)
    begin = time.perf_counter()
    gone(helpers)
    lingers = min(0.005, time.perf_counter() - begin)
    for i in range(1000):
        end = time.perf_counter() + lingers * (i % 50) / 40
        while time.perf_counter() < end:
            pass
        run(rows, 0, helpers)
        np.testing.assert_array_equal(counts, i + 2)


def test_lists_by_turns_have_the_same_helpers():
    """A model and its draft take turns: the helpers of one would stand in the other's way."""
    helpers, counts = team_of_so_many(2), np.zeros((2, 2), np.int64)
    lists = [
        np.stack([thread_team.operation_row(count_own(), {BEFORE: each})] * (i + 1)) for i, each in enumerate(counts)
    ]
    for i in range(2000):
        run(lists[i % 2], 0, helpers)
    assert helpers.helpers.started < 1000
    np.testing.assert_array_equal(counts, [[1000, 1000], [2000, 2000]])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_its_own():
    """Threads don't come along, though the states say that they linger."""
    counts = np.zeros(2, np.int64)
    rows = thread_team.operation_row(count_own(), {BEFORE: counts})[None]
    team_of(2).run(rows, nothing, nothing)
    before = team_of(2)
    child = os.fork()
    if child == 0:
        team_of(2).run(rows, nothing, nothing)
        os._exit(0 if counts.tolist() == [2, 2] and team_of(2) is not before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_a_list_that_cannot_be_prepared_does_nothing_and_the_next_one_runs(threads):
    counts, kept, helpers = np.zeros(threads, np.int64), [], team_of_so_many(threads)
    rows = np.stack([thread_team.operation_row(count_own(), {BEFORE: counts}, wait=True)] * 3)

    def fail():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        helpers.run(rows, fail, lambda: kept.append(counts.sum()))
    assert kept == [0]
    counts[:] = 0
    run(rows, 0, helpers)
    assert counts.tolist() == [3] * threads
