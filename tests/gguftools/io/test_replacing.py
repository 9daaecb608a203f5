"""Files that replace others together: what readers, writers and a person make of a replacement that was cut off."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from gguftools.io import replacing
from gguftools.io.atomic import atomic_output, publish, published_together, when_published
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.replacing import Change, recover, replace_together, replacements
from gguftools.writing.options import WriteOptions
from quants.errors import FileError

from ..test_cli import gguftools as run_gguftools
from ..tiny_models import metadata_of, write_model

SHARDS = [f"s-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]


class Killed(BaseException):
    """As a process ends: nothing that it would still do is done."""


def model(path: Path, value: float) -> Path:
    tensors = {f"t{i}": np.full((2, 32), value + i) for i in range(6)}
    return write_model(path, metadata_of({"general.architecture": "llama", "general.name": f"of {value}"}), tensors)


def split(path: Path, folder: Path) -> None:
    gguftools.split(path, folder / "s", max_tensors=2, overwrite=True)


def cut_off(monkeypatch: pytest.MonkeyPatch, placed: int, call: Callable[[], object]) -> None:
    """Call what writes a set, and end it when so many files have their names; nothing is undone."""
    real, done = replacing.take_name, []

    def take_name(path: Path, target: Path) -> None:
        if len(done) == placed:
            raise Killed
        real(path, target)
        done.append(target)

    def undo(replacement: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(replacing, "take_name", take_name)
        patch.setattr(replacing, "_undo", undo)
        patch.setattr("gguftools.io.atomic.discard", lambda file: os.close(file.fd))
        with pytest.raises(Killed):
            call()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, bytes], dict[str, bytes]]:
    """A folder whose set was being replaced, one shard of three having its name; what it had, and was to have."""
    made = {}
    for name, value in (("old", 1.0), ("new", 2.0)):
        (tmp_path / name).mkdir()
        split(model(tmp_path / f"{name}.gguf", value), tmp_path / name)
        made[name] = contents(tmp_path / name)
    cut_off(monkeypatch, 1, lambda: split(tmp_path / "new.gguf", tmp_path / "old"))
    return tmp_path / "old", made["old"], made["new"]


def test_readers_refuse_what_is_half_replaced_by_name(halves):
    folder, _, _ = halves
    assert not (folder / SHARDS[0]).exists()  # so that other programs do not open it either
    [journal] = folder.glob(".*.replacing")
    for name in SHARDS:
        for call in (open_gguf, gguftools.open, lambda path: open_gguf(path, join=False)):
            with pytest.raises(FileError, match=r"1 of 3 have their names") as caught:
                call(folder / name)
        assert journal.name in str(caught.value)
        assert "recover" in str(caught.value.hint)
        report = gguftools.validate(folder / name)
        assert (report.ok, journal.name in report.problems[0].message) == (False, True)


@pytest.mark.parametrize("words", [("show",), ("validate",), ("quantize", "Q8_0"), ("merge",), ("generate", "-p", "x")])
def test_commands_refuse_it(halves, words):
    folder, _, _ = halves
    done = run_gguftools(words[0], folder / SHARDS[1], *words[1:], cwd=folder)
    assert done.returncode == 1
    assert "1 of 3 have their names" in done.stdout + done.stderr


def test_the_next_run_writes_the_set(halves, caplog):
    folder, _, new = halves
    split(folder.parent / "new.gguf", folder)
    assert contents(folder) == new
    assert "an interrupted replacement was rolled back" in caplog.text


def test_it_is_completed_or_undone(halves, tmp_path):
    folder, old, new = halves
    other = tmp_path / "other"
    other.mkdir()
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
        os.utime(other / path.name, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    assert (recover(folder / SHARDS[2]), contents(folder)) == ("completed", new)
    assert (recover(other / SHARDS[2], roll_back=True), contents(other)) == ("rolled back", old)
    assert recover(folder / SHARDS[0]) is None


def test_it_is_completed_by_command(halves):
    folder, _, new = halves
    done = run_gguftools("set-metadata", folder / SHARDS[1], "--recover", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "interrupted: completed\n")
    assert contents(folder) == new


def test_a_new_set_that_was_cut_off_is_written_anew(tmp_path, monkeypatch):
    whole, folder = model(tmp_path / "m.gguf", 1.0), tmp_path / "set"
    folder.mkdir()
    cut_off(monkeypatch, 2, lambda: gguftools.split(whole, folder / "s", max_tensors=2))
    assert sorted(path.name for path in folder.glob("s-*")) == SHARDS[1:]
    gguftools.split(whole, folder / "s", max_tensors=2)  # without overwrite
    assert sorted(contents(folder)) == SHARDS
    with pytest.raises(FileError, match="already exists"):
        gguftools.split(whole, folder / "s", max_tensors=2)


def test_without_overwrite_older_files_are_still_there(halves):
    folder, old, _ = halves
    with pytest.raises(FileError, match="already exists"):
        gguftools.split(folder.parent / "new.gguf", folder / "s", max_tensors=2)
    assert recover(folder, roll_back=True) == "rolled back"
    assert contents(folder) == old


def test_an_error_undoes_all(tmp_path, monkeypatch):
    folder = tmp_path / "set"
    folder.mkdir()
    split(model(tmp_path / "old.gguf", 1.0), folder)
    old, real = contents(folder), replacing.take_name

    def failing(path: Path, target: Path) -> None:
        if target.name == SHARDS[1] and path.name.endswith(".partial"):
            raise OSError(28, "No space left on device")
        real(path, target)

    monkeypatch.setattr(replacing, "take_name", failing)
    with pytest.raises(FileError, match="no space left"):
        split(model(tmp_path / "new.gguf", 2.0), folder)
    assert contents(folder) == old


def test_files_of_others_are_not_removed(halves):
    """What has a name now that an older file had is neither replaced nor lost."""
    folder, _, _ = halves
    (folder / SHARDS[0]).write_bytes(b"theirs")
    for roll_back in (False, True):
        with pytest.raises(FileError, match="was written since"):
            recover(folder, roll_back)
    with pytest.raises(FileError, match="was written since"):
        split(folder.parent / "new.gguf", folder)
    assert (folder / SHARDS[0]).read_bytes() == b"theirs"


@pytest.mark.parametrize(
    "change",
    [
        ["../a", ".x.partial", None, False, [1, 1]],
        ["a", "b", None, False, [1, 1]],
        ["a", None, "b", False, None],
        ["a", "../.x.partial", None, False, [1, 1]],
        ["a", ".x/../.y.partial", None, False, [1, 1]],
        ["a", 5, None, False, None],
        ["a"],
        "a",
        [".", None, ".x.replaced", False, None],
        ["a", None, "/tmp/x.replaced", False, None],
    ],
)
def test_journals_of_strangers_are_not_followed(tmp_path, change: Any):
    content = {"gguftools-replacing": 1, "files": [change], "writer": ["host", 1, "1"]}
    (tmp_path / ".a.replacing").write_text(json.dumps(content))
    (tmp_path / ".b.replacing").write_text("[" * 10_000)
    assert replacements(tmp_path) == []


def test_a_writer_that_lives_is_waited_for(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")
    (tmp_path / ".a.partial").write_text("newer")
    monkeypatch.setattr(replacing, "PATIENCE", 0.05)
    monkeypatch.setattr(replacing, "WAIT", 0.05)
    place = replacing._place

    def placing(replacement: Any) -> None:
        with pytest.raises(FileError, match="being replaced by another program"):
            replacing.check_file_whole(tmp_path / "a")
        with pytest.raises(FileError, match="being replaced by another program"):
            replacing.settle(tmp_path / "a")
        place(replacement)

    monkeypatch.setattr(replacing, "_place", placing)
    replace_together(tmp_path / "a", [Change("a", ".a.partial", ".a.replaced")])
    assert contents(tmp_path) == {"a": b"newer"}


def test_without_locks_a_process_is_known_by_its_number(tmp_path, monkeypatch):
    monkeypatch.setattr(replacing, "is_unlocked", lambda fd: None)
    host, process, began = replacing._this_process()
    assert replacing._is_running((host, process, began))
    assert not replacing._is_running((host, process, "1"))
    assert replacing._is_running(("elsewhere", process, "1"))  # nobody knows


def test_published_together_all_or_none(tmp_path):
    called: list[str] = []

    def write(fail: bool) -> None:
        with published_together():
            for name in ("b", "a"):
                with atomic_output(tmp_path / name, "w", overwrite=True) as file:
                    file.write("new")
            when_published(lambda: called.append((tmp_path / "a").read_text()))
            assert not called
            if fail:
                raise KeyError(name)

    with pytest.raises(KeyError):
        write(fail=True)
    assert (contents(tmp_path), called) == ({}, [])
    write(fail=False)
    assert (contents(tmp_path), called) == ({"a": b"new", "b": b"new"}, ["new"])
    publish()


@pytest.mark.parametrize("mode", [0o640, 0o600, 0o664])
def test_a_replaced_file_keeps_its_permissions(tmp_path, mode):
    source, folder = model(tmp_path / "m.gguf", 1.0), tmp_path / "out"
    folder.mkdir()
    calls: dict[str, Callable[[], object]] = {
        "q.gguf": lambda: gguftools.quantize(source, "F16", folder / "q.gguf", write=WriteOptions(overwrite=True)),
        "copy.gguf": lambda: gguftools.set_metadata(
            source, {"general.name": "n"}, output=folder / "copy.gguf", overwrite=True
        ),
        "t.safetensors": lambda: gguftools.export(
            source, folder / "t.safetensors", tensors="t", write=WriteOptions(overwrite=True)
        ),
        "t0.npy": lambda: gguftools.export(source, f"{folder}/", tensors="t0", write=WriteOptions(overwrite=True)),
        SHARDS[0]: lambda: split(source, folder),
        SHARDS[1]: lambda: split(source, folder),
    }
    for name, call in calls.items():
        call()
        (folder / name).chmod(mode)
        call()
        assert stat.S_IMODE((folder / name).stat().st_mode) == mode, name
        (folder / name).chmod(0o444)
        before = (folder / name).read_bytes()
        with pytest.raises(FileError, match=r"is read-only \(mode 0444\)") as caught:
            call()
        assert "chmod" in str(caught.value.hint)
        assert (folder / name).read_bytes() == before
        (folder / name).chmod(mode)


def test_an_edit_of_a_read_only_file_is_refused(tmp_path):
    path = model(tmp_path / "m.gguf", 1.0)
    path.chmod(0o444)
    for name in ("x", "x" * 5000):  # in place, and by a copy
        with pytest.raises(FileError, match="is read-only"):
            gguftools.set_metadata(path, {"general.name": name})
