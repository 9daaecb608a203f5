"""Locks: one writer a file, whoever was killed, and none where a file system has no locks."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import pytest

from gguftools.io import locks
from quants.errors import FileError

from ...conftest import ROOT

HOLDS = (
    "import sys, time\nfrom pathlib import Path\nfrom gguftools.io.locks import held\n"
    "with held(Path(sys.argv[1])):\n    print('has it', flush=True)\n    time.sleep(60)\n"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return path


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HOLDS, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "has it\n"
        try:
            yield process
        finally:
            process.kill()


def test_another_process_has_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "WAIT", 0.05)
    with holder(file):
        assert locks.is_held(file)
        with pytest.raises(FileError, match="is being changed by another program"), locks.held(file):
            pass
        assert file.read_bytes() == b"content"  # readers are not kept out


def test_a_killed_process_has_it_no_more(file: Path) -> None:
    with holder(file) as process:
        process.kill()
        process.wait()
        assert not locks.is_held(file)
        with locks.held(file):
            pass
    assert [path.name for path in file.parent.iterdir()] == ["file"]  # no file is left for the lock


def test_whoever_waits_gets_the_file_that_has_the_name_now(file: Path) -> None:
    with locks.held(file) as first:
        new = file.with_name("new")
        new.write_bytes(b"other")
        new.replace(file)
        with locks.held(file) as second:
            assert os.fstat(second).st_ino != os.fstat(first).st_ino


def test_folders_are_locked_too(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    assert locks.is_unlocked(first) is True
    assert locks.is_unlocked(second) is False
    waiting = threading.Thread(target=locks.wait_for_lock, args=(second,))
    waiting.start()
    time.sleep(0.02)
    assert waiting.is_alive()
    os.close(first)
    waiting.join(60)
    assert not waiting.is_alive()
    os.close(second)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_a_file_system_without_locks_is_no_error(file: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(fd: int, blocking: bool) -> bool:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(filelock, "lock_descriptor", refuse)
    with locks.held(file) as fd:
        assert locks.is_unlocked(fd) is None
        assert not locks.is_held(file)
        locks.wait_for_lock(fd)


def test_a_file_system_that_locks_only_what_can_be_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS does: a lock of a file opened for reading alone is EBADF."""
    import fcntl

    lock_descriptor = filelock.lock_descriptor

    def only_writable(fd: int, blocking: bool) -> bool:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return lock_descriptor(fd, blocking=blocking)

    monkeypatch.setattr(filelock, "lock_descriptor", only_writable)
    assert not locks.is_held(file)
    with locks.held(file):
        assert locks.is_held(file)


def test_those_who_look_do_not_see_one_another(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    assert locks.is_unlocked(fd)  # as another that looks just now
    threading.Timer(0.007, os.close, (fd,)).start()
    assert not locks.is_held(file)
