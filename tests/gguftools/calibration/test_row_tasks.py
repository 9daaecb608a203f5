"""Weights that workers encode with error feedback: the bytes of one thread, whatever a worker can see."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from gguftools.calibration import row_tasks
from gguftools.calibration.encoded import Encoded, Lent, open_encoded
from gguftools.calibration.texts import Calibration
from gguftools.measurement.texts import NamedText
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing.options import WriteOptions
from quants import format_named, from_array

from ...conftest import ROOT
from ..elsewhere import Elsewhere

AUSTEN, TEXT = ROOT / "examples" / "austen-4m", ROOT / "examples" / "persuasion.txt"
SMALL = Calibration((NamedText("novel", TEXT),), own_texts=False, n_ctx=128, chunks=6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of austen-4m."""
    folder = tmp_path_factory.mktemp("rows")
    gguftools.convert(AUSTEN, folder / "whole.gguf", "f16")
    gguftools.quantize(
        folder / "whole.gguf", "COPY", folder / "model.gguf", options=QuantizeOptions(prune_layers=[2, 3])
    )
    return folder / "model.gguf"


@pytest.fixture(scope="module")
def fed(model: Path) -> bytes:
    target = model.with_name("fed.gguf")
    gguftools.quantize(model, "Q4_0", target, gptq=SMALL, write=WriteOptions(threads=1))
    return target.read_bytes()


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        yield executor


def test_workers_encode_the_bytes_of_one_thread(
    pool: ProcessPoolExecutor, model: Path, fed: bytes, tmp_path: Path
) -> None:
    gguftools.quantize(model, "Q4_0", tmp_path / "a.gguf", gptq=SMALL, write=WriteOptions(executor=pool))
    assert (tmp_path / "a.gguf").read_bytes() == fed
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def encoded_by(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Of the tasks that workers get: whether they hold values, and the bytes that come back."""
    seen: list[tuple[bool, int]] = []
    done = row_tasks._encoded

    def encoded(task: row_tasks._Task) -> Any:
        seen.append((task.values is not None, done(task).nbytes))
        return done(task)

    monkeypatch.setattr(row_tasks, "_encoded", encoded)
    encoded.__qualname__, encoded.__module__ = "_encoded", row_tasks.__name__
    return seen


def test_tasks_hold_no_values(model: Path, fed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, executor = encoded_by(monkeypatch), Elsewhere()
    gguftools.quantize(model, "Q4_0", tmp_path / "a.gguf", gptq=SMALL, write=WriteOptions(executor=executor))
    assert seen
    assert all(size > 0 and not sent for sent, size in seen)
    assert max(executor.sizes) < 20_000
    assert (tmp_path / "a.gguf").read_bytes() == fed


@pytest.mark.slow
def test_a_worker_that_does_not_see_the_factors_leaves_rows_to_the_run(
    model: Path, fed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = encoded_by(monkeypatch)
    row_tasks._mapped.cache_clear()
    monkeypatch.setattr(Lent, "arrays", lambda self: None)
    gguftools.quantize(model, "Q4_0", tmp_path / "b.gguf", gptq=SMALL, write=WriteOptions(executor=Elsewhere()))
    assert seen
    assert not any(size for _, size in seen)
    assert (tmp_path / "b.gguf").read_bytes() == fed


@pytest.mark.slow
def test_rows_that_no_worker_can_read_are_sent(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = gguftools.open(model)
    arrays = gguftools.Model(opened.metadata, {name: np.asarray(t) for name, t in opened.tensors.items()})
    seen = encoded_by(monkeypatch)
    gguftools.quantize(arrays, "Q4_0", tmp_path / "a.gguf", gptq=SMALL, write=WriteOptions(executor=Elsewhere()))
    assert seen
    assert all(sent and size for sent, size in seen)
    gguftools.quantize(arrays, "Q4_0", tmp_path / "b.gguf", gptq=SMALL)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_what_is_lent_is_found_where_it_is_the_same(tmp_path: Path) -> None:
    tensor = from_array("x.weight", np.ones((3, 32), np.float32))
    arrays = [np.arange(5, dtype=np.float32), np.ones((2, 3), np.float32)]

    def lend(kept: Encoded) -> Lent:
        lent = kept.lend(arrays)
        found = lent.arrays()
        assert found is not None
        assert all(np.array_equal(a, b) for a, b in zip(found, arrays, strict=True))
        found[0][0] = 7  # of this process alone
        return lent

    with open_encoded(tmp_path / "x.gguf", {"gguftools": 1}, False) as kept:
        kept.keep(tensor, format_named("Q8_0"), format_named("Q8_0").encode(tensor.float32()), {})
        before = kept.tensors["x.weight"].raw(0, 3).tobytes()
        lent = lend(kept)
        assert lent.arrays() is not None
        assert kept.tensors["x.weight"].raw(0, 3).tobytes() == before
        with lent.path.open("r+b") as file:
            file.seek(lent.at + 4)
            file.write(b"\1")
        assert lent.arrays() is None
        assert lend(kept).arrays() is not None
        assert lent._replace(at=1 << 30).arrays() is None
    assert lent.arrays() is None
