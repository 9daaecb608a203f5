"""Runs that were cut short, and how they are taken up again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archs.metadata import Metadata
from gguftools.conversion.quantize import quantize
from gguftools.io.gguf.writer import TensorInfo, plan_file
from gguftools.writing.options import WriteOptions
from gguftools.writing.resume import journal_path, partial_path
from quants import from_array
from quants.errors import FileError
from tests.conftest import DATA, ROOT

from ..calls import options_of
from ..tiny_models import create_gguf

DENSE = DATA / "golden" / "e2e" / "tiny-dense-f16.gguf"
MATRIX = DATA / "golden" / "e2e" / "tiny-dense.imatrix.gguf"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(DENSE.read_bytes())
    return path


def interrupt_after(count: int) -> Callable[[int, int, str], None]:
    """A progress callback that acts like Ctrl-C after so many tasks."""
    left = [count]

    def progress(done: int, total: int, what: str) -> None:
        left[0] -= not what.startswith("compiling")
        if left[0] <= 0:
            raise KeyboardInterrupt

    return progress


def cut_short(source: Path, output: Path, recipe: str = "Q8_0", tasks: int = 12, **given: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        quantize(
            source, recipe, output, **options_of("quantize", memory=1 << 16, progress=interrupt_after(tasks), **given)
        )
    assert not output.exists()
    assert partial_path(output).exists()


def finish(source: Path, output: Path, recipe: str = "Q8_0", **given: Any) -> Any:
    return quantize(source, recipe, output, **options_of("quantize", memory=1 << 16, resume=True, **given))


def test_what_was_written_is_not_written_again(source: Path, tmp_path: Path) -> None:
    whole, output = tmp_path / "whole.gguf", tmp_path / "out.gguf"
    first = quantize(source, "Q8_0", whole, write=WriteOptions(memory=1 << 16, statistics=True))
    cut_short(source, output, statistics=True)
    report = finish(source, output, statistics=True)
    assert 0 < report.resumed_bytes < report.source_bytes
    assert output.read_bytes() == whole.read_bytes()
    assert [t.rmse for t in report.outputs[0].tensors] == [t.rmse for t in first.outputs[0].tensors]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.gguf", "out.gguf", "whole.gguf"]


def test_errors_that_nobody_measured_are_measured_on_resuming(source: Path, tmp_path: Path) -> None:
    whole, output = tmp_path / "whole.gguf", tmp_path / "out.gguf"
    first = quantize(source, "Q8_0", whole, write=WriteOptions(memory=1 << 16, statistics=True))
    cut_short(source, output)
    report = finish(source, output, statistics=True)
    assert report.resumed_bytes == 0
    assert [t.rmse for t in report.outputs[0].tensors] == [t.rmse for t in first.outputs[0].tensors]


def test_without_resume_everything_starts_anew(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    cut_short(source, output)
    report = quantize(source, "Q8_0", output)
    assert report.resumed_bytes == 0
    assert not partial_path(output).exists()
    assert not journal_path(output).exists()


def test_resume_without_anything_to_resume(source: Path, tmp_path: Path) -> None:
    assert finish(source, tmp_path / "out.gguf").resumed_bytes == 0


def test_bytes_that_changed_on_disk_are_written_again(source: Path, tmp_path: Path) -> None:
    whole, output = tmp_path / "whole.gguf", tmp_path / "out.gguf"
    quantize(source, "Q8_0", whole)
    cut_short(source, output)
    size = whole.stat().st_size
    with partial_path(output).open("r+b") as file:  # as after a power cut: zeros where there was data
        file.write(bytes(size))
    assert finish(source, output).resumed_bytes == 0
    assert output.read_bytes() == whole.read_bytes()


def test_a_journal_whose_end_is_missing(source: Path, tmp_path: Path) -> None:
    whole, output = tmp_path / "whole.gguf", tmp_path / "out.gguf"
    quantize(source, "Q8_0", whole)
    cut_short(source, output)
    journal = journal_path(output)
    head = journal.read_bytes().splitlines(keepends=True)[0]
    journal.write_bytes(journal.read_bytes()[:-7])
    assert finish(source, output).resumed_bytes > 0
    assert output.read_bytes() == whole.read_bytes()
    cut_short(source, output := tmp_path / "other.gguf")
    journal_path(output).write_bytes(head + b"[1]\n[999,0,1,2,3,4,5]\n[0,5,2,1,1,1,1]\n{}\n")
    assert finish(source, output).resumed_bytes == 0
    assert output.read_bytes() == whole.read_bytes()


def test_what_no_run_of_ours_left_stays(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    for content in (b"", b"{", b"[]\n", b"null\n", b"notes of mine"):
        journal_path(output).write_bytes(content)
        with pytest.raises(FileError, match=r"out\.gguf\.partial\.journal is in the way"):
            finish(source, output)
        assert journal_path(output).read_bytes() == content
    journal_path(output).unlink()
    partial_path(output).write_bytes(b"mine")
    for resume in (False, True):
        with pytest.raises(FileError, match=r"out\.gguf\.partial is in the way"):
            quantize(source, "Q8_0", output, write=WriteOptions(resume=resume))
        assert partial_path(output).read_bytes() == b"mine"
        assert not journal_path(output).exists()


def test_another_source_is_refused(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    cut_short(source, output)
    info = source.stat()
    os.utime(source, ns=(info.st_atime_ns, info.st_mtime_ns + 1))
    with pytest.raises(FileError, match=r"model\.gguf was changed since .*out\.gguf was begun") as caught:
        finish(source, output)
    assert "`resume`" in str(caught.value.hint)
    assert partial_path(output).exists()


@pytest.mark.parametrize("given", [{"recipe": "Q4_0"}, {"imatrix": MATRIX}])
def test_another_plan_is_refused(given: dict[str, Any], source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    cut_short(source, output)
    with pytest.raises(FileError, match="another recipe, other options or another matrix"):
        finish(source, output, **given)


def test_another_matrix_of_the_same_name_is_refused(source: Path, tmp_path: Path) -> None:
    output, matrix = tmp_path / "out.gguf", tmp_path / "imatrix.gguf"
    matrix.write_bytes(MATRIX.read_bytes())
    cut_short(source, output, "Q4_0", imatrix=matrix)
    data = bytearray(MATRIX.read_bytes())
    data[-1400] ^= 1
    matrix.write_bytes(data)
    with pytest.raises(FileError, match="another matrix"):
        finish(source, output, "Q4_0", imatrix=matrix)


def test_a_source_that_changes_while_it_is_read(source: Path, tmp_path: Path) -> None:
    def touch(done: int, total: int, what: str) -> None:
        os.utime(source)

    with pytest.raises(FileError, match="was changed while it was read"):
        quantize(source, "Q8_0", tmp_path / "out.gguf", write=WriteOptions(progress=touch))
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]


def test_two_runs_do_not_write_one_file(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"

    def another(done: int, total: int, what: str) -> None:
        if done:
            quantize(source, "Q8_0", output)

    with pytest.raises(FileError, match="another run is writing"):
        quantize(source, "Q8_0", output, write=WriteOptions(progress=another))


def test_a_full_disk_leaves_what_can_be_resumed(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gguftools.io import positioned as module

    whole, output = tmp_path / "whole.gguf", tmp_path / "out.gguf"
    quantize(source, "Q8_0", whole)
    write_at, calls = module.write_at, [0]

    def full(fd: int, data: memoryview, offset: int) -> None:
        calls[0] += 1
        if calls[0] > 10:
            raise OSError(28, os.strerror(28))
        write_at(fd, data, offset)

    monkeypatch.setattr(module, "write_at", full)
    with pytest.raises(FileError, match=r"no space left for .*out\.gguf: it needs [\d,]+ bytes"):
        quantize(source, "Q8_0", output, write=WriteOptions(memory=1 << 16))
    assert not output.exists()
    monkeypatch.undo()
    assert finish(source, output).resumed_bytes > 0
    assert output.read_bytes() == whole.read_bytes()


def test_too_little_room_is_known_before_any_work(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gguftools.quantization.outputs as module

    monkeypatch.setattr(module, "check_outputs", lambda *given: 1000)
    assert not quantize(source, "Q8_0", tmp_path / "out.gguf", write=WriteOptions(dry_run=True)).fits
    with pytest.raises(FileError, match=r"1,000 bytes free; [\d,]+ are needed"):
        quantize(source, "Q8_0", tmp_path / "out.gguf")
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize("kills", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_random_moments(kills: int, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    tensors = [
        from_array(f"blk.{i}.{name}.weight", random.standard_normal((256, 2048)).astype(np.float32))
        for i in range(4)
        for name in ("attn_q", "ffn_down")
    ]
    layout = plan_file(Metadata(), [TensorInfo(t.name, t.shape, t.format) for t in tensors])
    with create_gguf(tmp_path / "model.gguf", layout) as file:
        for index, tensor in enumerate(tensors):
            file.write(index, 0, tensor.raw())
    arguments = [sys.executable, str(Path(__file__).with_name("kill_loop.py"))]
    arguments += [str(tmp_path / "model.gguf"), str(tmp_path), str(kills), "7"]
    run = subprocess.run(
        arguments, capture_output=True, text=True, check=False, timeout=300, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert (seen["killed"], seen["early"], seen["wrong"], seen["left"]) == (kills, 0, 0, 0)
    assert seen["resumed"] > kills // 4
