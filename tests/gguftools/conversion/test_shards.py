"""Split and merge: the same bytes back, whatever the file; freeing merges can be cut off anywhere."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

import gguftools
from archs.metadata import Metadata, ValueType
from gguftools.conversion import shards
from gguftools.conversion.shards import merge, split
from gguftools.io.gguf import copies
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.gguf.writer import TensorInfo, encode_header, plan_file
from quants import format_named
from quants.errors import FileError, OptionError

from ...conftest import ROOT
from ..test_cli import gguftools as run_gguftools
from ..tiny_models import create_gguf

F32, Q4_0 = format_named("F32"), format_named("Q4_0")


def make(
    path, alignment=32, tensors=12, tail=None, version=3, byte_order="little", magic=b"GGUF", padding=None, **keys
):
    """Random tensors of several sizes; tail: what ends the file instead of padding."""
    metadata = Metadata()
    metadata["general.architecture"] = "llama"
    metadata["tokens"] = [f"token {i}" for i in range(50)]
    for key, value in keys.items():
        metadata.set(key.replace("_", "."), value, ValueType.UINT16)
    infos = [TensorInfo(f"t{i}", (i + 1, 7 + i), F32) for i in range(tensors - 1)]
    infos.append(TensorInfo("t.last", (3, 32), Q4_0))  # 54 bytes: the file ends with padding
    layout = plan_file(metadata, infos, alignment, 0, magic, version, byte_order)
    chance = np.random.default_rng(4)
    with create_gguf(path, layout) as output:
        for i, info in enumerate(infos):
            output.write(i, 0, chance.integers(0, 256, (info.rows, info.row_bytes), np.uint8))
    raw = bytearray(path.read_bytes())
    for offset, info in zip(layout.offsets, infos, strict=True):
        end = offset + info.nbytes
        if padding is not None and info is not infos[-1]:
            raw[end : -(-end // alignment) * alignment] = padding * (-end % alignment)
    if tail is not None:
        del raw[layout.offsets[-1] + infos[-1].nbytes :]
        raw += tail
    path.write_bytes(raw)
    return path


FILES = {
    "plain": {},
    "ends without padding": {"tail": b""},
    "ends with more than padding": {"tail": b"\0" * 99},
    "ends with something": {"tail": b"something"},
    "wide alignment": {"alignment": 4096},
    "narrow alignment": {"alignment": 8, "tail": b""},
    "padding that is not zero": {"padding": b"?"},
    "version 2": {"version": 2},
    "big endian": {"byte_order": "big"},
    "PowerInfer": {"magic": b"PWRI"},
}
WAYS = [
    {},
    {"max_tensors": 5},
    {"max_tensors": 1},
    {"max_size": 2000},
    {"max_size": 1},
    {"max_tensors": 4, "metadata_alone": True},
]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("free", [False, True])
def test_merge_restores_what_was_split(tmp_path, name, way, free):
    path = make(tmp_path / "m.gguf", **FILES[name])
    report = split(path, tmp_path / "s", **way)
    assert report.warnings == []
    joined = open_gguf(report.shards[0].path)
    assert list(joined.tensors) == list(open_gguf(path).tensors)
    for name, tensor in open_gguf(path).tensors.items():
        assert joined.tensors[name].raw().tobytes() == tensor.raw().tobytes()
    merged = merge(report.shards[-1].path, free=free)
    assert merged.whole == tmp_path / "s.gguf"
    assert (tmp_path / "s.gguf").read_bytes() == path.read_bytes()
    assert len(list(tmp_path.iterdir())) == 2 + (0 if free else len(report.shards))


def test_names_and_keys_are_those_of_the_reference(tmp_path):
    path = make(tmp_path / "m.gguf", tensors=12)
    report = split(path, max_tensors=5)
    assert [shard.path.name for shard in report.shards] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert [shard.tensors for shard in report.shards] == [5, 5, 2]
    for number, shard in enumerate(report.shards):
        metadata = open_gguf(shard.path, join=False).metadata
        keys = [(key, metadata.value(key).type.name, metadata[key]) for key in metadata][-3:]
        expected = [("split.no", "UINT16", number), ("split.count", "UINT16", 3), ("split.tensors.count", "INT32", 12)]
        assert keys == expected
        assert len(metadata) == (5 if number == 0 else 3)
        assert shard.nbytes == shard.path.stat().st_size


def test_sizes_count_padding_and_no_shard_is_empty(tmp_path):
    path = make(tmp_path / "m.gguf", tensors=5)
    sizes = [-(-t.nbytes // 32) * 32 for t in open_gguf(path).tensors.values()]
    assert sizes == [32, 64, 128, 160, 64]
    assert [shard.tensors for shard in split(path, max_size=96, dry_run=True).shards] == [2, 1, 1, 1]
    assert [shard.tensors for shard in split(path, max_size=95, dry_run=True).shards] == [1, 1, 1, 1, 1]
    assert [shard.tensors for shard in split(path, max_size=224, dry_run=True).shards] == [3, 2]
    assert [shard.tensors for shard in split(path, max_size=10**9, dry_run=True).shards] == [5]
    assert list(tmp_path.iterdir()) == [path]


def test_sets_of_the_reference(tmp_path):
    """It pads every tensor and gives no other keys; written here by hand, as the tool itself is no dependency."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "whole.gguf"
    chance = np.random.default_rng(1)
    data = {f"t{i}": chance.normal(size=(3, 5)).astype(np.float32) for i in range(5)}
    for target, names, number in [(path, list(data), None)] + [
        (tmp_path / f"r-{i + 1:05d}-of-00002.gguf", list(data)[3 * i : 3 * i + 3], i) for i in range(2)
    ]:
        writer = gguf.GGUFWriter(target, "llama") if number in (None, 0) else gguf.GGUFWriter(target, "x")
        if number in (None, 0):
            writer.add_uint32("llama.block_count", 2)
        else:
            del writer.kv_data[0]["general.architecture"]
        if number is not None:
            for key, kind, value in (("no", "uint16", number), ("count", "uint16", 2), ("tensors.count", "int32", 5)):
                getattr(writer, f"add_{kind}")(f"split.{key}", value)
        for name in names:
            writer.add_tensor(name, data[name])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    split(path, tmp_path / "ours", max_tensors=3)
    for i in (1, 2):
        ours, theirs = (tmp_path / f"{name}-0000{i}-of-00002.gguf" for name in ("ours", "r"))
        assert ours.read_bytes() == theirs.read_bytes()
    merge(tmp_path / "r-00001-of-00002.gguf", tmp_path / "merged.gguf")
    assert (tmp_path / "merged.gguf").read_bytes() == path.read_bytes()


