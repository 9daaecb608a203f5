"""Reading PyTorch's files: what PyTorch wrote (tests/data/torch), and a refusal of programs, bombs and damage."""

import io
import pickle
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from gguftools.io.checkpoint.torch_pickle import open_torch
from quants.errors import FileError

DATA = Path(__file__).parents[3] / "data" / "torch"
COUNT = np.arange(60, dtype=np.float32)
EXPECTED = {
    "rows": COUNT[4:24].reshape(5, 4),
    "transposed": COUNT.reshape(12, 5).T,
    "window": COUNT.reshape(6, 10)[1:5, 2:9],
    "permuted": COUNT.reshape(3, 4, 5).transpose(2, 0, 1),
    "thirds": COUNT[::3],
    "scalar": np.float32(3),
    "parameter": np.full((3, 4), 0x3FC0, np.uint16),
    "half": np.arange(6, dtype=np.float16).reshape(2, 3),
    "mask": np.array([1, 0, 1], np.uint8),
    "bytes": np.arange(5, dtype=np.uint8),
    "ids": np.arange(4),
    "empty": np.zeros((0, 4), np.float32),
    "repeated": np.array([[1, 2]] * 3, np.float32),
}


@pytest.mark.parametrize("name", ["tensors.bin", "tensors-legacy.bin"])
def test_what_pytorch_wrote(name):
    tensors = open_torch(DATA / name)
    assert list(tensors) == list(EXPECTED)
    for key, values in EXPECTED.items():
        tensor = tensors[key]
        assert tensor.shape == values.shape
        assert tensor.elements().reshape(tensor.shape).tobytes() == np.ascontiguousarray(values).tobytes(), key
        for row in range(tensor.rows):
            part = tensor.elements(row, row + 1)
            assert part.tobytes() == np.ascontiguousarray(values).reshape(tensor.rows, tensor.width)[row].tobytes(), key
    assert tensors["parameter"].format.name == "BF16"
    assert not tensors["rows"].raw().flags.owndata


def test_other_contents():
    assert list(open_torch(DATA / "nested.bin")) == ["state_dict.weight", "state_dict.bias"]
    assert open_torch(DATA / "single.bin")[""].float32().tolist() == [[1, 2, 3]]
    assert open_torch(DATA / "float8.bin")["w"].float32().tolist() == [[1.5, -2, 0.1015625]]


@pytest.mark.verify
def test_against_pytorch(tmp_path):
    import torch

    state = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.LayerNorm(3)).half().state_dict()
    for zipped in (True, False):
        torch.save(state, tmp_path / "m.bin", _use_new_zipfile_serialization=zipped)
        tensors = open_torch(tmp_path / "m.bin")
        assert list(tensors) == list(state)
        for name, values in state.items():
            assert tensors[name].elements().tobytes() == values.numpy().tobytes()


# -- pickles by hand: instructions as in the standard library's pickletools

STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n("


def number(n):
    raw = n.to_bytes((n.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def sizes(*values):
    return b"(" + b"".join(number(n) for n in values) + b"t"


def tensor(offset=0, shape=(4,), strides=(1,), storage=STORAGE):
    return REBUILD + storage + number(offset) + sizes(*shape) + sizes(*strides) + b"\x89}tR"


def state(value, key=b"X\x01\0\0\0w"):
    return b"\x80\x02}" + key + value + b"s."


def archive(program, members=(("data/0", bytes(16)),), compression=zipfile.ZIP_STORED, prefix="m/", pickles=1):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as file:
        for i in range(pickles):
            file.writestr(f"{prefix}{'x/' * i}data.pkl", program)
        for name, data in members:
            file.writestr(prefix + name, data)
    return out.getvalue()


class Program:
    def __reduce__(self):
        return (__import__("os").system, ("touch executed",))


HOSTILE_PICKLES = {
    "runs a command": (pickle.dumps({"w": Program()}, 2), "asks for posix.system, which weights don't need"),
    "runs a command, protocol 4": (pickle.dumps({"w": Program()}, 4), "asks for posix.system"),
    "protocol 0": (pickle.dumps({"w": 1}, 0), "is not one that weights need"),
    "builtins": (state(b"cbuiltins\neval\n"), "asks for builtins.eval"),
    "dotted name": (state(b"ctorch\nos.system\n"), "asks for torch.os.system"),
    "inner function": (state(b"ctorch.storage\n_load_from_bytes\n(tR"), "torch.storage._load_from_bytes"),
    "calls a type": (state(b"ctorch\nFloatStorage\n(tR"), "torch.FloatStorage is called"),
    "calls a text": (state(b"X\x01\0\0\0a(tR"), "something is called that is not a function"),
    "calls without arguments": (state(b"ctorch\nSize\nNR"), "something is called that is not a function"),
    "object": (state(b"cbuiltins\nobject\n)\x81"), "builtins.object"),
    "new object": (state(b"ctorch\nSize\n)\x81"), "instruction b'\\x81'"),
    "extension": (state(b"\x82\x01"), "instruction b'\\x82'"),
    "no end": (b"\x80\x02}", "1 bytes expected, 0 left"),
    "empty stack": (b"\x80\x02.", "the stack is empty"),
    "no mark": (b"\x80\x02t.", "there is no mark"),
    "mark as value": (b"\x80\x02(.", "the stack is empty"),
    "unknown memory": (state(b"h\x07"), "nothing was remembered under 7"),
    "long text": (state(b"\x8d" + b"\xff" * 8), "18446744073709551615 bytes expected"),
    "text not UTF-8": (state(b"X\x01\0\0\0\xff"), "is not UTF-8"),
    "odd items": (b"\x80\x02}(K\x01u.", "a key has no value"),
    "key is a list": (b"\x80\x02}]K\x01s.", "a dictionary has the key ()"),
    "items of a text": (b"\x80\x02X\x01\0\0\0aK\x01K\x02s.", "the stack's top is not a dict"),
    "name without end": (b"\x80\x02c" + b"a" * 400, "a name has no end"),
    "long integer": (state(b"\x8b\xff\xff\xff\x7f"), "instruction b'\\x8b'"),
    "storage of nothing": (state(b"K\x01Q"), "a persistent id is not that of a storage"),
    "storage type": (state(STORAGE.replace(b"FloatStorage", b"float32\x0a"[:7])), "torch.float32, which is unknown"),
    "negative count": (state(STORAGE.replace(b"K\x04", number(-1))), "has key '0' and -1 numbers"),
    "other storage": (state(tensor(storage=b"K\x01")), "a tensor has no storage"),
    "few arguments": (state(REBUILD + b"tR"), "_rebuild_tensor_v2 is called with 0 arguments"),
    "shape is a text": (state(REBUILD + STORAGE + b"K\0X\1\0\0\0aX\1\0\0\0atR"), "shape 'a' and strides 'a'"),
    "negative stride": (state(tensor(3, (4,), (-1,))), "strides (-1,)"),
    "two shapes": (state(tensor(0, (2, 2), (1,))), "shape (2, 2) and strides (1,)"),
    "65 dimensions": (state(tensor(0, (1,) * 65, (1,) * 65)), "sizes were expected"),
    "past the storage": (state(tensor(1)), "uses number 4 of a storage that holds 4"),
    "far past the storage": (state(tensor(0, (2, 2), (2**60, 1))), "uses number 1152921504606846977"),
    "more values than numbers": (state(tensor(0, (2**40,), (0,))), "has more values than its storage"),
    "overflowing shape": (state(tensor(0, (2**40, 2**40), (0, 0))), "has more values than its storage"),
    "absent storage": (state(tensor(storage=STORAGE.replace(b"\x000X", b"\x009X"))), "has no storage '9'"),
    "other size": (state(tensor(storage=STORAGE.replace(b"K\x04", b"K\x05"))), "storage '0' has 16 bytes, 20 expected"),
    "parameter of nothing": (state(b"ctorch._utils\n_rebuild_parameter\n(tR"), "a parameter has no tensor"),
    "ordered pairs": (state(b"ccollections\nOrderedDict\n(]tR"), "an OrderedDict is made from something"),
    "in itself": (b"\x80\x02}q\0X\1\0\0\0ah\0s.", "'a' is held twice"),
    "deep": (b"\x80\x02" + b"}X\1\0\0\0a" * 9 + b"K\1" + b"s" * 9 + b".", "deeper than 4 levels"),
    "long key": (b"\x80\x02}X\x00\x04\0\0" + b"a" * 1024 + b"K\1s.", "short texts and integers are allowed"),
}


@pytest.mark.parametrize("case", HOSTILE_PICKLES)
def test_hostile_pickle_is_refused(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program, message = HOSTILE_PICKLES[case]
    Path("hostile.bin").write_bytes(archive(program))
    with pytest.raises(FileError) as caught:
        open_torch(Path("hostile.bin"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Path("executed").exists()


def test_hostile_legacy_pickle_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = b"".join(pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    Path("hostile.bin").write_bytes(start + pickle.dumps({"w": Program()}, 2))
    with pytest.raises(FileError, match=r"asks for posix\.system"):
        open_torch(Path("hostile.bin"))
    assert not Path("executed").exists()
    whole = (DATA / "tensors-legacy.bin").read_bytes()
    for size in range(0, len(whole), 7):
        Path("cut.bin").write_bytes(whole[:size])
        with pytest.raises(FileError):
            open_torch(Path("cut.bin"))


# Small pickles whose values, printed, hashed or copied without thought, fill any memory.
def doubling(start, step, count=60):
    steps = (b"q%c0(h%ch%c" % (i, i, i) + step for i in range(count))
    return start + b"".join(steps)


BOMBS = {
    "printed": b"\x80\x02}X\1\0\0\0w" + REBUILD + STORAGE + doubling(b")", b"t") + b"K\1K\1\x89tRs.",
    "hashed": b"\x80\x02}" + doubling(b")", b"t") + b"K\1s.",
    "a size": b"\x80\x02ctorch\nSize\n(" + doubling(b")", b"t") + b"tR.",
    "flattened": b"\x80\x02" + doubling(b"]", b"l") + b".",
    "copied": b"\x80\x02](" + b"N" * 30_000 + b"eq\0" + b"0ctorch\nSize\n(h\0tR" * 5_000 + b".",
    "remembered": b"\x80\x02}r\xff\xff\xff\xff.",
}


@pytest.mark.parametrize("case", BOMBS)
def test_bombs(case, tmp_path):
    (tmp_path / "bomb.bin").write_bytes(archive(BOMBS[case]))
    begin = time.process_time()
    if case == "remembered":
        assert open_torch(tmp_path / "bomb.bin") == {}
    else:
        with pytest.raises(FileError) as caught:
            open_torch(tmp_path / "bomb.bin")
        assert len(str(caught.value)) < 1000
    assert time.process_time() - begin < 1


def test_archives(tmp_path):
    path = tmp_path / "m.bin"
    good = archive(state(tensor()))
    path.write_bytes(good)
    assert open_torch(path)["w"].float32().tolist() == [0, 0, 0, 0]
    swapped = archive(state(tensor()), [("data/0", bytes(16)), ("byteorder", b"big")])
    for raw, message in [
        (b"", "is empty"),
        (b"plain text", "is not a PyTorch file"),
        (pickle.dumps({"a": 1}, 2), "is not a PyTorch file"),
        (good[:-30], "is damaged: it starts as a zip archive, but"),
        (b"PK\3\4" + bytes(200), "is damaged"),
        (archive(state(tensor()), pickles=0), "with 0 members data.pkl"),
        (archive(state(tensor()), pickles=2), "with 2 members data.pkl"),
        (archive(state(tensor()), compression=zipfile.ZIP_DEFLATED), "is compressed"),
        (swapped, "only b'little' is supported"),
        (good.replace(b"PK\1\2", b"PK\1\3"), "is damaged"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs"),
    ]:
        path.write_bytes(raw)
        with pytest.raises(FileError) as caught:
            open_torch(path)
        assert message in str(caught.value)
    # the first local header sends its data beyond the end
    at = good.index(b"PK\3\4") + 28
    path.write_bytes(good[:at] + struct.pack("<H", 65535) + good[at + 2 :])
    with pytest.raises(FileError, match=r"is cut short: member 'm/data\.pkl' ends at byte"):
        open_torch(path)


def test_names_are_made_for_tensors_alone(tmp_path):
    """Long keys, one in the other, over a list of what is no tensor: 100 kB in the file, once 100 MB of names."""
    key = b"X\0\2\0\0" + b"k" * 512
    program = b"\x80\x02" + (b"}" + key) * 3 + b"](" + b"N" * 60_000 + b"e" + b"s" * 3 + b"."
    (tmp_path / "names.bin").write_bytes(archive(program))
    tracemalloc.start()
    try:
        assert open_torch(tmp_path / "names.bin") == {}
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
