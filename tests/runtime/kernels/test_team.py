"""Lists of operations by several threads in step."""

import threading
import time

import numpy as np
import pytest

from runtime.kernels import team
from runtime.kernels.team import FIELDS, array_at, operation

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


class Team:
    """Threads that run lists of operations again and again."""

    def __init__(self, threads):
        self.threads, self.states, self.started = threads, np.zeros(team.APART * threads, np.int64), 0
        self.counter = np.zeros(1, np.int64)

    def run(self, rows):
        self.counter[0] = 0
        operations = rows.reshape(-1), len(rows), self.counter
        for thread in range(1, self.threads):
            if not team.call(self.states, thread):
                assert self.states[team.APART * thread] == team.GONE
                self.states[team.APART * thread] = team.CALLED
                self.started += 1
                arguments = (*operations, thread, self.threads, self.states)
                threading.Thread(target=team.serve, args=arguments, daemon=True).start()
        team.run(*operations, self.threads, self.states)
        assert team.CALLED not in self.states
        return self.counter[0]


def run(rows, threads):
    return Team(threads).run(rows)


def mixed(threads, count, size):
    """Numbers after so many operations, each on what the one before made of all of them."""
    halves = np.arange(size), np.zeros(size, np.int64)
    rows = np.zeros((count, FIELDS), np.int64)
    for i, row in enumerate(rows):
        row[[0, WAITS, BEFORE, AFTER, SIZE, SHIFT]] = (
            mix(), 1, halves[i % 2].ctypes.data, halves[1 - i % 2].ctypes.data, size, i * 37 % size
        )  # fmt: skip
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
    end = time.monotonic() + 60
    while team.WAITING in helpers.states:
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("threads", [2, 3])
def test_helpers_stay_for_the_next_run_and_go_when_none_comes(threads):
    counts, helpers = np.zeros(threads, np.int64), Team(threads)
    rows = team.operation_row(count_own(), {BEFORE: counts})[None]
    for _ in range(2000):
        helpers.run(rows)
    assert helpers.started < 2000 * (threads - 1)
    np.testing.assert_array_equal(counts, 2000)
    gone(helpers)
    started = helpers.started
    helpers.run(rows)
    assert helpers.started == started + threads - 1
    np.testing.assert_array_equal(counts, 2001)


def test_runs_at_the_moment_when_helpers_go():
    """Pauses about as long as they linger: a run is neither lost nor done twice."""
    counts, helpers = np.zeros(2, np.int64), Team(2)
    rows = team.operation_row(count_own(), {BEFORE: counts})[None]
    helpers.run(rows)
    begin = time.perf_counter()
    gone(helpers)
    lingers = min(0.005, time.perf_counter() - begin)
    for i in range(1000):
        end = time.perf_counter() + lingers * (i % 50) / 40
        while time.perf_counter() < end:
            pass
        helpers.run(rows)
        np.testing.assert_array_equal(counts, i + 2)
