"""Reading GGUF: what is in a sound file, and that every other one is refused with one precise line."""

import lzma
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from archs.metadata import Metadata, Value, ValueType
from gguftools.io.gguf import reader as gguf_reader
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.gguf.strings import StringArray
from gguftools.io.gguf.writer import TensorInfo, plan_file
from quants import format_named
from quants.errors import FileError
from quants.format import formats

from ...tiny_models import create_gguf

F32, F16, Q4_0, Q4_K = 0, 1, 2, 12
U8, I8, U16, I16, U32, I32, FLOAT32, BOOL, STRING, ARRAY, U64, I64, FLOAT64 = range(13)


def u32(n):
    return struct.pack("<I", n)


def u64(n):
    return struct.pack("<Q", n)


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return u64(len(raw)) + raw


def pair(key, kind, raw):
    return text(key) + u32(kind) + raw


def array(element, count, raw=b""):
    return u32(element) + u64(count) + raw


def entry(name, dims, kind=F32, offset=0):
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def gguf(pairs=(), entries=(), data=b"", magic=b"GGUF", version=3, tensors=None, keys=None):
    head = magic + u32(version) + u64(len(entries) if tensors is None else tensors)
    head += u64(len(pairs) if keys is None else keys) + b"".join(pairs) + b"".join(entries)
    return head + bytes(-len(head) % 32) + data if entries else head


def nested(depth):
    return array(ARRAY, 1, nested(depth - 1)) if depth > 1 else array(U8, 1, b"\1")


