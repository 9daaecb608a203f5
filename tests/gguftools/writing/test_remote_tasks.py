"""Tasks that leave the process: the bytes of one thread, whoever does them and whatever a worker can see."""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from archs.metadata import Metadata
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.shared_file import SharedFile
from gguftools.models.contents import process_source, streamed_tensors
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing import remote_tasks
from gguftools.writing.items import Item
from gguftools.writing.options import WriteOptions
from gguftools.writing.pipeline import FilePlan, write_files
from gguftools.writing.remote_tasks import tensors_of
from quants import format_named, from_array
from quants.errors import FileError, FormatError
from tests.conftest import ROOT

from ..elsewhere import Elsewhere
from ..tiny_models import metadata_of, write_model

RANDOM = np.random.default_rng(5)
AUSTEN = ROOT / "examples" / "austen-4m"


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        yield executor


@pytest.fixture(scope="module")
def bf16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("austen") / "austen-bf16.gguf"
    gguftools.convert(AUSTEN, path)
    return path


@pytest.fixture(scope="module")
def matrix(bf16: Path) -> Path:
    """An importance matrix of no meaning."""
    tensors = {n: t for n, t in open_gguf(bf16).tensors.items() if len(t.shape) == 2 and n != "token_embd.weight"}
    sums = {f"{n}.in_sum2": RANDOM.random((1, t.width)).astype(np.float32) + 0.1 for n, t in tensors.items()}
    counts = {f"{n}.counts": np.full((1, 1), 2, np.float32) for n in tensors}
    keys = {"general.type": "imatrix", "imatrix.chunk_count": 1, "imatrix.chunk_size": 512, "imatrix.datasets": ["x"]}
    return write_model(bf16.parent / "matrix.gguf", metadata_of(keys), sums | counts)


def same(a: Path, b: Path) -> bool:
    return a.read_bytes() == b.read_bytes()


def test_processes_write_the_bytes_of_one_thread(
    pool: ProcessPoolExecutor, bf16: Path, matrix: Path, tmp_path: Path
) -> None:
    recipes = ["Q4_K_M", "IQ3_S", "Q8_0"]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = gguftools.quantize(
        bf16, recipes, tmp_path / "a", imatrix=matrix, write=WriteOptions(threads=1, statistics=True)
    )
    many = gguftools.quantize(
        bf16, recipes, tmp_path / "b", imatrix=matrix, write=WriteOptions(executor=pool, statistics=True)
    )
    names = sorted(path.name for path in (tmp_path / "b").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "a").iterdir())  # and nothing is left behind
    assert all(same(tmp_path / "a" / name, tmp_path / "b" / name) for name in names)
    for before, after in zip(one.outputs, many.outputs, strict=True):
        assert [t.rmse for t in before.tensors] == [t.rmse for t in after.tensors]


def test_processes_convert_as_one_thread_does(pool: ProcessPoolExecutor, tmp_path: Path) -> None:
    for outtype in ("f16", "Q5_K_M"):
        gguftools.convert(AUSTEN, tmp_path / "a.gguf", outtype, write=WriteOptions(threads=1, overwrite=True))
        gguftools.convert(AUSTEN, tmp_path / "b.gguf", outtype, write=WriteOptions(executor=pool, overwrite=True))
        assert same(tmp_path / "a.gguf", tmp_path / "b.gguf")


def test_a_task_is_small_and_holds_no_rows(bf16: Path, tmp_path: Path) -> None:
    executor = Elsewhere()
    gguftools.quantize(bf16, "Q4_K_M", tmp_path / "a.gguf", write=WriteOptions(executor=executor))
    assert executor.sizes
    assert max(executor.sizes) < 20_000


