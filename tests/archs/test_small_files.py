"""JSON and other small files: bounded before they are made into objects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from archs import small_files
from archs.small_files import file_state, read_json, recorded_reads
from quants.errors import FileError


def test_json_is_what_it_says() -> None:
    assert small_files.parse_json(b'{"a": [1, "\xc3\xa9"]}') == {"a": [1, "\u00e9"]}
    assert small_files.parse_json("[" * 64 + "]" * 64)
    assert small_files.parse_json('"\udcff"') == "\udcff"


@pytest.mark.parametrize("text", ["[" * 66 + "]" * 66, "[" * 10**5 + "]" * 10**5, "{", b"\xff", '{"a": 1, "a": 2}'])
def test_json_that_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        small_files.parse_json(text, unique=True)


def test_json_of_too_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "MAX_VALUES", 4)
    assert small_files.parse_json("[1, 2, 3, 4]") == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="about 5 values"):
        small_files.parse_json("[1, 2, 3, 4, 5]")


def test_what_is_no_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("pipe", "is not a plain file"), ("none", "there is no file"), (".", "is not a plain file")):
        with pytest.raises(FileError, match=words):
            small_files.read_json(tmp_path / name)


def test_reads_are_recorded_with_the_state_before_the_first(tmp_path):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    for path in (first, second):
        path.write_text("{}")
    before = file_state(first.stat())
    read_json(second)  # in no block

    def both(one, other):
        with recorded_reads():
            read_json(one)
            read_json(other)

    with recorded_reads() as outer:
        read_json(first)
        first.write_text("[1]")
        with recorded_reads() as inner:
            read_json(first)
        with pytest.raises(FileError):
            both(second, tmp_path / "absent.json")
    assert inner == {first: file_state(first.stat())}
    assert outer == {first: before}
