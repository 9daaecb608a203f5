"""Folders that are written: what killed runs leave of them goes, what others are at work on stays."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from gguftools.io import entries, folders
from gguftools.io.folders import files_of_folder, free_for, new_folder
from quants.errors import FileError


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def left(folder: Path, name: str) -> Path:
    path = folder / f".{name}.0123456789ab.partial"
    path.mkdir()
    (path / "model.safetensors").write_text("half")
    return path


def test_what_a_killed_run_left_is_named_and_removed(tmp_path, caplog):
    beside, other = left(tmp_path, "out"), left(tmp_path, "another")
    with new_folder(tmp_path / "out") as made:
        (made / "config.json").write_text("{}")
    assert not beside.exists()
    assert other.exists()
    assert f"{beside} of an interrupted run was removed" in caplog.text
    within = left(tmp_path / "out", "out")
    with new_folder(tmp_path / "out", overwrite=True) as made:
        (made / "config.json").write_text("[]")
    assert not within.exists()
    assert names(tmp_path / "out") == ["config.json"]


def test_a_folder_with_nothing_but_that_is_empty(tmp_path):
    (tmp_path / "out").mkdir()
    left(tmp_path / "out", "out")
    with new_folder(tmp_path / "out") as made:
        (made / "config.json").write_text("{}")
    assert names(tmp_path) == ["out/config.json"]


def test_a_run_that_is_at_work_keeps_its_folder(tmp_path):
    with ExitStack() as stack:
        first = stack.enter_context(new_folder(tmp_path / "out"))
        (first / "config.json").write_text("first")
        with new_folder(tmp_path / "out") as second:
            (second / "config.json").write_text("second")
            assert (first / "config.json").exists()
        with pytest.raises(FileError, match="already exists"):
            stack.close()
    assert (tmp_path / "out" / "config.json").read_text() == "second"
    assert names(tmp_path) == ["out/config.json"]


def test_what_cannot_be_locked_is_named_alone(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(entries, "is_unlocked", lambda fd: None)
    beside = left(tmp_path, "out")
    with new_folder(tmp_path / "out") as made:
        (made / "config.json").write_text("{}")
    assert beside.exists()
    assert f"{beside} may be left of an interrupted run" in caplog.text


def test_links_are_not_followed(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").write_text("kept")
    link = tmp_path / ".out.0123456789ab.partial"
    link.symlink_to(tmp_path / "theirs")
    entries.remove_leftovers(tmp_path / "out")
    assert (link.is_symlink(), (tmp_path / "theirs" / "file").read_text()) == (True, "kept")


def test_files_that_are_added_get_their_names_together(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")
    with files_of_folder(tmp_path, overwrite=True) as made:
        for name in ("a", "b"):
            (made / name).write_text("new")
        assert names(tmp_path) == sorted(["a", f"{made.name}/a", f"{made.name}/b"])
    assert names(tmp_path) == ["a", "b"]
    with ExitStack() as stack:
        made = stack.enter_context(files_of_folder(tmp_path))
        for name in ("b", "c"):
            (made / name).write_text("newer")
        with pytest.raises(FileError, match="already exists"):
            stack.close()
    assert names(tmp_path) == ["a", "b"]
    monkeypatch.setattr(folders, "replace_together", lambda *_: (tmp_path / "absent").unlink())
    with pytest.raises(FileError, match="cannot be written"), files_of_folder(tmp_path, overwrite=True) as made:
        (made / "a").write_text("newest")
    assert ((tmp_path / "a").read_text(), names(tmp_path)) == ("new", ["a", "b"])


def test_bytes_free_for_a_folder_that_is_not_there(tmp_path):
    assert 0 < free_for(tmp_path / "one" / "two") == pytest.approx(free_for(tmp_path), rel=0.1)
