"""Reading safetensors: what the format's own library reads, and a precise refusal of everything else."""

import json
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from gguftools.io.checkpoint import safetensors
from gguftools.io.checkpoint.safetensors import check_written, open_safetensors, read_metadata
from quants.errors import FileError


def store(header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def tensor(begin=0, end=8, shape=(2,), dtype="F32", **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end], **more}


HOSTILE = {
    "empty": (b"", "is empty"),
    "short": (b"\x02\0\0\0", "is not a safetensors file: it starts with"),
    "a pickle": (b"\x80\x02}q\x00(X\x0e\0\0\0" * 9, "is not a safetensors file: it starts with"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "is a git-lfs pointer"),
    "no length": (store(b"{}", length=0), "is not a safetensors file"),
    "cut header": (store({"a": tensor()}, length=500), "is cut short: its header has 500 bytes, the file"),
    "not JSON": (store(b"{'a': 1}"), "the header is not valid JSON"),
    "not UTF-8": (store(b'{"\xff": 1}'), "the header is not valid JSON"),
    "deep": (store(b'{"a":' * 50_000), "the header is not valid JSON"),
    "a long number": (store(b'{"a":' + b"9" * 6000 + b"}"), "the header is not valid JSON"),
    "a list": (store(b"[1, 2]"), "the header is not a JSON object"),
    "twice": (store(b'{"a": 1, "a": 2}'), "'a' appears twice"),
    "no entry": (store({"a": 3}), "tensor 'a' must have dtype, shape and data_offsets"),
    "no shape": (store({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, bytes(8)), "must have dtype, shape"),
    "more": (store({"a": tensor(strides=[1])}, bytes(8)), "and nothing else"),
    "dtype": (store({"a": tensor(dtype="F31")}, bytes(8)), "has the unknown dtype 'F31'"),
    "dtype list": (store({"a": tensor(dtype=["F32"])}, bytes(8)), "has the unknown dtype ['F32']"),
    "negative": (store({"a": tensor(shape=[-2])}, bytes(8)), "has the shape [-2]"),
    "fraction": (store({"a": tensor(shape=[2.0])}, bytes(8)), "has the shape [2.0]"),
    "truth": (store({"a": tensor(shape=[True, 2])}, bytes(8)), "has the shape [True, 2]"),
    "overflow": (store({"a": tensor(shape=[2**62, 2**62])}, bytes(8)), "has the shape [4611686018427387904"),
    "offsets": (store({"a": tensor(8, 0)}, bytes(8)), "has the data_offsets [8, 0]"),
    "huge offsets": (store({"a": tensor(0, 2**64)}, bytes(8)), "has the data_offsets [0, 18446744073709551616]"),
    "size": (store({"a": tensor(shape=[3])}, bytes(8)), "of shape [3] and dtype F32 needs 12 bytes; it has 8"),
    "half a byte": (store({"a": tensor(0, 1, [3], "F4")}, bytes(1)), "rows of 3 values; F4 needs a multiple of 2"),
    "overlap": (store({"a": tensor(), "b": tensor(4, 12)}, bytes(12)), "begins at 4 and overlaps 'a', which ends at 8"),
    "gap": (store({"a": tensor(), "b": tensor(12, 20)}, bytes(20)), "'b' begins at 12 and leaves a gap after 'a'"),
    "late": (store({"a": tensor(8, 16)}, bytes(16)), "'a' begins at 8 and leaves a gap after the header"),
    "cut": (store({"a": tensor()}, bytes(5)), "is cut short: its header needs 77 bytes, the file has 74"),
    "after": (store({"a": tensor()}, bytes(9)), "has 1 bytes after the last tensor"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused(case, tmp_path):
    raw, message = HOSTILE[case]
    (tmp_path / "hostile.safetensors").write_bytes(raw)
    with pytest.raises(FileError) as caught:
        open_safetensors(tmp_path / "hostile.safetensors")
    assert message in str(caught.value)
    assert "hostile.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tensors(tmp_path):
    path = tmp_path / "m.safetensors"
    values = np.arange(24, dtype=np.float32)
    header = {
        "__metadata__": {"format": "pt"},
        "z": tensor(0, 96, [2, 3, 4]),
        "none": tensor(96, 96, [0, 5]),
        "a": tensor(96, 98, [], "BF16"),
        "b": tensor(98, 100, [2], "BOOL"),
    }
    path.write_bytes(store(header, values.tobytes() + b"\x80\x3f\x01\x00"))
    tensors = open_safetensors(path)
    assert list(tensors) == ["a", "b", "none", "z"]
    assert tensors["z"].elements().tolist() == values.reshape(6, 4).tolist()
    assert tensors["z"].elements(1, 3).tolist() == values.reshape(6, 4)[1:3].tolist()
    assert not tensors["z"].raw().flags.owndata
    assert tensors["z"].shape == (2, 3, 4)
    assert tensors["a"].shape == ()
    assert tensors["a"].float32().tolist() == 1.0
    assert tensors["b"].float32().tolist() == [1.0, 0.0]
    assert tensors["none"].raw().shape == (0, 20)
    assert tensors["z"].origin == "m.safetensors: z"


def test_what_the_library_writes(tmp_path):
    noise = np.random.default_rng(3)
    types = ["f8", "f4", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
    arrays = {kind: noise.integers(0, 100, (3, 5)).astype(kind) for kind in types}
    arrays |= {"bool": noise.integers(0, 2, 7).astype(bool), "layers.10": np.ones(1), "layers.2": np.ones(1)}
    save_file(arrays, tmp_path / "m.safetensors")
    tensors = open_safetensors(tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", "numpy") as theirs:
        assert list(tensors) == list(theirs.keys())
    for name, values in arrays.items():
        assert tensors[name].shape == values.shape
        assert tensors[name].elements().tobytes() == values.tobytes()


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    whole = store({"a": tensor(), "b": tensor(8, 16)}, bytes(16))
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FileError):
            open_safetensors(path)


# What the library does not do: where one of these fails, it may have become able to read what we read ourselves.


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F8_E8M0"])
def test_the_library_has_no_8_bit_floats(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(store({"a": tensor(0, 4, [4], dtype)}, b"\x38\x39\x3a\x3b"))
    with safe_open(path, "numpy") as theirs, pytest.raises((AttributeError, TypeError, SafetensorError)):
        theirs.get_tensor("a")
    assert np.isfinite(open_safetensors(path)["a"].float32()).all()


CUT = """
import os, sys
from pathlib import Path
import safetensors
from gguftools.io.checkpoint.safetensors import open_safetensors
from quants.errors import FileError
path, reader = sys.argv[1:]
if reader == "ours":
    tensor = open_safetensors(Path(path))["a"]
    os.truncate(path, 4096)
    try:
        tensor.raw()
    except FileError as error:
        print(error)
else:
    with safetensors.safe_open(path, "numpy") as file:
        os.truncate(path, 4096)
        print(file.get_tensor("a").sum())
"""


@pytest.mark.parametrize("reader", ["ours", "theirs"])
def test_a_file_that_is_cut_short_while_it_is_read(reader: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(store({"a": tensor(0, 1 << 20, [1 << 18])}, bytes(1 << 20)))
    done = subprocess.run([sys.executable, "-c", CUT, path, reader], capture_output=True, text=True)
    if reader == "ours":
        assert done.returncode == 0
        assert "it was cut short while it was read" in done.stdout
    else:
        assert done.returncode == -signal.SIGBUS


@pytest.mark.parametrize("case", ["more", "two of a name"])
def test_the_library_takes_what_others_read_otherwise(case: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    first, second = json.dumps(tensor()), json.dumps(tensor(dtype="I64", shape=[1]))
    twice = store(f'{{"a":{first},"a":{second}}}'.encode(), bytes(8))
    path.write_bytes(twice if case == "two of a name" else HOSTILE["more"][0])
    assert load_file(path).keys() == {"a"}
    with pytest.raises(FileError):
        open_safetensors(path)


@pytest.mark.parametrize("case", ["overlap", "gap", "late", "cut", "after", "size"])
def test_what_both_refuse(case: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(HOSTILE[case][0])
    with pytest.raises(SafetensorError), safe_open(path, "numpy"):
        pass
    with path.open("rb") as file, pytest.raises(FileError, match=r"new\.safetensors would be refused by the"):
        check_written(file.fileno(), tmp_path / "new.safetensors")


def test_metadata_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": np.zeros(2, np.float32)}, path, {"config": '{"a": "é"}', "": "x"})
    assert read_metadata(path) == {"config": '{"a": "é"}', "": "x"}
    path.write_bytes(store({"__metadata__": None, "a": tensor()}, bytes(8)))
    assert read_metadata(path) == {}
    path.write_bytes(store({"a": tensor()}, bytes(8)))
    assert read_metadata(path) == {}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ([], "__metadata__ is list in the header; an object"),
        ("text", "__metadata__ is str in the header; an object"),
        ({"a": "b", "config": {"x": 1}}, "__metadata__ has 'config' as dict in the header; strings"),
        ({"a": None}, "__metadata__ has 'a' as NoneType in the header; strings"),
        ({"a": 1}, "__metadata__ has 'a' as int in the header; strings"),
        ({"a": "b" * 60, "c": "d" * 60}, "has 122 characters; at most 100 were expected"),
    ],
)
def test_metadata_that_is_refused(
    metadata: object, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors, "MAX_METADATA", 100)
    path = tmp_path / "a.safetensors"
    path.write_bytes(store({"__metadata__": metadata, "a": tensor()}, bytes(8)))
    with pytest.raises(FileError, match=message) as caught:
        read_metadata(path)
    assert "\n" not in str(caught.value)
