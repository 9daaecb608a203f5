"""A Dask cluster of three processes: the bytes of one thread, and nothing lost where workers are killed."""

import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gguftools
from gguftools.writing import executors
from gguftools.writing.clusters import executor_for
from gguftools.writing.executors import run_on_executor
from gguftools.writing.options import WriteOptions
from quants.errors import FileError, OptionError
from tests.conftest import ROOT

from .test_executors import die_first, kill_some, slow_square

AUSTEN = ROOT / "examples" / "austen-4m"


@pytest.fixture(scope="module")
def told() -> list[str]:
    return []


@pytest.fixture(scope="module")
def cluster(told: list[str]) -> Iterator[Any]:
    with executor_for(3, None, told.append) as executor:
        yield executor


def workers(executor: Any) -> list[int]:
    return [worker.pid for worker in executor._client.cluster.workers.values() if getattr(worker, "pid", None)]


def hear_of_ctrl_c(processes: list[int]) -> list[int]:
    """Those that a terminal's Ctrl-C, which goes to all of a command's processes, would end with a traceback each."""
    texts = {pid: Path(f"/proc/{pid}/status").read_text() for pid in processes}
    blocked = {pid: int(re.search(r"SigBlk:\s*(\w+)", text)[1], 16) for pid, text in texts.items()}  # type: ignore[index]
    return [pid for pid, signals in blocked.items() if not signals >> (signal.SIGINT - 1) & 1]


def test_a_cluster_writes_the_bytes_of_one_thread(cluster: Any, told: list[str], tmp_path: Path) -> None:
    assert "3 workers; http://127.0.0.1:" in told[0]
    assert not hear_of_ctrl_c(workers(cluster))
    gguftools.convert(AUSTEN, tmp_path / "a.gguf", write=WriteOptions(threads=1))
    gguftools.convert(AUSTEN, tmp_path / "b.gguf", write=WriteOptions(executor=cluster))
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    gguftools.quantize(tmp_path / "a.gguf", "Q4_K_M", tmp_path / "c.gguf", write=WriteOptions(threads=1))
    gguftools.quantize(tmp_path / "a.gguf", "Q4_K_M", tmp_path / "d.gguf", write=WriteOptions(executor=cluster))
    assert (tmp_path / "c.gguf").read_bytes() == (tmp_path / "d.gguf").read_bytes()


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_workers_of_a_cluster_that_are_killed_lose_nothing(
    kills: int, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many are killed, at random; whole files are written meanwhile."""
    monkeypatch.setattr(executors, "LONGEST_WAIT", 0.3)
    gguftools.convert(AUSTEN, tmp_path / "model.gguf")
    gguftools.quantize(tmp_path / "model.gguf", "Q4_K_M", tmp_path / "a.gguf", write=WriteOptions(threads=1))
    stop, killed = threading.Event(), []  # type: tuple[threading.Event, list[int]]
    thread = threading.Thread(target=kill_some, args=(kills, stop, killed, lambda: workers(cluster)))
    thread.start()
    try:
        runs = 0
        while len(killed) < kills or runs == 0:
            gguftools.quantize(
                tmp_path / "model.gguf",
                "Q4_K_M",
                tmp_path / "b.gguf",
                write=WriteOptions(executor=cluster, overwrite=True),
            )
            assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
            runs += 1
    finally:
        stop.set()
        thread.join()
    assert len(killed) == kills
    numbers = range(200)
    assert sorted(run_on_executor(cluster, slow_square, numbers)) == [(n, n * n) for n in numbers]
    assert not hear_of_ctrl_c(workers(cluster))  # those that came for others, either


def test_workers_that_dask_gave_up_are_replaced(cluster: Any) -> None:
    """It does so with those that are away for 15 seconds, as on a machine that has too much to do."""
    local = cluster._client.cluster

    async def give_up() -> None:
        while local.workers:
            await local.workers.popitem()[1].close()

    local.sync(give_up)
    assert not workers(cluster)
    done: list[tuple[int, int]] = []
    thread = threading.Thread(target=lambda: done.extend(run_on_executor(cluster, slow_square, range(4))), daemon=True)
    thread.start()
    thread.join(300)
    assert sorted(done) == [(n, n * n) for n in range(4)]


def test_what_a_scheduler_needs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="workers of this machine and a scheduler"), executor_for(2, "tcp://x:1"):
        pass
    with pytest.raises(FileError, match="no scheduler answers at 'nonsense://a'"), executor_for(None, "nonsense://a"):
        pass
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(OptionError, match="a scheduler needs the package distributed"), executor_for(None, "tcp://x:1"):
        pass


def test_without_dask_workers_are_a_pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    gguftools.convert(AUSTEN, tmp_path / "a.gguf")
    with executor_for(2) as pool:
        gguftools.convert(AUSTEN, tmp_path / "b.gguf", write=WriteOptions(executor=pool))
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_nothing_is_left_of_a_pool_that_broke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with executor_for(1) as pool:
        assert pool is not None
        list(run_on_executor(pool, die_first, [str(tmp_path / "a")]))
        assert executors.current_executor(pool) is not pool
    assert executors.current_executor(pool) is pool
