"""Records of runs that were cut short."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gguftools.io.atomic import NOTHING
from gguftools.io.locks import state_of
from gguftools.measurement.progress_record import progress_record, remove_record
from quants.errors import FileError, OptionError

SIZES = [3, 2, 3]
VALUES = [np.arange(4.0 * size).reshape(size, 4) + 0.1 for size in SIZES]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_text("weights")
    return path


def begin(path, source, plan=None, columns=4, reads=NOTHING, keep=False):
    return progress_record(path, plan or {"n_ctx": 512, "texts": "7" * 64}, [source], SIZES, columns, reads, keep)


def done_in(record):
    """How many windows earlier runs measured."""
    return sum(record.earlier(window) is not None for window in range(len(SIZES)))


def interrupted(path, source, windows, done=0):
    def run():
        with begin(path, source) as record:
            assert done_in(record) == done
            for window in windows:
                record.note(window, VALUES[window])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()


@pytest.fixture
def cut(tmp_path, source):
    """The record of a run that was interrupted in its third window."""
    path = tmp_path / "record"
    interrupted(path, source, (0, 1))
    return path


def test_what_was_measured_is_there_and_goes_in_the_end(cut, source):
    with begin(cut, source) as record:
        assert done_in(record) == 2
        for window in (0, 1):
            assert np.array_equal(record.earlier(window), VALUES[window])
        assert record.earlier(2) is None
        record.note(2, VALUES[2])
    assert not cut.exists()


@pytest.mark.parametrize("missing", [1, 2, 20, 60])
def test_a_torn_tail_is_cut(cut, source, missing):
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-missing])
    interrupted(cut, source, [1], done=1)
    assert cut.read_bytes() == whole


def test_a_line_that_was_changed_is_not_believed(cut, source):
    lines = cut.read_bytes().splitlines(keepends=True)
    entry = json.loads(lines[1])
    entry[2] = entry[2].replace(entry[2][5], "B" if entry[2][5] == "A" else "A", 1)
    cut.write_bytes(lines[0] + json.dumps(entry).encode() + b"\n" + lines[2])
    with begin(cut, source) as record:
        assert done_in(record) == 0


@pytest.mark.parametrize("line", [b"[]", b"[9, 0, ''\n", b'[-1, 0, ""]\n', b'[0, 0, ""]\n', b"\xff\n", b'{"a": 1}\n'])
def test_lies_are_cut(cut, source, line):
    cut.write_bytes(cut.read_bytes() + line)
    with begin(cut, source) as record:
        assert done_in(record) == 2


def test_another_runs_record_is_refused(cut, source):
    before = cut.read_bytes()
    with (
        pytest.raises(FileError, match="n_ctx was 512, it is 256 now"),
        begin(cut, source, {"n_ctx": 256, "texts": "7" * 64}),
    ):
        pass
    with pytest.raises(FileError, match="texts is another"), begin(cut, source, {"n_ctx": 512, "texts": "8" * 64}):
        pass
    with pytest.raises(FileError, match="another version"), begin(cut, source, columns=5):
        pass
    source.write_text("other weights")
    with pytest.raises(FileError, match=r"model.gguf was changed since"), begin(cut, source):
        pass
    assert cut.read_bytes() == before


def test_two_runs_do_not_share_one(cut, source):
    with begin(cut, source), pytest.raises(FileError, match="another run is writing"), begin(cut, source):
        pass


def test_what_is_written_beside_it(cut, source, tmp_path):
    output = tmp_path / "base.gguf"
    output.write_text("base")
    with begin(cut, source, keep=True) as record:
        assert not record.is_output(output)
        record.note(2, VALUES[2])
        record.note_output(state_of(output))
    with begin(cut, source, keep=True) as record:
        assert done_in(record) == 3
        assert record.is_output(output)
        assert not record.is_output(source)
        assert not record.is_output(tmp_path / "absent")
    cut.write_bytes(cut.read_bytes()[:-1])
    with begin(cut, source) as record:
        assert done_in(record) == 3
        assert not record.is_output(output)


@pytest.mark.parametrize(
    "line", [b'{"output": 3}\n', b'{"output": [1, 2]}\n', b'{"output": ["a", 2, 3, 4]}\n', b"{}\n"]
)
def test_lies_about_what_is_written_are_cut(cut, source, line):
    whole = cut.read_bytes()
    cut.write_bytes(whole + line)
    interrupted(cut, source, [], done=2)
    assert cut.read_bytes() == whole


def test_one_that_is_kept_is_removed_on_request(tmp_path, source):
    path = tmp_path / "record"
    with begin(path, source, keep=True) as record:
        record.note(1, VALUES[1])
    with begin(path, source, keep=True) as record:
        assert done_in(record) == 1
        remove_record(path)  # another run has it
        assert path.exists()
    remove_record(path)
    assert not path.exists()
    remove_record(path)
    remove_record(None)
    path.write_text("mine")
    remove_record(path)
    assert path.read_text() == "mine"


def test_one_with_nothing_in_it_goes(tmp_path, source):
    interrupted(tmp_path / "record", source, [])
    assert not (tmp_path / "record").exists()


def test_a_strangers_file_stays(tmp_path, source):
    path = tmp_path / "novel.txt"
    path.write_text("It is a truth universally acknowledged\n")
    with pytest.raises(FileError, match="is in the way"), begin(path, source):
        pass
    with pytest.raises(OptionError, match="is read"), begin(source, source, reads=NOTHING.also([source])):
        pass
    assert path.read_text().startswith("It is")
