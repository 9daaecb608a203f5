"""Reading and writing by position."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from gguftools.io import positioned
from gguftools.io.positioned import STORE_BYTES, PositionedInput, PositionedOutput
from quants.errors import FileError


def test_bytes_are_read_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)))
    file = PositionedInput(path)
    assert file.read(10, 13).tolist() == [10, 11, 12]
    assert file.read(7, 7).size == 0


def test_short_reads_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(100)))
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: real(fd, [buffers[0][:7]], at))
    assert PositionedInput(path).read(5, 95).tolist() == list(range(5, 95))


def test_a_file_that_ends_early_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(100))
    file = PositionedInput(path)
    with pytest.raises(FileError, match=r"x ends at byte 100: it was cut short"):
        file.read(90, 110)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none cannot be read: No such file"):
        PositionedInput(tmp_path / "none")


def test_the_descriptor_is_closed_with_the_last_reference(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x")
    file = PositionedInput(path)
    fd, number = file._fd, path.stat().st_ino
    del file
    gc.collect()
    with suppress(OSError):  # unless another thread opened a file since
        assert os.fstat(fd).st_ino != number


def test_what_threads_write_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, begin, size, advice: asked.append((begin, begin + size)))
    piece = STORE_BYTES // 4
    numbers = np.arange(12 * piece, dtype=np.uint32).view(np.uint8)[: 12 * piece]
    with (tmp_path / "x").open("wb") as file:
        output = PositionedOutput(file.fileno())
        with ThreadPoolExecutor(4) as pool:
            starts = np.random.default_rng(0).permutation(12) * piece
            list(pool.map(lambda start: output.write(numbers[start : start + piece].data, int(start)), starts))
    assert (tmp_path / "x").read_bytes() == numbers.tobytes()
    assert len(asked) == 3
    covered = np.zeros(12, bool)
    for begin, end in asked:
        covered[begin // piece : end // piece] = True
    assert covered.all()


def test_a_system_without_advice_writes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fadvise")
    monkeypatch.setattr(positioned, "STORE_BYTES", 1)
    with (tmp_path / "x").open("wb") as file:
        PositionedOutput(file.fileno()).write(memoryview(b"abc"), 2)
    assert (tmp_path / "x").read_bytes() == b"\0\0abc"
