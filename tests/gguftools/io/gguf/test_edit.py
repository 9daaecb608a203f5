"""Editing metadata: in place where it fits, else by a copy; a crash at any moment leaves the old or the new file."""

import hashlib
import random
import shutil
import string

import filelock
import numpy as np
import pytest

from archs.metadata import Metadata, ValueType
from gguftools.io import positioned
from gguftools.io.gguf import journal
from gguftools.io.gguf.edit import edit_metadata, planned_edit
from gguftools.io.gguf.journal import journal_path, recover
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.gguf.writer import RESERVE_KEY, TensorInfo, plan_file
from quants import format_named
from quants.errors import FileError

from ...tiny_models import create_gguf


class Crash(BaseException):
    """Stands for a process that ends without a word."""


def make(path, reserve=0, tokens=300, byte_order="little", version=3, alignment=32, names=("a", "b"), **keys):
    metadata = Metadata()
    metadata["general.architecture"] = "llama"
    metadata["general.name"] = "old"
    metadata["tokens"] = [f"token {i}" for i in range(tokens)]
    metadata["template"] = "{{ messages }}"
    for key, value in keys.items():
        metadata.set(key.replace("_", "."), value, ValueType.UINT16)
    infos = [TensorInfo(name, (7, 33), format_named("F32")) for name in names]
    layout = plan_file(metadata, infos, alignment, reserve, version=version, byte_order=byte_order)
    noise = np.random.default_rng(4)
    with create_gguf(path, layout) as output:
        for i, info in enumerate(infos):
            output.write(i, 0, noise.integers(0, 256, (info.rows, info.row_bytes), np.uint8))
    return path


def change(path, **options):
    """Keyword `keys`: to set, or with None to remove."""
    metadata = open_gguf(path).metadata.copy()
    for key, value in options.pop("keys", {}).items():
        if value is None:
            del metadata[key]
        else:
            metadata[key] = value
    return edit_metadata(path, metadata, **options)


def tensor_hashes(path):
    return {name: hashlib.sha256(t.raw().tobytes()).hexdigest() for name, t in open_gguf(path).tensors.items()}


def test_no_change_writes_nothing(tmp_path):
    path = make(tmp_path / "t.gguf")
    before = path.stat().st_mtime_ns
    edit = change(path)
    assert (edit.in_place, edit.bytes_written) == (True, 0)
    assert path.stat().st_mtime_ns == before


def test_no_change_copy_is_identical(shared, tmp_path):
    for source in sorted((shared / "golden" / "e2e").glob("*.gguf")):
        copy = tmp_path / "copy.gguf"
        edit = edit_metadata(source, open_gguf(source).metadata, output=copy, overwrite_output=True)
        assert not edit.in_place
        assert (tmp_path / "copy.gguf").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("byte_order", ["little", "big"])
@pytest.mark.parametrize("version", [2, 3])
def test_same_length_is_in_place(tmp_path, byte_order, version):
    path = make(tmp_path / "t.gguf", byte_order=byte_order, version=version)
    old, size = tensor_hashes(path), path.stat().st_size
    edit = change(path, keys={"general.name": "new"})
    assert (edit.in_place, edit.bytes_written) == (True, 3)
    opened = open_gguf(path)
    assert (opened.metadata["general.name"], opened.byte_order, opened.version) == ("new", byte_order, version)
    assert tensor_hashes(path) == old
    assert path.stat().st_size == size


def test_slack_is_used_and_given_back(tmp_path):
    path = make(tmp_path / "t.gguf", reserve=4096)
    old, start = tensor_hashes(path), open_gguf(path).data_offset
    for length in (1, 50, 4000, 4096, 3, 4120, 4131, *range(4090, 4131, 3), 10):
        keys = {"general.name": "n" * length}
        assert planned_edit(path, _with(path, keys)).in_place
        edit = change(path, keys=keys)
        opened = open_gguf(path)
        assert edit.in_place
        assert (len(opened.metadata["general.name"]), opened.data_offset) == (length, start)
        assert opened.metadata["tokens"][299] == "token 299"
        assert opened.metadata["template"] == "{{ messages }}"
        assert tensor_hashes(path) == old
    edit = change(path, keys={"general.name": "n" * 6000})
    assert not edit.in_place
    assert tensor_hashes(path) == old


def _with(path, keys):
    metadata = open_gguf(path).metadata.copy()
    for key, value in keys.items():
        metadata[key] = value
    return metadata


def test_slack_before_large_arrays_keeps_them_in_place(tmp_path):
    path = make(tmp_path / "t.gguf", reserve=2000, tokens=100_000)
    edit = change(path, keys={"general.name": "a much longer name"})
    assert edit.in_place
    assert edit.bytes_written < 3000


