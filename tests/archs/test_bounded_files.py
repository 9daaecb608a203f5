"""Files that users name are read up to a limit, whatever they are."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from archs import bounded_files
from archs.bounded_files import Limit, read_bytes, read_text
from gguftools.cli.arguments import read_json_values, read_rules, text_or_file
from gguftools.inspection.hashing import read_manifest
from gguftools.lab.grafting.experts import read_list
from gguftools.measurement.conversations import read_conversations
from gguftools.measurement.tasks.task import read_lines
from gguftools.measurement.text_tokens import read_text as read_measured_text
from gguftools.metadata.prompts import conversations, prompts_of
from gguftools.quantization.recipe_texts import read_recipe
from gguftools.writing.work_plan import read_prices
from quants.errors import FileError, GgufToolsError

SMALL = Limit("a note", 8)
READERS: dict[str, Callable[[Path], object]] = {
    "text": read_measured_text,
    "tasks": read_lines,
    "prompts": lambda path: prompts_of(None, path),
    "conversations": conversations,
    "calibration": read_conversations,
    "value": lambda path: text_or_file(f"@{path}"),
    "metadata": read_json_values,
    "rules": read_rules,
    "recipe": read_recipe,
    "experts": read_list,
    "hashes": read_manifest,
    "prices": read_prices,
}


def test_files_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "note").write_bytes(b"12345678")
    assert read_bytes(tmp_path / "note", SMALL) == b"12345678"
    assert read_text(tmp_path / "note", SMALL) == "12345678"
    (tmp_path / "note").write_bytes(b"123456789")
    with pytest.raises(FileError, match=r"note has more than 8 bytes, the most that a note may have") as caught:
        read_bytes(tmp_path / "note", SMALL)
    assert caught.value.hint == "name a smaller file"


def test_what_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "note").write_bytes(b"ab\xff")
    with pytest.raises(FileError, match=r"note is not UTF-8 text: byte 2 is 0xff; a note is expected"):
        read_text(tmp_path / "note", SMALL)
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(FileError, match=f"{re.escape(str(path))} cannot be read: {reason}"):
            read_text(path, SMALL)


def test_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")

    def write() -> None:
        with (tmp_path / "pipe").open("w") as pipe:
            pipe.write("12")
            pipe.flush()
            pipe.write("34")

    thread = threading.Thread(target=write)
    thread.start()
    assert read_text(tmp_path / "pipe", SMALL) == "1234"
    thread.join()
    monkeypatch.setattr(bounded_files, "PIPE_SECONDS", 0.05)
    with pytest.raises(FileError, match=r"pipe is a pipe without input for 0\.05 seconds"):
        read_text(tmp_path / "pipe", SMALL)


@pytest.mark.parametrize("reader", READERS)
def test_endless_files_are_refused(reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GgufToolsError, match=r"/dev/zero.* has more than 1,048,576 bytes"):
        READERS[reader](Path("/dev/zero"))
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(bounded_files, "PIPE_SECONDS", 0.01)
    with pytest.raises(GgufToolsError, match=r"pipe.* without input"):
        READERS[reader](tmp_path / "pipe")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate((1 << 30) + 1)
    with pytest.raises(GgufToolsError, match=r"sparse.* has more than [0-9,]+ bytes, the most that an? \w+"):
        READERS[reader](tmp_path / "sparse")