def test_a_worker_writes_where_it_sees_the_file_and_else_sends_the_bytes(
    bf16: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote: list[bool] = []
    write = SharedFile.write

    def seen(self: SharedFile, data: memoryview, offset: int) -> bool:
        wrote.append(write(self, data, offset))
        return wrote[-1]

    monkeypatch.setattr(SharedFile, "write", seen)
    gguftools.quantize(bf16, "Q4_0", tmp_path / "a.gguf", write=WriteOptions(executor=Elsewhere()))
    assert wrote
    assert all(wrote)
    monkeypatch.setattr(SharedFile, "is_here", lambda self: False)
    gguftools.quantize(bf16, "Q4_0", tmp_path / "b.gguf", write=WriteOptions(executor=Elsewhere()))
    assert not wrote[-1]
    assert same(tmp_path / "a.gguf", tmp_path / "b.gguf")


def test_a_file_that_another_run_began_anew_is_not_written(tmp_path: Path) -> None:
    file, journal = tmp_path / "x.partial", tmp_path / "x.journal"
    file.write_bytes(bytes(10))
    journal.write_text('{"gguftools": 1}\n["workers", "abcdef"]\n')
    shared = SharedFile(file, journal, journal.read_text().index("abcdef"), b"abcdef", 10)
    assert shared.write(memoryview(b"xy"), 3)
    assert file.read_bytes() == bytes(3) + b"xy" + bytes(5)
    assert not shared._replace(bytes=11).write(memoryview(b"zz"), 0)  # a file of another size is not the run's
    journal.write_text('{"gguftools": 1}\n["workers", "fedcba"]\n')
    assert not shared.write(memoryview(b"zz"), 0)
    journal.unlink()
    assert not shared.write(memoryview(b"zz"), 0)
    assert file.read_bytes() == bytes(3) + b"xy" + bytes(5)


def test_what_no_one_else_can_read_is_sent(pool: ProcessPoolExecutor, bf16: Path, tmp_path: Path) -> None:
    """A Model that was changed, one of arrays, and layers under other numbers."""
    changed = gguftools.open(bf16)
    changed.tensors["blk.0.attn_q.weight"] = changed.tensors["blk.0.attn_q.weight"].float32() * 2
    arrays = gguftools.Model(changed.metadata, {name: np.asarray(t) for name, t in changed.tensors.items()})
    for number, (model, pruned) in enumerate([(changed, ()), (arrays, ()), (gguftools.open(bf16), (1,))]):
        paths = [tmp_path / f"{number}{letter}.gguf" for letter in "ab"]
        gguftools.quantize(
            model, "Q4_0", paths[0], options=QuantizeOptions(prune_layers=pruned), write=WriteOptions(threads=1)
        )
        gguftools.quantize(
            model, "Q4_0", paths[1], options=QuantizeOptions(prune_layers=pruned), write=WriteOptions(executor=pool)
        )
        assert same(*paths)


def test_groups_of_importance_are_those_of_the_rows(tmp_path: Path) -> None:
    values = RANDOM.standard_normal((5, 96, 256)).astype(np.float32)
    weights = RANDOM.random((5, 256)).astype(np.float32) + np.float32(0.1)
    item = Item(from_array("x.weight", values), format_named("Q4_K"), weights)
    write_files([FilePlan(tmp_path / "a.gguf", Metadata(), (item,))], write=WriteOptions(memory=1 << 20))
    write_files(
        [FilePlan(tmp_path / "b.gguf", Metadata(), (item,))], write=WriteOptions(memory=1 << 20, executor=Elsewhere())
    )
    assert same(tmp_path / "a.gguf", tmp_path / "b.gguf")


def test_a_killed_run_is_taken_up_by_others(bf16: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that workers wrote are believed by the next run, and not done again."""
    calls, perform = [0], remote_tasks.perform_batch

    def stop_early(batch: remote_tasks.Batch) -> Any:
        calls[0] += 1
        if calls[0] > 3:
            raise KeyboardInterrupt
        return perform(batch)

    class Local(Executor):
        _max_workers = 1

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            done: Future[Any] = Future()
            done.set_result(fn(*args))
            return done

    monkeypatch.setattr("gguftools.writing.pipeline.perform_batch", stop_early)
    with pytest.raises(KeyboardInterrupt):
        gguftools.quantize(bf16, "Q4_0", tmp_path / "a.gguf", write=WriteOptions(executor=Local()))
    assert (tmp_path / "a.gguf.partial").exists()
    monkeypatch.undo()
    report = gguftools.quantize(bf16, "Q4_0", tmp_path / "a.gguf", write=WriteOptions(resume=True))
    assert report.resumed_bytes > 0
    gguftools.quantize(bf16, "Q4_0", tmp_path / "b.gguf")
    assert same(tmp_path / "a.gguf", tmp_path / "b.gguf")


def test_a_worker_refuses_a_source_that_is_another_for_it(bf16: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copy(bf16, copy)
    model = gguftools.open(copy)
    source = process_source(model, streamed_tensors(model))
    assert source is not None
    tensors_of(source.description)
    tensors_of.cache_clear()
    os.utime(copy, ns=(1, 1))
    with pytest.raises(FileError, match="was changed while it was read, or is another file for a worker"):
        tensors_of(source.description)
    copy.unlink()
    with pytest.raises(FileError, match=r"copy\.gguf cannot be read by a worker"):
        tensors_of(source.description)


def test_what_a_worker_finds_wrong_is_the_same_line(tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    values = RANDOM.standard_normal((4, 64)).astype(np.float32)
    values[2, 5] = np.nan
    write_files(
        [
            FilePlan(
                tmp_path / "x.gguf",
                metadata_of({"general.architecture": "llama"}),
                (Item(from_array("x.weight", values), format_named("F32")),),
            )
        ],
        finite=False,
    )
    for executor in (None, pool):
        with pytest.raises(FormatError, match=r"tensor 'x\.weight' has NaN in row 2, column 5"):
            gguftools.quantize(tmp_path / "x.gguf", "Q4_0", tmp_path / "y.gguf", write=WriteOptions(executor=executor))
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]