def test_growth_without_slack_is_a_copy(tmp_path):
    path = make(tmp_path / "t.gguf")
    old, inode = tensor_hashes(path), path.stat().st_ino
    path.chmod(0o640)
    steps = []
    edit = change(path, keys={"general.name": "n" * 500}, progress=lambda done, total: steps.append((done, total)))
    assert not edit.in_place
    assert edit.bytes_written == path.stat().st_size
    assert steps[-1][0] == steps[-1][1] > 0
    assert open_gguf(path).metadata["general.name"] == "n" * 500
    assert tensor_hashes(path) == old
    assert path.stat().st_ino != inode
    assert path.stat().st_mode & 0o777 == 0o640


def test_asking_for_slack(tmp_path):
    path = make(tmp_path / "t.gguf")
    old, start = tensor_hashes(path), open_gguf(path).data_offset
    assert not change(path, reserve=1000).in_place
    opened = open_gguf(path)
    assert len(opened.metadata[RESERVE_KEY]) >= 1000
    assert (opened.data_offset - start) % 4096 == 0
    assert tensor_hashes(path) == old
    assert change(path, reserve=1000).in_place
    assert not change(path, keys={RESERVE_KEY: None}, output=tmp_path / "small.gguf").in_place
    assert RESERVE_KEY not in open_gguf(tmp_path / "small.gguf").metadata


def test_output_leaves_the_source_alone(tmp_path):
    path = make(tmp_path / "t.gguf")
    before = path.read_bytes()
    edit = change(path, keys={"general.name": "new"}, output=tmp_path / "u.gguf")
    assert edit.path == tmp_path / "u.gguf"
    assert path.read_bytes() == before
    assert open_gguf(tmp_path / "u.gguf").metadata["general.name"] == "new"
    with pytest.raises(FileError, match="already exists"):
        change(path, output=tmp_path / "u.gguf", overwrite_output=False)


def test_other_alignment_moves_the_tensors(tmp_path):
    path = make(tmp_path / "t.gguf")
    old = tensor_hashes(path)
    for alignment in (256, 32, 8):
        metadata = open_gguf(path).metadata.copy()
        metadata.set("general.alignment", alignment, ValueType.UINT32)
        assert not edit_metadata(path, metadata).in_place
        assert open_gguf(path).alignment == alignment
        assert tensor_hashes(path) == old


def test_without_copy_file_range(tmp_path, monkeypatch):
    monkeypatch.setattr(positioned.os, "copy_file_range", _cannot, raising=False)
    path = make(tmp_path / "t.gguf")
    old = tensor_hashes(path)
    change(path, keys={"general.name": "n" * 500})
    assert tensor_hashes(path) == old


def _cannot(*arguments):
    raise OSError(18, "Invalid cross-device link")