def test_what_cannot_come_back_is_said(tmp_path):
    path = make(tmp_path / "m.gguf", split_count=0)
    assert "left over from a merge" in split(path, tmp_path / "s", max_tensors=5).warnings[0]
    merge(tmp_path / "s-00001-of-00003.gguf")
    assert "split.count" not in open_gguf(tmp_path / "s.gguf").metadata
    metadata = Metadata()
    metadata["general.architecture"] = "llama"
    infos = [TensorInfo("a", (2, 4), F32), TensorInfo("b", (2, 4), F32)]
    header = encode_header(metadata, infos, [32, 0])
    (tmp_path / "swapped.gguf").write_bytes(header + bytes(-len(header) % 32 + 64))
    report = split(tmp_path / "swapped.gguf", max_tensors=1)
    assert "not stored in the order" in report.warnings[0]


def test_refusals(tmp_path):
    path = make(tmp_path / "m.gguf")
    split(path, max_tensors=5)
    first = tmp_path / "m-00001-of-00003.gguf"
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    with pytest.raises(FileError, match="already exists") as caught:
        split(path, max_tensors=5)
    assert "`overwrite`" in caught.value.hint
    with pytest.raises(OptionError, match="is a shard already"):
        split(first)
    with pytest.raises(FileError, match="already exists"):
        merge(first)
    with pytest.raises(OptionError, match="cannot be written"):
        merge(first, first, overwrite=True)
    with pytest.raises(OptionError, match="is not a shard"):
        merge(path)
    with pytest.raises(OptionError, match="not by both"):
        split(path, max_size=5, max_tensors=5)
    with pytest.raises(OptionError, match="at least 1 tensor"):
        split(path, max_tensors=0)
    merge(first, tmp_path / "x.gguf", dry_run=True)
    merge(first, tmp_path / "x.gguf", dry_run=True, free=True)
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before
    split(path, max_tensors=5, overwrite=True)
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(FileError, match="m-00002-of-00003"):
        merge(first, tmp_path / "x.gguf")
    vocabulary = tmp_path / "v.gguf"
    vocabulary.write_bytes(plan_file(Metadata(), []).header)
    with pytest.raises(OptionError, match="no tensors"):
        split(vocabulary)


