"""Tasks: every row once, in any order, within the memory that was given; errors stop everything."""

from __future__ import annotations

import threading
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archs.metadata import Metadata
from gguftools.io.gguf.reader import open_gguf
from gguftools.writing.items import Item, encode_rows
from gguftools.writing.options import WriteOptions
from gguftools.writing.pipeline import FilePlan, scan, write_files
from quants import Tensor, encode, format_named, from_array
from quants.errors import FileError, FormatError

RANDOM = np.random.default_rng(3)


def tensor(name: str, *shape: int) -> Tensor:
    return from_array(name, RANDOM.standard_normal(shape).astype(np.float32))


def plan(path: Path, *items: Item) -> FilePlan:
    return FilePlan(path, Metadata(), items)


def item(source: Tensor, form: str, importance: Any = None) -> Item:
    return Item(source, format_named(form), importance)


@settings(max_examples=25)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 40), st.sampled_from([32, 64, 256])),
    form=st.sampled_from(["Q4_0", "Q8_0", "F16", "F32"]),
    threads=st.integers(1, 4),
    memory=st.integers(1, 1 << 20),
)
def test_any_shape_and_any_blocking(
    shape: tuple[int, ...], form: str, threads: int, memory: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("out") / "x.gguf"
    source = tensor("x.weight", *shape)
    write_files([plan(path, item(source, form))], write=WriteOptions(threads=threads, memory=memory))
    written = open_gguf(path).tensors["x.weight"]
    assert written.shape == shape
    assert np.array_equal(written.raw(), encode(form, source.float32().reshape(-1, shape[-1])))


def test_each_row_is_read_once_for_all_outputs(tmp_path: Path) -> None:
    source, seen, lock = tensor("x.weight", 100, 64), np.zeros(100, int), threading.Lock()

    def read(start: int, stop: int) -> Any:
        with lock:
            seen[start:stop] += 1
        return source.raw(start, stop)

    counted = Tensor("x.weight", (100, 64), source.format, read)
    files = [plan(tmp_path / f"{form}.gguf", item(counted, form)) for form in ("Q4_0", "Q8_0", "F32", "F16")]
    outcome = write_files(files, write=WriteOptions(memory=1 << 14, threads=2))
    assert (seen == 1).all()
    assert outcome.source_bytes == source.nbytes
    assert [[written.name for written in file] for file in outcome.files] == [["x.weight"]] * 4


@pytest.mark.parametrize("rows", [(0, 10), (1, 7), (2, 3), (5, 10)])
def test_each_expert_has_its_own_importance(rows: tuple[int, int]) -> None:
    source = tensor("x.weight", 3, 4, 64)
    weights = RANDOM.random((3, 64)).astype(np.float32) + np.float32(0.1)
    values = source.float32().reshape(12, 64)
    wanted = np.concatenate([encode("Q4_0", values[4 * e : 4 * e + 4], weights[e]) for e in range(3)])
    start, stop = rows
    got = encode_rows(item(source, "Q4_0", weights), values[start:stop], start)
    assert np.array_equal(got, wanted[start:stop])


class AtOnce(Executor):
    """Does what it is handed before it returns."""

    calls = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += 1
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def test_any_executor_will_do(tmp_path: Path) -> None:
    source, executor = tensor("x.weight", 64, 256), AtOnce()
    write_files(
        [plan(tmp_path / "x.gguf", item(source, "Q8_0"))], write=WriteOptions(executor=executor, memory=1 << 16)
    )
    assert executor.calls > 2
    assert np.array_equal(open_gguf(tmp_path / "x.gguf").tensors["x.weight"].raw(), encode("Q8_0", source.float32()))


def test_memory_bounds_what_tasks_hold(tmp_path: Path) -> None:
    """A task of a wide tensor is as few rows as fit; a small tensor is one task."""
    blocks: list[int] = []
    wide = tensor("x.weight", 64, 4096)

    def read(start: int, stop: int) -> Any:
        blocks.append(stop - start)
        return wide.raw(start, stop)

    counted = Tensor("x.weight", wide.shape, wide.format, read)
    write_files([plan(tmp_path / "x.gguf", item(counted, "Q8_0"))], write=WriteOptions(memory=1 << 20, threads=2))
    bytes_of_a_row = 4096 * (4 + 4 * 2 + 34 / 32)
    assert max(blocks) * bytes_of_a_row <= (1 << 20) / 2 < (max(blocks) + 1) * bytes_of_a_row
    blocks.clear()
    write_files(
        [plan(tmp_path / "x.gguf", item(counted, "Q8_0"))], write=WriteOptions(memory=1, threads=2, overwrite=True)
    )
    assert blocks == [1] * 64


def test_an_error_stops_the_rest_and_leaves_nothing(tmp_path: Path) -> None:
    values = np.zeros((1000, 64), np.float32)
    values[37, 5] = np.nan
    bad, good = from_array("bad.weight", values), tensor("good.weight", 10, 64)
    done: list[str] = []
    first = plan(tmp_path / "x.gguf", item(bad, "Q8_0"), item(good, "Q8_0"))
    second = plan(tmp_path / "y.gguf", item(good, "F32"))
    with pytest.raises(FormatError, match=r"'bad\.weight' has NaN in row 37, column 5"):
        write_files([first, second], write=WriteOptions(memory=1 << 13, progress=lambda a, b, what: done.append(what)))
    assert "good.weight" not in done
    assert not list(tmp_path.iterdir())


def test_interrupting_leaves_nothing(tmp_path: Path) -> None:
    def progress(done: int, total: int, what: str) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_files(
            [plan(tmp_path / "x.gguf", item(tensor("x", 99, 64), "Q8_0"))],
            write=WriteOptions(memory=1 << 13, progress=progress),
        )
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_and_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no folder"):
        write_files([plan(tmp_path / "none" / "x.gguf", item(tensor("x", 2, 32), "Q8_0"))])
    write_files([plan(tmp_path / "x.gguf")])
    assert not open_gguf(tmp_path / "x.gguf").tensors


def test_tensors_without_rows_and_scalars(tmp_path: Path) -> None:
    empty = from_array("empty", np.zeros((0, 32), np.float32))
    scalar = from_array("scalar", np.array(3, np.float32))
    write_files(
        [plan(tmp_path / "x.gguf", item(empty, "Q8_0"), item(scalar, "F32"))], write=WriteOptions(statistics=True)
    )
    written = open_gguf(tmp_path / "x.gguf").tensors
    assert written["empty"].shape == (0, 32)
    assert written["scalar"].float32().reshape(-1).tolist() == [3]


def test_large_finite_values_are_finite() -> None:
    raw = format_named("Q8_0").encode(np.full((4, 32), 3e4, np.float32))
    big = Tensor("x", (4, 32), format_named("Q8_0"), lambda a, b: raw[a:b])
    scan([big, from_array("y", np.full((100, 100), 3e38, np.float32))])
    with pytest.raises(FormatError, match="'z' has infinity in row 1, column 0"):
        scan([from_array("z", np.array([[1], [np.inf]], np.float32))])