def test_vocabulary_file(tmp_path):
    path = make(tmp_path / "v.gguf", names=())
    before = path.read_bytes()
    edit_metadata(path, open_gguf(path).metadata, output=tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == before
    change(path, keys={"general.name": "another"})
    assert open_gguf(path).metadata["general.name"] == "another"
    assert open_gguf(path).metadata["tokens"][299] == "token 299"


def test_split_set_keeps_its_keys(tmp_path):
    paths = [tmp_path / f"m-{i + 1:05d}-of-00002.gguf" for i in range(2)]
    for i, path in enumerate(paths):
        make(path, split_no=i, split_count=2, names=(f"t{i}",))
    second = paths[1].read_bytes()
    edit = change(paths[1], keys={"general.name": "of the set"})
    assert edit.path == paths[0]
    assert paths[1].read_bytes() == second
    assert open_gguf(paths[0]).metadata["general.name"] == "of the set"
    assert open_gguf(paths[0], join=False).metadata["split.count"] == 2
    with pytest.raises(FileError, match="part of a split set"):
        change(paths[0], output=tmp_path / "x.gguf")


def test_random_edits(tmp_path):
    chance = random.Random(7)
    path = make(tmp_path / "t.gguf", reserve=300)
    old = tensor_hashes(path)
    for step in range(60):
        metadata = open_gguf(path).metadata.copy()
        key = chance.choice(["general.name", "template", "k1", "k2", "k3"])
        if key in metadata and chance.random() < 0.3:
            del metadata[key]
        else:
            metadata.set(key, "".join(chance.choices(string.printable, k=chance.randrange(120))), ValueType.STRING)
        wanted = {key: metadata[key] for key in metadata if key != RESERVE_KEY and key != "tokens"}
        edit_metadata(path, metadata, reserve=chance.choice([0, 0, 0, 200]))
        opened = open_gguf(path)
        assert {key: opened.metadata[key] for key in wanted} == wanted, step
        assert len(opened.metadata) - (RESERVE_KEY in opened.metadata) == len(wanted) + 1
        assert tensor_hashes(path) == old


@pytest.mark.parametrize("written", [0, 1, 1000, 10**9], ids=["none", "one byte", "some", "all"])
@pytest.mark.parametrize("roll_back", [False, True])
def test_crash_during_an_edit_in_place(tmp_path, monkeypatch, written, roll_back):
    path = make(tmp_path / "t.gguf", reserve=3000)
    old = path.read_bytes()

    def crash(fd, data, offset):
        real(fd, data[:written], offset)
        raise Crash

    real = journal.write_at
    with monkeypatch.context() as patch:
        patch.setattr(journal, "write_at", crash)
        with pytest.raises(Crash):
            change(path, keys={"general.name": "n" * 2000})
    with pytest.raises(FileError, match="was interrupted"):
        open_gguf(path)
    assert recover(path, roll_back) == ("rolled back" if roll_back else "completed")
    assert not journal_path(path).exists()
    assert (path.read_bytes() == old) == roll_back
    assert open_gguf(path).metadata["general.name"] == ("old" if roll_back else "n" * 2000)
    assert recover(path) == "nothing to recover"


def test_crash_before_the_journal_is_complete(tmp_path, monkeypatch):
    path = make(tmp_path / "t.gguf")
    old = path.read_bytes()
    monkeypatch.setattr("gguftools.io.atomic.os.fsync", _crash)
    with pytest.raises(Crash):
        change(path, keys={"general.name": "new"})
    assert path.read_bytes() == old
    assert open_gguf(path)


def _crash(*arguments):
    raise Crash


def test_recovery_refuses_another_file(tmp_path, monkeypatch):
    path = make(tmp_path / "t.gguf", reserve=300)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "write_at", _crash)
        with pytest.raises(Crash):
            change(path, keys={"general.name": "new"})
    stored = path.read_bytes()
    other = make(tmp_path / "other.gguf", reserve=300, tokens=299)
    inside = journal._load(journal_path(path)).offset + 1
    swaps = [stored[:at] + b"?" + stored[at + 1 :] for at in (40, inside)]
    for changed in (stored[:-1], *swaps, other.read_bytes()):
        path.write_bytes(changed)
        with pytest.raises(FileError, match=r"is not the file that t\.gguf\.journal belongs to"):
            recover(path)
        assert path.read_bytes() == changed
    whole = journal_path(path).read_bytes()
    for damaged in (whole[:-1], whole[:60], b"", whole[:30] + b"?" + whole[31:]):
        journal_path(path).write_bytes(damaged)
        with pytest.raises(FileError, match="is damaged, or not a journal"):
            recover(path)
    journal_path(path).write_bytes(whole)
    path.write_bytes(stored)
    assert recover(path) == "completed"
    assert open_gguf(path).metadata["general.name"] == "new"


def test_journal_is_beside_the_file_not_the_link(tmp_path, monkeypatch):
    (tmp_path / "blobs").mkdir()
    path = make(tmp_path / "blobs" / "t.gguf")
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    assert journal_path(link) == tmp_path / "blobs" / "t.gguf.journal"
    assert change(link, keys={"general.name": "new"}).in_place
    assert open_gguf(path).metadata["general.name"] == "new"


def test_two_edits_at_once(tmp_path):
    path = make(tmp_path / "t.gguf")
    with path.open("rb") as other:
        assert filelock.lock_descriptor(other.fileno(), blocking=False)
        with pytest.raises(FileError, match="is being changed by another program"):
            change(path, keys={"general.name": "new"})


def test_interrupted_copy_leaves_nothing(tmp_path, monkeypatch):
    path = make(tmp_path / "t.gguf")
    before = path.read_bytes()
    monkeypatch.setattr(positioned, "_copy_some", _crash)
    with pytest.raises(Crash):
        change(path, keys={"general.name": "n" * 500})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_gguf_package_reads_edited_files(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = make(tmp_path / "t.gguf")
    change(path, keys={"general.name": "n" * 100}, reserve=500)
    change(path, keys={"general.name": "short", "general.tags": ["a", "b"]})
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.name"].contents() == "short"
    assert reader.fields["general.tags"].contents() == ["a", "b"]
    assert [t.name for t in reader.tensors] == ["a", "b"]
    shutil.copyfile(path, tmp_path / "u.gguf")
    assert tensor_hashes(tmp_path / "u.gguf") == {
        t.name: hashlib.sha256(t.data.tobytes()).hexdigest() for t in reader.tensors
    }