ALIGNMENT = "general.alignment"
HOSTILE = {
    "empty": (b"", "is empty, not a GGUF file"),
    "a zip": (b"PK\3\4" + bytes(60), r"is not a GGUF file: it starts with b'PK\x03\x04', not b'GGUF'"),
    "four bytes": (b"GGUF", "version at byte 4 needs 4 bytes, the file has 0 left"),
    "no counts": (b"GGUF" + u32(3), "number of tensors at byte 8 needs 8 bytes"),
    "version 1": (b"GGUF" + u32(1) + bytes(16), "GGUF version 1 is not supported"),
    "version 1, other byte order": (b"GGUF\0\0\0\1" + bytes(16), "GGUF version 1 is not supported"),
    "version 4": (gguf(version=4), "GGUF version 4 is not supported"),
    "version 0": (gguf(version=0), "GGUF version 0 is not supported"),
    "more keys than bytes": (gguf(keys=2**63), r"claims 9223372036854775808 metadata pairs; the 0 bytes left hold 0"),
    "more tensors than bytes": (gguf(tensors=2**64 - 1), "claims 18446744073709551615 tensors; the 0 bytes left"),
    "key longer than the file": (gguf([u64(2**62) + bytes(20)]), "metadata key 0 at byte 32 has 4611686018427387904"),
    "key cut short": (gguf([u64(30) + bytes(12)]), "metadata key 0 at byte 32 needs 30 bytes, the file has 12 left"),
    "empty key": (gguf([pair("", U64, bytes(8))]), "metadata key 0 at byte 32 has 0 bytes"),
    "key not UTF-8": (gguf([pair(b"a\xff", U8, b"\1")]), r"metadata key 0 at byte 32 is not UTF-8: b'a\xff'"),
    "duplicate key": (gguf([pair("a", U8, b"\1"), pair("a", U8, b"\2")]), "metadata key 'a' appears twice"),
    "unknown value type": (gguf([pair("a", 13, b"\1")]), "metadata key 'a' has value type 13, which is unknown"),
    "no value": (gguf([text("abcd") + u32(U64)], keys=1), "value of 'abcd' at byte 40 needs 8 bytes"),
    "string longer than the file": (gguf([pair("a", STRING, u64(2**60))]), "value of 'a' at byte 45 needs 115292150"),
    "truth value 2": (gguf([pair("a", BOOL, b"\2")]), "metadata key 'a' is BOOL with value 2"),
    "array of truth values": (gguf([pair("a", ARRAY, array(BOOL, 2, b"\0\3"))]), "key 'a' has a BOOL with value 3"),
    # 43 bytes that keep the gguf package's reader busy for ever
    "array of 2^63": (gguf([pair("abc", ARRAY, array(U8, 2**63))]), "'abc' claims 9223372036854775808 items of"),
    "array of strings": (gguf([pair("a", ARRAY, array(STRING, 9, bytes(71)))]), "9 items of type STRING, at least 72"),
    "long string": (gguf([pair("a", ARRAY, array(STRING, 2, text("b") + u64(99)))]), "at byte 58 claims 99 bytes"),
    "missing string": (gguf([pair("a", ARRAY, array(STRING, 2, text("bcdefghij")))]), "strings before the array does"),
    "array of unknown type": (gguf([pair("a", ARRAY, array(77, 1))]), "value type 77"),
    "deep arrays": (gguf([pair("a", ARRAY, nested(9))]), "nests arrays deeper than 4"),
    "many arrays": (gguf([pair("a", ARRAY, array(ARRAY, 70_000, array(U8, 0) * 70_000))]), "nests 70000 arrays"),
    "alignment 0": (gguf([pair(ALIGNMENT, U32, u32(0))]), "general.alignment is 0; powers of two"),
    "alignment 48": (gguf([pair(ALIGNMENT, U32, u32(48))]), "general.alignment is 48; powers of two"),
    "alignment 2^31": (gguf([pair(ALIGNMENT, U32, u32(2**31))]), "general.alignment is 2147483648"),
    "alignment of another type": (gguf([pair(ALIGNMENT, U64, u64(32))]), "is UINT64; it must be UINT32"),
    "architecture is a number": (gguf([pair("general.architecture", U32, u32(3))]), "it must be STRING"),
    "split count is a text": (gguf([pair("split.count", STRING, text("2"))]), "it must be an integer"),
    "six dimensions": (gguf(entries=[entry("t", [1] * 6)]), "tensor 't' has 6 dimensions; at most 5"),
    "2^32-1 dimensions": (gguf(entries=[text("t") + u32(2**32 - 1)], tensors=1, data=bytes(99)), "has 4294967295 dim"),
    "empty name": (gguf(entries=[entry("", [4])], data=bytes(16)), "name of tensor 0 at byte 32 has 0 bytes"),
    "name not UTF-8": (gguf(entries=[entry(b"\xfe", [4])], data=bytes(16)), "tensor 0 at byte 32 is not UTF-8"),
    "duplicate tensor": (gguf(entries=[entry("t", [8]), entry("t", [8], offset=32)], data=bytes(64)), "two tensors"),
    "negative dimension": (gguf(entries=[entry("t", [2**64 - 1])]), "has more values than any memory"),
    "overflowing dimensions": (gguf(entries=[entry("t", [2**32, 2**32])]), "has more values than any memory"),
    "overflow behind a zero": (gguf(entries=[entry("t", [0, 2**40, 2**40])]), "has more values than any memory"),
    "unknown tensor type": (gguf(entries=[entry("t", [32], 99)]), "tensor 't': ggml type 99 is unknown"),
    "removed tensor type": (gguf(entries=[entry("t", [32], 4)]), "tensor 't': ggml type 4 is unknown or was removed"),
    "half a block": (gguf(entries=[entry("t", [48], Q4_0)]), "rows of 48 values; Q4_0 needs a multiple of 32"),
    "half a super-block": (gguf(entries=[entry("t", [320, 2], Q4_K)]), "320 values; Q4_K needs a multiple of 256"),
    "misaligned": (gguf(entries=[entry("t", [4], offset=4)], data=bytes(64)), "at offset 4, not a multiple of the al"),
    "overlap": (gguf(entries=[entry("t", [8]), entry("u", [8])], data=bytes(64)), "overlaps the tensor before it: 32"),
    "gap": (gguf(entries=[entry("t", [8]), entry("u", [8], offset=64)], data=bytes(96)), "leaves a gap before it: 32"),
    "starts late": (gguf(entries=[entry("t", [8], offset=32)], data=bytes(64)), "leaves a gap before it: 0 expected"),
    "past the end": (gguf(entries=[entry("t", [8, 4])], data=bytes(127)), "the file must have 224 bytes; it has 223"),
    "far past the end": (gguf(entries=[entry("t", [2**50])], data=bytes(32)), "needs 4503599627370496 bytes"),
    "second past the end": (gguf(entries=[entry("t", [8]), entry("u", [9], offset=32)], data=bytes(64)), "tensor 'u'"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused(case, tmp_path):
    raw, message = HOSTILE[case]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(raw)
    begin = time.process_time()
    with pytest.raises(FileError) as caught:
        open_gguf(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert time.process_time() - begin < 1


def test_every_truncation_is_refused(tmp_path):
    whole = gguf(
        [pair("a", STRING, text("b")), pair("c", ARRAY, array(STRING, 2, text("d") + text("")))],
        [entry("t", [8, 2]), entry("u", [32], Q4_0, 64)],
        bytes(64 + 18),
    )
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole)
    open_gguf(path)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FileError):
            open_gguf(path)


def test_not_a_file(tmp_path):
    with pytest.raises(FileError, match="there is no file"):
        open_gguf(tmp_path / "absent.gguf")
    with pytest.raises(FileError, match="is a folder, not a GGUF file"):
        open_gguf(tmp_path)


EVERY_TYPE = [
    (ValueType.UINT8, 255, [0, 255]),
    (ValueType.INT8, -128, [-128, 127]),
    (ValueType.UINT16, 65535, [0, 65535]),
    (ValueType.INT16, -32768, [-32768, 32767]),
    (ValueType.UINT32, 2**32 - 1, [0, 2**32 - 1]),
    (ValueType.INT32, -(2**31), [-(2**31), 2**31 - 1]),
    (ValueType.UINT64, 2**64 - 1, [0, 2**64 - 1]),
    (ValueType.INT64, -(2**63), [-(2**63), 2**63 - 1]),
    (ValueType.FLOAT32, 0.5, [0.5, -2.0, float("inf")]),
    (ValueType.FLOAT64, 0.1, [0.1, -1e300]),
    (ValueType.BOOL, True, [True, False, True]),
    (ValueType.STRING, "grüße", ["", "a", "\0", "grüße", "x" * 300]),
]


def every_type() -> Metadata:
    metadata = Metadata()
    metadata["general.architecture"] = "llama"
    for kind, scalar, items in EVERY_TYPE:
        metadata.set(f"scalar.{kind.name}", scalar, kind)
        metadata.set(f"array.{kind.name}", items, ValueType.ARRAY, kind)
        metadata.set(f"empty.{kind.name}", [], ValueType.ARRAY, kind)
    inner = [Value([1, 2], ValueType.ARRAY, ValueType.INT32), Value(["a"], ValueType.ARRAY, ValueType.STRING)]
    metadata.set("nested", inner, ValueType.ARRAY, ValueType.ARRAY)
    metadata.set("raw", b"\xff\xfe", ValueType.STRING)
    metadata.set("raws", [b"\xff", "b"], ValueType.ARRAY, ValueType.STRING)
    metadata.set("many", [f"token {i}" for i in range(5000)], ValueType.ARRAY, ValueType.STRING)
    return metadata


def plain(value: Value):
    if value.element is ValueType.ARRAY:
        return [plain(item) for item in value.data]
    return list(value.data) if value.type is ValueType.ARRAY else value.data


@pytest.mark.parametrize("byte_order", ["little", "big"])
@pytest.mark.parametrize("version", [2, 3])
def test_every_type_comes_back(tmp_path, byte_order, version):
    metadata = every_type()
    path = tmp_path / "all.gguf"
    path.write_bytes(plan_file(metadata, [], version=version, byte_order=byte_order).header)
    opened = open_gguf(path)
    assert (opened.byte_order, opened.version) == (byte_order, version)
    assert list(opened.metadata) == list(metadata)
    for key in metadata:
        read, wrote = opened.metadata.value(key), metadata.value(key)
        assert (read.type, read.element) == (wrote.type, wrote.element)
        assert plain(read) == plain(wrote), key
    assert plan_file(opened.metadata, [], version=version, byte_order=byte_order).header == path.read_bytes()
    assert plan_file(opened.metadata, []).header == plan_file(metadata, []).header


def test_arrays_are_views(tmp_path):
    path = tmp_path / "all.gguf"
    path.write_bytes(plan_file(every_type(), []).header)
    metadata = open_gguf(path).metadata
    assert isinstance(metadata["array.INT8"], np.ndarray)
    assert metadata["array.INT8"].dtype == np.int8
    assert metadata["array.BOOL"].dtype == np.bool_
    assert isinstance(metadata["many"], StringArray)
    for key in ("array.UINT64", "array.FLOAT32"):
        assert not metadata[key].flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            metadata[key][0] = 1


def write_tensors(path, tensors, metadata=None, byte_order="little", **options):
    """tensors: name → (format, shape, little-endian bytes)."""
    infos = [TensorInfo(name, shape, format_named(form)) for name, (form, shape, _) in tensors.items()]
    layout = plan_file(metadata if metadata is not None else Metadata(), infos, byte_order=byte_order, **options)
    with create_gguf(path, layout, overwrite=True) as output:
        for i, (info, (_, _, raw)) in enumerate(zip(infos, tensors.values(), strict=True)):
            rows = np.frombuffer(raw, np.uint8).reshape(info.rows, -1) if raw else np.empty((info.rows, 0), np.uint8)
            rows = rows.reshape(info.rows, info.row_bytes)
            output.write(i, 0, rows if byte_order == "little" else info.format.swap_byte_order(rows))
    return path


def some_tensors():
    noise = np.random.default_rng(5)
    return {
        "a": ("F32", (3, 2, 8), noise.bytes(192)),
        "none": ("F32", (0, 8), b""),
        "b": ("Q4_K", (2, 512), noise.bytes(4 * 144)),
        "c": ("F16", (5,), noise.bytes(10)),
        "scalar": ("F32", (), noise.bytes(4)),
        "hollow": ("F16", (3, 0), b""),
        "d": ("I8", (1, 1, 1, 7), noise.bytes(7)),
    }


@pytest.mark.parametrize("byte_order", ["little", "big"])
@pytest.mark.parametrize("alignment", [1, 8, 32, 4096])
def test_tensors_come_back(tmp_path, byte_order, alignment):
    wanted = some_tensors()
    opened = open_gguf(write_tensors(tmp_path / "t.gguf", wanted, byte_order=byte_order, alignment=alignment))
    assert list(opened.tensors) == list(wanted)
    assert opened.alignment == alignment
    for name, (form, shape, raw) in wanted.items():
        tensor = opened.tensors[name]
        assert (tensor.format.name, tensor.shape, tensor.nbytes) == (form, shape, len(raw))
        assert tensor.raw().tobytes() == raw
        assert tensor.raw().shape == (tensor.rows, tensor.row_bytes)
        assert opened.offsets[name] % alignment == 0
        if tensor.rows > 1:
            assert tensor.raw(1, 2).tobytes() == raw[tensor.row_bytes : 2 * tensor.row_bytes]
            assert tensor.raw(1, 2).shape == (1, tensor.row_bytes)
    assert opened.file_size == (tmp_path / "t.gguf").stat().st_size


def test_tensor_data_is_not_copied(tmp_path):
    tensor = open_gguf(write_tensors(tmp_path / "t.gguf", some_tensors())).tensors["b"]
    assert not tensor.raw().flags.owndata
    assert np.shares_memory(tensor.raw(0, 1), tensor.raw())


def test_tensors_need_not_be_in_the_order_of_their_data(tmp_path):
    path = tmp_path / "t.gguf"
    path.write_bytes(gguf(entries=[entry("b", [8], offset=32), entry("a", [8])], data=bytes(32) + b"\1" * 32))
    opened = open_gguf(path)
    assert list(opened.tensors) == ["b", "a"]
    assert opened.tensors["b"].raw().tobytes() == b"\1" * 32


def test_byte_order_of_every_block_format():
    noise = np.random.default_rng(1)
    for form in formats().values():
        raw = noise.integers(0, 256, (3, 2 * form.block_bytes), np.uint8)
        swapped = form.swap_byte_order(raw)
        assert np.array_equal(form.swap_byte_order(swapped), raw), form.name
    raw = np.arange(34, dtype=np.uint8)[None]
    assert format_named("Q8_0").swap_byte_order(raw)[0].tolist() == [1, 0, *range(2, 34)]
    assert format_named("F32").swap_byte_order(raw[:, :8])[0].tolist() == [3, 2, 1, 0, 7, 6, 5, 4]


def test_powerinfer_magic(tmp_path):
    opened = open_gguf(write_tensors(tmp_path / "p.gguf", some_tensors(), magic=b"PWRI"))
    assert opened.magic == b"PWRI"


def shards(folder, count=3, **change):
    """A split set of one tensor a shard; `change`: keys to set in the second."""
    paths = []
    for i in range(count):
        metadata = Metadata()
        if i == 0:
            metadata["general.architecture"] = "llama"
        keys = {"split.no": i, "split.count": count, "split.tensors.count": count}
        for key, value in (keys | (change if i == 1 else {})).items():
            metadata.set(key, value, ValueType.INT32 if key == "split.tensors.count" else ValueType.UINT16)
        path = folder / f"m-{i + 1:05d}-of-{count:05d}.gguf"
        paths.append(write_tensors(path, {f"t{i}": ("F32", (1, 8), bytes([i]) * 32)}, metadata))
    return paths


def test_any_shard_opens_the_set(tmp_path):
    paths = shards(tmp_path)
    for path in paths:
        opened = open_gguf(path)
        assert list(opened.tensors) == ["t0", "t1", "t2"]
        assert opened.tensors["t2"].raw().tobytes() == b"\2" * 32
        assert dict(opened.metadata) == {"general.architecture": "llama"}
        assert opened.shards == paths
        assert opened.is_split
        assert [len(part.tensors) for part in opened.parts] == [1, 1, 1]
        assert opened.file_size == sum(path.stat().st_size for path in paths)
    alone = open_gguf(paths[1], join=False)
    assert list(alone.tensors) == ["t1"]
    assert alone.metadata["split.no"] == 1


def test_inconsistent_split_sets(tmp_path):
    paths = shards(tmp_path, **{"split.no": 2})
    with pytest.raises(FileError, match=r"m-00002-of-00003\.gguf should be shard 1 of 3 .*; its metadata has 2 of 3"):
        open_gguf(paths[0])
    paths = shards(tmp_path, **{"split.count": 4})
    with pytest.raises(FileError, match="its metadata has 1 of 4"):
        open_gguf(paths[0])
    paths = shards(tmp_path)
    write_tensors(paths[2], {"t0": ("F32", (8,), bytes(32))}, open_gguf(paths[2], join=False).metadata)
    with pytest.raises(FileError, match="tensor 't0' is in two shards: m-00001-of-00003"):
        open_gguf(paths[0])
    write_tensors(paths[2], {}, open_gguf(paths[2], join=False).metadata)
    with pytest.raises(FileError, match="claims 3 tensors in all shards, which hold 2"):
        open_gguf(paths[0])
    paths[1].unlink()
    with pytest.raises(FileError, match=r"is one of 3 shards, 1 of which are missing in its folder: m-00002-of-00003"):
        open_gguf(paths[2])
    paths[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(FileError, match=r"its name does not end in -00001-of-00003\.gguf"):
        open_gguf(tmp_path / "renamed.gguf")


def test_interrupted_edit_is_noticed(tmp_path):
    path = write_tensors(tmp_path / "t.gguf", some_tensors())
    (tmp_path / "t.gguf.journal").write_bytes(b"")
    with pytest.raises(FileError, match=r"the last edit of .*t.gguf was interrupted") as caught:
        open_gguf(path)
    assert "--recover" in caught.value.hint
    assert open_gguf(path, ignore_journal=True).tensors


@pytest.mark.parametrize("name", ["llama-bpe", "llama-spm", "bert-bge", "qwen2"])
def test_real_vocabularies(shared, tmp_path, name):
    gguf_package = pytest.importorskip("gguf")
    path = tmp_path / "vocab.gguf"
    path.write_bytes(lzma.decompress((shared / "vocabs" / f"ggml-vocab-{name}.gguf.xz").read_bytes()))
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        opened = open_gguf(path)
        times.append(time.perf_counter() - begin)
    tokens = opened.metadata["tokenizer.ggml.tokens"]
    print(f"{name}: {len(tokens)} tokens, opened in {1000 * min(times):.1f} ms")
    assert plan_file(opened.metadata, []).header == path.read_bytes()
    assert len(tokens) == len(tokens.tolist()) == len(opened.metadata["tokenizer.ggml.token_type"])
    if name == "llama-spm":  # the package's reader takes seconds for the others
        field = gguf_package.GGUFReader(path).fields["tokenizer.ggml.tokens"]
        assert field.contents() == tokens.tolist()


def test_reference_files(shared):
    for path in sorted((shared / "golden").rglob("*.gguf")):
        opened = open_gguf(path)
        infos = [TensorInfo(tensor.name, tensor.shape, tensor.format) for tensor in opened.tensors.values()]
        layout = plan_file(opened.metadata, infos)
        assert layout.header == path.read_bytes()[: opened.data_offset]
        assert layout.offsets == list(opened.offsets.values())
        assert layout.total == opened.file_size


def test_module_limits_hold_in_messages(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_reader, "MAX_KEYS", 1)
    path = Path(tmp_path / "k.gguf")
    path.write_bytes(gguf([pair("a", U8, b"\1"), pair("b", U8, b"\1")]))
    with pytest.raises(FileError, match="claims 2 metadata pairs; more than 1 are refused"):
        open_gguf(path)


def test_big_endian_file_of_the_gguf_package(tmp_path):
    gguf_package = pytest.importorskip("gguf")
    writer = gguf_package.GGUFWriter(tmp_path / "b.gguf", "llama", endianess=gguf_package.GGUFEndian.BIG)
    writer.add_array("tokens", ["a", "bc", ""] * 100)
    writer.add_array("scores", [0.5, -1.0])
    writer.add_uint32("count", 70_000)
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    writer.add_tensor("t", values.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    opened = open_gguf(tmp_path / "b.gguf")
    assert opened.byte_order == "big"
    assert opened.metadata["tokens"] == ["a", "bc", ""] * 100
    assert opened.metadata["scores"].tolist() == [0.5, -1.0]
    assert opened.metadata["count"] == 70_000
    assert opened.tensors["t"].elements(1, 3).tolist() == values[1:3].tolist()
