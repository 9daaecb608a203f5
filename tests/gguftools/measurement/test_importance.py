"""An importance matrix that we measure, against the reference's of the same model and text."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gguftools
from gguftools.conversion.convert import convert
from gguftools.conversion.quantize import quantize
from gguftools.measurement.importance import imatrix
from gguftools.measurement.options import ImatrixOptions
from gguftools.quantization.imatrix import ImportanceMatrix, merge, read_imatrix
from quants.errors import FileError, ModelError, OptionError

from ...archs import checkpoints
from ...conftest import DATA, ROOT

TEXT = ROOT / "examples" / "persuasion.txt"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("importance") / "model.gguf"
    return convert(ROOT / "examples" / "austen-4m", target, "f16").outputs[0].file


@pytest.mark.slow  # `test_the_reference_s_sums` has less text, and bounds that are closer
def test_the_same_columns_matter_as_much(model: Path, shared: Path, tmp_path: Path) -> None:
    theirs = read_imatrix(shared / "golden" / "austen-4m.imatrix.gguf")
    imatrix(model, DATA / "golden" / "calibration.txt", tmp_path / "ours.gguf")
    ours = read_imatrix(tmp_path / "ours.gguf")
    assert set(ours.entries) == set(theirs.entries)
    assert (ours.chunks, ours.chunk_size, ours.datasets) == (theirs.chunks, theirs.chunk_size, theirs.datasets)
    for name, entry in theirs.entries.items():
        assert ours.entries[name].mean() == pytest.approx(entry.mean(), rel=0.02), name


def test_it_serves_quantizing(model: Path, tmp_path: Path) -> None:
    imatrix(model, ROOT / "examples" / "persuasion.txt", tmp_path / "ours.dat", chunks=4)
    report = quantize(model, "Q2_K_S", tmp_path / "small.gguf", imatrix=tmp_path / "ours.dat")
    assert set(report.without_importance) == {"output.weight", "token_embd.weight"}


def test_the_head_on_request(model: Path, tmp_path: Path) -> None:
    text = ROOT / "examples" / "persuasion.txt"
    found = imatrix(model, text, tmp_path / "all.gguf", chunks=2, n_ctx=64, options=ImatrixOptions(with_output=True))
    entry = found.entries["output.weight"]
    assert entry.counts.tolist() == [128.0]
    assert np.isfinite(entry.sums).all()


def test_the_reference_s_sums(model: Path) -> None:
    """Made with caches in float32 and without flash attention, which rounds to float16."""
    theirs = read_imatrix(DATA / "golden" / "austen.imatrix.gguf")
    ours = imatrix(
        model, TEXT, n_ctx=128, options=ImatrixOptions(skip_chunks=1, with_output=True, precision="llama.cpp"), chunks=3
    )
    assert set(ours.entries) == set(theirs.entries)
    assert (ours.chunks, ours.chunk_size, ours.datasets) == (theirs.chunks, theirs.chunk_size, theirs.datasets)
    for name, entry in theirs.entries.items():
        mine = ours.entries[name]
        assert np.array_equal(mine.counts, entry.counts), name
        assert mine.sums == pytest.approx(entry.sums, rel=2e-3), name
        assert mine.inputs is not None
        assert entry.inputs is not None
        assert np.linalg.norm(mine.sums - entry.sums) < 2e-4 * np.linalg.norm(entry.sums), name
        assert np.linalg.norm(mine.inputs - entry.inputs) < 3e-4 * np.linalg.norm(entry.inputs), name


def test_the_reference_s_sums_of_a_layer_that_predicts_further(tmp_path: Path) -> None:
    """`llama-imatrix --nextn -c 64 -b 64 --chunks 3 -fa off -ctk f32 -ctv f32` of the entry in float32."""
    theirs = read_imatrix(DATA / "golden" / "glm4-moe-lite.imatrix.gguf")
    checkpoints.build("glm4-moe-lite", tmp_path / "glm4-moe-lite")
    file = convert(tmp_path / "glm4-moe-lite", tmp_path / "f32.gguf", "f32").outputs[0].file
    imatrix(
        file,
        TEXT,
        tmp_path / "ours.gguf",
        n_ctx=64,
        chunks=3,
        options=ImatrixOptions(nextn=True, precision="llama.cpp"),
    )
    ours = read_imatrix(tmp_path / "ours.gguf")
    assert set(ours.entries) == set(theirs.entries)
    assert (ours.chunks, ours.next_layers) == (theirs.chunks, theirs.next_layers) == (3, 1)
    assert ours.entries["blk.3.nextn.eh_proj.weight"].counts.tolist() == [3 * 63]
    for name, entry in theirs.entries.items():
        mine = ours.entries[name]
        if len(mine.counts) == len(entry.counts):  # not so in matrices of heads, which the reference counts as one
            assert np.array_equal(mine.counts, entry.counts), name
        for own, other in ((mine.sums, entry.sums), (mine.inputs, entry.inputs)):
            apart = np.linalg.norm(np.ravel(own) - np.ravel(other))
            assert apart < 4e-5 * np.linalg.norm(other), name
    for pair in ((ours, theirs), (theirs, ours)):
        both = merge(pair).entries["blk.0.attn_k_b.weight"]
        assert both.counts.tolist() == [2 * 3 * 64] * 4
        assert both.inputs is not None
        assert both.inputs == pytest.approx(2 * ours.entries["blk.0.attn_k_b.weight"].inputs, rel=1e-3, abs=1e-3)


def test_a_model_without_such_a_layer(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the file has no MTP layer"):
        imatrix(model, TEXT, tmp_path / "none.gguf", n_ctx=64, chunks=2, options=ImatrixOptions(nextn=True))
    assert not list(tmp_path.iterdir())


def same(one: ImportanceMatrix, other: ImportanceMatrix, exactly: float = 0) -> None:
    assert set(one.entries) == set(other.entries)
    for name, entry in one.entries.items():
        for mine, theirs in zip(entry, other.entries[name], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=exactly, atol=exactly, err_msg=name)


def test_several_texts_add_up(model: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text(TEXT.read_text()[5000:9000])
    both = imatrix(model, [TEXT, short], n_ctx=64, chunks=2)
    apart = merge([imatrix(model, text, n_ctx=64, chunks=2) for text in (TEXT, short)])
    assert (both.chunks, both.datasets) == (apart.chunks, apart.datasets) == (4, ("persuasion.txt", "short.txt"))
    same(both, apart, 1e-5)


def test_special_tokens_on_request(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "chat.txt"
    text.write_text("<|eot_id|>Anne said.\n" * 40)
    spelled, parsed = (
        imatrix(model, text, n_ctx=32, options=ImatrixOptions(parse_special=parse)).chunks for parse in (False, True)
    )
    assert parsed < spelled


def test_too_much_is_skipped(model: Path) -> None:
    with pytest.raises(OptionError, match=r"persuasion\.txt has \d+ tokens: 0 after its first 99999 windows of 64"):
        imatrix(model, TEXT, n_ctx=64, options=ImatrixOptions(skip_chunks=99999))


def test_what_is_left_behind_skipped_windows(model: Path, tmp_path: Path) -> None:
    tokens = len(gguftools.open(model).tokenizer.encode(TEXT.read_text(encoding="utf-8")))
    windows = tokens // 64
    assert imatrix(model, TEXT, n_ctx=64, options=ImatrixOptions(skip_chunks=windows - 2)).chunks == 2
    with pytest.raises(OptionError, match=r"tokens: \d+ after its first"):
        imatrix(model, TEXT, n_ctx=64, options=ImatrixOptions(skip_chunks=windows - 1))


class Killed(BaseException):
    pass


def killed_after(windows: int):
    def progress(done: int, total: int, value: float) -> None:
        if done >= windows:
            raise Killed

    return progress


def interrupted(model: Path, target: Path, windows: int = 5) -> None:
    with pytest.raises(Killed):
        imatrix(
            model,
            TEXT,
            target,
            n_ctx=64,
            chunks=8,
            options=ImatrixOptions(save_every=2),
            progress=killed_after(windows),
        )
    assert not target.exists()


def test_a_killed_run_goes_on(model: Path, tmp_path: Path) -> None:
    whole = imatrix(model, TEXT, tmp_path / "whole.gguf", n_ctx=64, chunks=8, options=ImatrixOptions(save_every=2))
    target, seen = tmp_path / "part.gguf", []
    interrupted(model, target)
    imatrix(
        model,
        TEXT,
        target,
        n_ctx=64,
        chunks=8,
        options=ImatrixOptions(save_every=2, resume=True),
        progress=lambda done, *_: seen.append(done),
    )
    assert seen == [6, 8]
    same(read_imatrix(target), whole)
    assert (tmp_path / "part.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part.gguf", "whole.gguf"]


def test_a_process_that_is_killed_outright(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "m.gguf"
    words = [sys.executable, "-m", "gguftools", "imatrix", str(model), "-f", str(TEXT), "-o", str(target)]
    words += ["-c", "64", "--chunks", "80", "--save-every", "4", "-j", "1"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        journal = tmp_path / "m.gguf.partial.journal"
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and (not journal.exists() or journal.read_bytes().count(b"\n") < 3):
            time.sleep(0.01)
        process.kill()
    assert not target.exists()
    again = subprocess.run([*words, "--resume"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "interrupted" not in again.stderr
    words[8] = str(tmp_path / "whole.gguf")
    subprocess.run(words, cwd=ROOT, capture_output=True, check=True)
    assert target.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "whole.gguf"]


def test_two_at_once(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "m.gguf"

    def second(done: int, *_: object) -> None:
        with pytest.raises(FileError, match="another run is writing"):
            imatrix(model, TEXT, target, n_ctx=64, chunks=4)

    imatrix(model, TEXT, target, n_ctx=64, chunks=2, progress=second)
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_what_a_kill_cut_off_is_not_believed(model: Path, tmp_path: Path) -> None:
    target, seen = tmp_path / "m.gguf", []
    interrupted(model, target, 6)
    partial, journal = tmp_path / "m.gguf.partial", tmp_path / "m.gguf.partial.journal"
    data = bytearray(partial.read_bytes())
    data[0] ^= 1  # of the first place, which has six windows; the second one has four
    partial.write_bytes(data)
    with journal.open("a") as lines:
        lines.write('{"windows": 8, "at"')
    whole = imatrix(model, TEXT, n_ctx=64, chunks=8)
    resumed = imatrix(
        model,
        TEXT,
        target,
        n_ctx=64,
        chunks=8,
        options=ImatrixOptions(resume=True),
        progress=lambda done, *_: seen.append(done),
    )
    assert seen[0] == 4
    same(resumed, whole, 1e-5)


def test_another_run_is_not_resumed(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "m.gguf"
    interrupted(model, target)
    with pytest.raises(FileError, match="begun on other texts or windows"):
        imatrix(model, TEXT, target, n_ctx=64, chunks=4, options=ImatrixOptions(resume=True))
    with pytest.raises(FileError, match="begun with other options"):
        imatrix(model, TEXT, target, n_ctx=64, chunks=8, options=ImatrixOptions(with_output=True, resume=True))
    anew = imatrix(model, TEXT, target, n_ctx=64, chunks=4)
    assert anew.chunks == 4
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_an_error_leaves_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gguftools.measurement import importance

    monkeypatch.setattr(importance, "MAX_SQUARE", 0.0)
    with pytest.raises(ModelError, match="too large to be squared"):
        imatrix(model, TEXT, tmp_path / "m.gguf", n_ctx=64, chunks=4)
    assert not list(tmp_path.iterdir())


def test_progress_knows_how_much_there_is_before_the_first_window(model: Path) -> None:
    told: list[tuple[int, int]] = []
    imatrix(model, TEXT, n_ctx=64, chunks=2, progress=lambda done, total, _: told.append((done, total)))
    assert told[0] == (0, 2)
    assert told[-1] == (2, 2)