def _failing(real, works, error):
    """The function, which raises an error after it has worked some times."""
    left = iter(range(works))

    def call(*arguments):
        if next(left, None) is None:
            raise error
        return real(*arguments)

    return call


def test_failing_split_leaves_nothing(tmp_path, monkeypatch):
    path = make(tmp_path / "m.gguf")
    monkeypatch.setattr(copies, "copy_ranges", _failing(copies.copy_ranges, 2, OSError(28, "No space left on device")))
    with pytest.raises(FileError, match="no space left"):
        split(path, max_tensors=3)
    assert list(tmp_path.iterdir()) == [path]


class Crash(BaseException):
    """Stands for a process that ends without a word: nothing that follows happens, clean-up neither."""


def _crash_after(monkeypatch, steps):
    """Let everything that changes a file work `steps` times, then fail for good."""
    left = [steps]

    def counted(real):
        def call(*arguments, **options):
            left[0] -= 1
            if left[0] < 0:
                raise Crash
            return real(*arguments, **options)

        return call

    for name in ("fsync", "open", "unlink", "replace", "ftruncate", "link", "pwrite", "copy_file_range"):
        if hasattr(os, name):
            monkeypatch.setattr(os, name, counted(getattr(os, name)))
    for name in ("unlink", "replace"):
        monkeypatch.setattr(shards.Path, name, counted(getattr(shards.Path, name)))
    return left


