"""Hashes as the reference lists them; a single flipped bit is found."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from archs.metadata import Metadata
from gguftools.conversion.shards import split
from gguftools.inspection.hashing import check_file, hash, read_manifest, write_manifest
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.gguf.writer import TensorInfo, plan_file
from gguftools.metadata.edit import set_metadata
from quants import format_named
from quants.errors import FileError, OptionError

from ..test_cli import gguftools as run_gguftools
from ..tiny_models import create_gguf

ALGORITHMS = ("xxh64", "sha1", "sha256")
INFOS = [
    TensorInfo("a.weight", (5, 7), format_named("F32")),
    TensorInfo("b.weight", (3, 32), format_named("Q8_0")),
    TensorInfo("c", (11,), format_named("F16")),
    TensorInfo("d", (600, 1000), format_named("I8")),
]


def make(path, byte_order="little"):
    metadata = Metadata()
    metadata["general.architecture"] = "llama"
    chance = np.random.default_rng(4)
    with create_gguf(path, plan_file(metadata, INFOS, reserve=100, byte_order=byte_order)) as output:
        for i, info in enumerate(INFOS):
            output.write(i, 0, chance.integers(0, 256, (info.rows, info.row_bytes), np.uint8))
    return path


@pytest.fixture
def path(tmp_path):
    return make(tmp_path / "m.gguf")


def test_lines_are_those_of_the_reference(path, monkeypatch):
    pytest.importorskip("gguf.scripts.gguf_hash")
    done = subprocess.run(
        [sys.executable, "-m", "gguf.scripts.gguf_hash", str(path)], capture_output=True, text=True, check=True
    )
    theirs = [line.split() for line in done.stdout.splitlines() if line.split()[:1][0] in ("sha1", "sha256", "uuid")]
    monkeypatch.setattr("gguftools.inspection.hashing.CHUNK", 5000)
    digests = hash(path, ["sha1", "sha256", "uuid"]).digests
    assert [digest.line().split() for digest in digests] == theirs
    assert digests[0].line().startswith("sha1      ")
    assert digests[0].line().endswith(f"  {path}:a.weight")


def test_every_algorithm_of_tensors_and_whole(path):
    digests = hash(path, {"sha256", "xxh64", "sha1"}).digests
    assert [(d.algorithm, d.tensor) for d in digests] == [
        (name, tensor) for tensor in (*(info.name for info in INFOS), None) for name in ALGORITHMS
    ]
    assert [d.tensor for d in hash(path, tensors=False).digests] == [None]
    with pytest.raises(OptionError, match="no algorithm 'md5'"):
        hash(path, ["md5"])


def test_metadata_splitting_and_byte_order_do_not_count(path, tmp_path):
    expected = [(d.algorithm, d.tensor, d.hex) for d in hash(path, ALGORITHMS).digests]
    split(path, tmp_path / "s", max_tensors=2)
    set_metadata(path, {"general.name": "another"})
    for other in (path, tmp_path / "s-00002-of-00002.gguf"):
        assert [(d.algorithm, d.tensor, d.hex) for d in hash(other, ALGORITHMS).digests] == expected


def test_a_single_flipped_bit_is_found(path, tmp_path):
    manifest = tmp_path / "manifest"
    write_manifest(manifest, hash(path, ["xxh64"]).digests)
    assert check_file(path, manifest).mismatches == []
    raw, chance = path.read_bytes(), np.random.default_rng(1)
    opened = open_gguf(path)
    places = {name: (start := opened.offsets[name], start + tensor.nbytes) for name, tensor in opened.tensors.items()}
    for name, (start, end) in places.items():
        for at in (start, end - 1, int(chance.integers(start, end))):
            changed = bytearray(raw)
            changed[at] ^= 1 << int(chance.integers(8))
            path.write_bytes(changed)
            report = check_file(path, manifest)
            assert [mismatch.name for mismatch in report.mismatches] == [name, str(path)]
            assert report.checked == 5
    padding = bytearray(raw)
    padding[places["c"][1]] ^= 1  # belongs to no tensor
    path.write_bytes(padding)
    assert check_file(path, manifest).mismatches == []


def test_a_file_that_is_changed_meanwhile_is_noticed(path):
    def progress(done, total, name):
        if done == total:
            with path.open("r+b") as file:
                file.seek(-1, 2)
                file.write(b"x")

    with pytest.raises(FileError, match="was changed while it was read"):
        hash(path, progress=progress)


def test_a_long_manifest_is_read_in_a_moment(tmp_path):
    lines = [f"xxh64  {i:016x}  {name}" for i in range(20_000) for name in (f"{i}:m.gguf", f"{i}:m.gguf:a.weight")]
    (tmp_path / "manifest").write_text("\n".join(lines))
    start = time.process_time()
    found = read_manifest(tmp_path / "manifest")
    assert time.process_time() - start < 5
    assert [(d.file, d.tensor) for d in found[:2]] == [("0:m.gguf", None), ("0:m.gguf", "a.weight")]


def test_a_name_of_colons_takes_little_time(tmp_path):
    (tmp_path / "manifest").write_text(f"sha1  00  {'a:' * 400_000}b\nsha1  00  a:a\n")
    start = time.process_time()
    found = read_manifest(tmp_path / "manifest")
    assert time.process_time() - start < 2
    assert [(d.file, d.tensor and d.tensor[:3]) for d in found] == [("a:a", "a:a"), ("a:a", None)]


def test_manifests(path, tmp_path):
    manifest = tmp_path / "manifest"
    digests = [*hash(path, ["xxh64", "uuid"]).digests]
    write_manifest(manifest, digests)
    assert read_manifest(manifest) == digests
    renamed = path.rename(tmp_path / "n.gguf")
    assert check_file(renamed, manifest).mismatches == []
    write_manifest(manifest, [*digests, *hash(renamed).digests], overwrite=True)
    assert check_file(renamed, manifest).checked == 5
    manifest.write_text("".join(f"{d.line()}\n" for d in digests if d.tensor != "c").replace("a.weight", "x:a.weight"))
    assert [str(mismatch) for mismatch in check_file(renamed, manifest).mismatches] == [
        "x:a.weight: not in the file",
        "a.weight: not in the manifest",
        "c: not in the manifest",
    ]
    manifest.write_text(hash(renamed, ["sha1"], tensors=False).digests[0].line().upper().replace("SHA1", "sha1"))
    assert check_file(renamed, manifest).mismatches == []
    manifest.write_text("sha1  00  x.gguf:t\nsha1  00  y.gguf:t\n")
    with pytest.raises(FileError, match=r"no hashes of n\.gguf; it has those of x\.gguf, y\.gguf"):
        check_file(renamed, manifest)
    for text, message in (("md5  00  x", "line 1 is not"), ("xxh64 00\n", "line 1 is not"), ("\xff", "not UTF-8 text")):
        manifest.write_text(text, encoding="latin-1")
        with pytest.raises(FileError, match=message):
            check_file(renamed, manifest)


def test_command_line(path, tmp_path):
    done = run_gguftools("hash", path.name, "--sha256", "--uuid", cwd=tmp_path)
    assert done.stdout.splitlines()[0].startswith("sha256    ")
    assert done.stdout.splitlines()[-1].startswith("uuid      ")
    assert run_gguftools("hash", path.name, "-o", "manifest", cwd=tmp_path).returncode == 0
    done = run_gguftools("hash", path.name, "--check", "manifest", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    done = run_gguftools("hash", path.name, "--check", "manifest", "--json", cwd=tmp_path)
    assert done.returncode == 1
    assert [each["name"] for each in json.loads(done.stdout)[0]["mismatches"]] == ["d", "m.gguf"]
