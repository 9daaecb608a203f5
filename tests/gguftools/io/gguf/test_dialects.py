"""Files of forks: what a type means is found by the sizes of tensors, and a size that fits nothing is refused."""

import struct

import numpy as np
import pytest

from gguftools.io.gguf.reader import SHARED_TYPES, open_gguf
from quants.dialects import meanings, readings
from quants.errors import FileError
from quants.format import formats

from ....conftest import DATA
from .test_reader import entry, gguf


@pytest.fixture(scope="module")
def golden():
    return np.load(DATA / "dialects" / "blocks.npz")


def file_of(path, tensors):
    """A file of (name, shape, type, bytes), one after the other."""
    entries, data = [], b""
    for name, shape, kind, raw in tensors:
        entries.append(entry(name, shape[::-1], kind, len(data)))
        data += bytes(raw) + bytes(-len(raw) % 32)
    path.write_bytes(gguf(entries=entries, data=data))
    return path


def stored(golden, name, rows=4):
    """Rows of 512 values, and what is behind the last."""
    tail = golden.get(f"{name}.tail")
    return golden[f"{name}.raw"][:rows].tobytes() + (b"" if tail is None else tail.tobytes())


@pytest.mark.parametrize("name", [name for name, each in readings().items() if each.layout is not None])
@pytest.mark.parametrize("place", ["first", "last"])
def test_every_format_is_known_by_its_size_and_decoded(name, place, golden, tmp_path):
    rows = max(4, readings()[name].format.rows_together)
    dialect = ("d", (rows, 512), readings()[name].format.ggml_type, stored(golden, name, rows))
    plain = ("p", (4,), 0, bytes(16))
    path = file_of(tmp_path / "f.gguf", [dialect, plain] if place == "first" else [plain, dialect])
    tensor = open_gguf(path).tensors["d"]
    assert tensor.format.name == name
    assert np.array_equal(tensor.float32(), golden[f"{name}.values"][:rows])
    assert np.array_equal(tensor.float32(1, 3), golden[f"{name}.values"][1:3])


@pytest.mark.parametrize(("name", "kind", "nbytes"), [("NVFP4", 40, 36), ("Q1_0", 41, 18), ("Q2_0", 42, 18)])
def test_types_that_forks_reuse_keep_their_meaning_in_files_of_ggml(name, kind, nbytes, tmp_path):
    values = formats()[name].block_size
    tensors = [("a", (8, 4 * values), kind, bytes(32 * nbytes)), ("b", (2, values), kind, bytes(2 * nbytes))]
    found = open_gguf(file_of(tmp_path / "f.gguf", tensors)).tensors
    assert {tensor.format.name for tensor in found.values()} == {name}


def test_the_types_that_are_asked_for_their_size_are_those_that_forks_reuse():
    assert {*SHARED_TYPES} == {form.ggml_type for form in formats().values() if meanings(form.ggml_type)}


def test_large_tensors_tell_what_small_ones_are(tmp_path):
    # One row of 128 values has 36 or 34 bytes, both of which take two units of the alignment.
    small, large = ("small", (1, 128), 42, bytes(34)), ("large", (8, 512), 42, bytes(8 * 4 * 34))
    for tensors in ([small, large], [large, small]):
        found = open_gguf(file_of(tmp_path / "f.gguf", tensors)).tensors
        assert {tensor.format.name for tensor in found.values()} == {"Q2_0_G128"}
    assert open_gguf(file_of(tmp_path / "f.gguf", [small])).tensors["small"].format.name == "Q2_0"


END = ("end", (4,), 0, bytes(16))
LIES = {
    "of no meaning": (
        [("a", (8, 512), 42, bytes(800)), END],
        "'a' of shape (8, 512) and type 42 has 800 bytes, which is none of what it may be: "
        "Q2_0: 1152 bytes, Q2_0_G128 (PrismML): 1088 bytes",
    ),
    "of two meanings": (
        [("a", (8, 512), 42, bytes(1152)), ("b", (8, 512), 42, bytes(1088)), END],
        "'b' of shape (8, 512) and type 42 has 1088 bytes",
    ),
    "rows that are not together": (
        [("a", (6, 512), 212, bytes(6 * 288)), END],
        "type 212 has 1728 bytes, which is none of what it may be: Q4_K_R4 (ik_llama.cpp): not this shape",
    ),
    "half a block": ([("a", (4, 300), 139, bytes(4 * 144))], "IQ4_K (ik_llama.cpp): not this shape"),
    "too few for any": ([("a", (4, 512), 139, bytes(640)), END], "has 640 bytes"),
    "two at one place": ([("a", (4, 512), 139, b""), ("b", (4, 512), 139, bytes(4 * 288))], "overlaps the tensor"),
}


@pytest.mark.parametrize("case", LIES)
def test_a_size_that_fits_no_meaning_is_refused_in_one_line(case, tmp_path):
    tensors, message = LIES[case]
    with pytest.raises(FileError) as error:
        open_gguf(file_of(tmp_path / "f.gguf", tensors))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


CUT_SHORT = [(139, 36, False), (40, 36, True), (42, 18, True), (40, 36, False)]


@pytest.mark.parametrize(("kind", "bytes_of_64", "before"), CUT_SHORT)
def test_a_file_that_was_cut_short_is_said_to_be(kind, bytes_of_64, before, tmp_path):
    tensor = (4, 512), kind, bytes(4 * 8 * bytes_of_64)
    path = file_of(tmp_path / "f.gguf", [("a", *tensor), ("b", *tensor)] if before else [("a", *tensor)])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FileError, match="the file must have"):
        open_gguf(path)


def test_what_follows_the_last_tensor_is_not_part_of_it(tmp_path, golden):
    path = file_of(tmp_path / "f.gguf", [("a", (4, 512), 139, stored(golden, "IQ4_K"))])
    path.write_bytes(path.read_bytes() + bytes(1000))
    assert np.array_equal(open_gguf(path).tensors["a"].float32(), golden["IQ4_K.values"])


def test_there_are_no_big_endian_files_of_forks(tmp_path):
    name = b"a"
    head = b"GGUF" + struct.pack(">IQQ", 3, 1, 0) + struct.pack(">Q", 1) + name
    head += struct.pack(">IQQIQ", 2, 512, 4, 139, 0)
    path = tmp_path / "f.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(4 * 288))
    with pytest.raises(FileError, match=r"IQ4_K, a format of ik_llama.cpp, which has no big-endian files"):
        open_gguf(path)


def test_experts_are_interleaved_one_by_one(tmp_path, golden):
    raw = stored(golden, "Q5_K_R4")
    tensor = open_gguf(file_of(tmp_path / "f.gguf", [("e", (3, 4, 512), 213, 3 * raw)])).tensors["e"]
    assert np.array_equal(tensor[1], golden["Q5_K_R4.values"])
    assert np.array_equal(tensor.float32(5, 9), np.tile(golden["Q5_K_R4.values"], (3, 1))[5:9])


def test_what_cannot_be_decoded_is_named_and_kept(tmp_path):
    tensor = open_gguf(file_of(tmp_path / "f.gguf", [("a", (4, 64), 41, bytes(8 * 14))])).tensors["a"]
    assert tensor.format.name == "TQ3_0"
    with pytest.raises(Exception, match="can be copied"):
        tensor.float32()