@pytest.mark.parametrize("twice", [False, True], ids=["once", "again while resuming"])
def test_freeing_merge_can_end_anywhere(tmp_path, twice):
    whole = make(tmp_path / "m.gguf", tail=b"")
    split(whole, tmp_path / "s", max_tensors=4)
    kept = tmp_path / "kept"
    kept.mkdir()
    for path in tmp_path.glob("s-*.gguf"):
        shutil.move(path, kept)
    expected, steps, crashed = whole.read_bytes(), 0, True
    while crashed:
        folder = tmp_path / "run"
        shutil.copytree(kept, folder)
        first, crashed = folder / "s-00001-of-00003.gguf", False
        for crash_at in (steps, steps // 2) if twice else (steps,):
            with pytest.MonkeyPatch.context() as patch:
                _crash_after(patch, crash_at)
                try:
                    merge(first, folder / "out.gguf", free=True)
                    break
                except Crash:
                    crashed = True
        if (folder / "out.gguf").exists():
            assert (folder / "out.gguf").read_bytes() == expected
        if crashed and not ((folder / "out.gguf").exists() and not (folder / "out.gguf.merging.json").exists()):
            merge(first, folder / "out.gguf", free=True)
        assert (folder / "out.gguf").read_bytes() == expected
        left = {path.name for path in folder.iterdir()} - {"out.gguf"}
        assert all(name.endswith(".partial") for name in left), (steps, left)
        shutil.rmtree(folder)
        steps += 1
    assert steps > 30


def flip_byte(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_interrupted_freeing_merge_is_noticed(tmp_path, monkeypatch):
    whole = make(tmp_path / "m.gguf")
    split(whole, tmp_path / "s", max_tensors=4)
    first, out = tmp_path / "s-00001-of-00003.gguf", tmp_path / "out.gguf"
    with monkeypatch.context() as patch:
        patch.setattr(shards, "copy_ranges", _failing(shards.copy_ranges, 1, OSError(5, "I/O error")))
        with pytest.raises(FileError, match="I/O error") as caught:
            merge(first, out, free=True)
    assert "run the same command again" in caught.value.hint
    assert not (tmp_path / "s-00003-of-00003.gguf").exists()
    with pytest.raises(OptionError, match="was interrupted"):
        merge(first, out)
    with pytest.raises(OptionError, match="from other shards"):
        merge(whole, out, free=True)
    head, *merged = map(json.loads, (tmp_path / "out.gguf.merging.json").read_text().splitlines())
    assert [name for name, _, _ in head["shards"]] == [f"s-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert [each["shard"] for each in merged] == ["s-00003-of-00003.gguf"]
    second = tmp_path / "s-00002-of-00003.gguf"
    second.rename(tmp_path / "elsewhere")
    with pytest.raises(FileError, match="is missing, and was not merged"):
        merge(first, out, free=True)
    (tmp_path / "elsewhere").rename(second)
    (tmp_path / "out.gguf.merging").rename(tmp_path / "elsewhere")
    with pytest.raises(FileError, match="which had the tensors of 1 deleted shards"):
        merge(first, out, free=True)
    (tmp_path / "elsewhere").rename(tmp_path / "out.gguf.merging")
    begin, _ = merged[0]["ranges"][0]
    flip_byte(tmp_path / "out.gguf.merging", begin)
    with pytest.raises(FileError, match=r"was changed since s-00003-of-00003\.gguf was merged into it"):
        merge(first, out, free=True)
    flip_byte(tmp_path / "out.gguf.merging", begin)
    report = merge(first, out, free=True)
    assert len(report.shards) == 2
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "out.gguf"]


def test_a_line_of_the_list_that_was_cut_off_is_ended(tmp_path, monkeypatch):
    whole = make(tmp_path / "m.gguf")
    split(whole, tmp_path / "s", max_tensors=4)
    first, out = tmp_path / "s-00001-of-00003.gguf", tmp_path / "out.gguf"
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(shards, "copy_ranges", _failing(shards.copy_ranges, 1, OSError(5, "I/O error")))
            with pytest.raises(FileError, match="I/O error"):
                merge(first, out, free=True)
        with (tmp_path / "out.gguf.merging.json").open("a") as file:
            file.write('"s-000')
    merge(first, out, free=True)
    assert out.read_bytes() == whole.read_bytes()


def test_command_line(tmp_path):
    path = make(tmp_path / "m.gguf")
    done = run_gguftools("split", path, "--max-size", "2K", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    listed = json.loads(done.stdout)["shards"]
    assert sum(shard["tensors"] for shard in listed) == 12
    done = run_gguftools("merge", listed[0]["file"], "-o", "n.gguf", "--free", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "n.gguf").read_bytes() == path.read_bytes()
    done = run_gguftools("merge", path, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


@pytest.mark.verify
def test_libllama_loads_what_was_split(tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    gguftools.convert(ROOT / "examples" / "austen-4m", tmp_path / "a.gguf", "f16")
    split(tmp_path / "a.gguf", max_tensors=10)
    model = llama_cpp.Llama(str(tmp_path / "a-00001-of-00004.gguf"), verbose=False, n_ctx=64)
    assert model.n_vocab() == 2048


def test_models_are_split_and_merged(tmp_path):
    path = make(tmp_path / "m.gguf")
    with gguftools.open(path) as model:
        report = gguftools.split(model, tmp_path / "s", max_tensors=5)
    with gguftools.open(report.shards[1].path) as model:
        merged = gguftools.merge(model, tmp_path / "again.gguf")
    assert merged.whole.read_bytes() == path.read_bytes()
    assert merged.as_dict()["size_bytes"] == path.stat().st_size


def _changed(model):
    model.metadata["general.name"] = "other"


def _fewer(model):
    del model.tensors["t3"]


def _renamed(model):
    model.tensors["t.new"] = model.tensors.pop("t3")


@pytest.mark.parametrize("change", [_changed, _fewer, _renamed])
def test_models_that_no_file_holds_are_refused(tmp_path, change):
    made = gguftools.Model({"general.architecture": "llama"}, {"x": np.zeros((2, 4), np.float32)})
    model = gguftools.open(make(tmp_path / "m.gguf"))
    change(model)
    for function in (gguftools.split, gguftools.merge, gguftools.convert_endian):
        with pytest.raises(OptionError, match=r"source is <Model .*; a Model opened from a GGUF file was expected"):
            function(made)
        with pytest.raises(OptionError, match=r"source was changed since .*m\.gguf was opened; it was expected as"):
            function(model)
        with pytest.raises(OptionError, match="source is 3; the path of a GGUF file or a Model was expected"):
            function(3)
    assert len(list(tmp_path.iterdir())) == 1


def test_limits_that_are_no_numbers(tmp_path):
    path = make(tmp_path / "m.gguf")
    for argument in ("max_size", "max_tensors"):
        with pytest.raises(OptionError, match=f"{argument} is '2G'; a whole number was expected"):
            gguftools.split(path, **{argument: "2G"})
