"""Writing GGUF: the planned bytes, in any order and from any thread, and nothing at all when something goes wrong."""
# ruff: noqa: PT012 (what is tested is how a `with` block ends)

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from archs.metadata import Metadata, ValueType
from gguftools.io import atomic, positioned
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.gguf.writer import RESERVE_KEY, TensorInfo, encode_header, plan_file
from quants import format_named
from quants.errors import FileError, FormatError
from quants.format import formats

from ...tiny_models import create_gguf


def info(name, shape, form="F32"):
    return TensorInfo(name, shape, format_named(form))


def model(rows=64):
    metadata = Metadata()
    metadata["general.architecture"] = "llama"
    metadata["tokens"] = [f"token {i}" for i in range(300)]
    layout = plan_file(metadata, [info("a", (rows, 64)), info("b", (rows, 96), "Q8_0"), info("c", (5,))])
    noise = np.random.default_rng(1)
    data = [noise.integers(0, 256, (tensor.rows, tensor.row_bytes), np.uint8) for tensor in layout.tensors]
    return layout, data


def write_all(path, layout, data):
    with create_gguf(path, layout, overwrite=True) as output:
        for i, rows in enumerate(data):
            output.write(i, 0, rows)


def test_layout():
    layout = plan_file(Metadata(), [info("a", (2, 3)), info("b", (1,)), info("c", (4, 32), "Q4_0")])
    assert layout.header[:24] == b"GGUF" + bytes([3, 0, 0, 0, 3, *bytes(7), *bytes(8)])
    assert len(layout.header) % 32 == 0
    start = len(layout.header)
    assert layout.offsets == [start, start + 32, start + 64]
    assert layout.total == start + 64 + 96  # the last one is padded, too
    assert layout.row_offset(2, 3) == start + 64 + 3 * 18
    assert sum(tensor.nbytes for tensor in layout.tensors) == 24 + 4 + 72


def test_alignment():
    metadata = Metadata()
    metadata["general.alignment"] = 128
    layout = plan_file(metadata, [info("a", (1,)), info("b", (1,))], alignment=32)
    assert layout.alignment == 128
    assert [offset % 128 for offset in layout.offsets] == [0, 0]
    assert layout.total == layout.offsets[1] + 128
    assert b"general.alignment" in plan_file(Metadata(), [info("a", (1,))], alignment=64).header
    for wrong in (0, 48, 1 << 40):
        with pytest.raises(FileError, match=f"alignment {wrong}: powers of two"):
            plan_file(Metadata(), [], alignment=wrong)


def test_reserve_is_read_by_everyone(tmp_path):
    gguf = pytest.importorskip("gguf")
    metadata = Metadata()
    metadata["general.name"] = "a"
    metadata["tokens"] = ["t"] * 500
    tensors = [info("a", (8,))]
    layout = plan_file(metadata, tensors, reserve=1000)
    plain = plan_file(metadata, tensors)
    assert 1000 <= len(layout.header) - len(plain.header) < 1100
    write_all(tmp_path / "r.gguf", layout, [np.zeros((1, 32), np.uint8)])
    opened = open_gguf(tmp_path / "r.gguf")
    assert list(opened.metadata) == ["general.name", RESERVE_KEY, "tokens"]
    assert opened.metadata["tokens"] == ["t"] * 500
    assert gguf.GGUFReader(tmp_path / "r.gguf").tensors[0].name == "a"


def test_rows_in_any_order_from_many_threads(tmp_path):
    layout, data = model(rows=500)
    write_all(tmp_path / "whole.gguf", layout, data)
    tasks = [(i, row) for i, rows in enumerate(data) for row in range(0, len(rows), 7)]
    np.random.default_rng(2).shuffle(tasks)
    with create_gguf(tmp_path / "parts.gguf", layout) as output, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda task: output.write(task[0], task[1], data[task[0]][task[1] : task[1] + 7]), tasks))
    assert (tmp_path / "parts.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    opened = open_gguf(tmp_path / "parts.gguf")
    for tensor, rows in zip(opened.tensors.values(), data, strict=True):
        assert np.array_equal(tensor.raw(), rows)


def test_the_gguf_package_reads_it(tmp_path):
    gguf = pytest.importorskip("gguf")
    noise = np.random.default_rng(3)
    infos = [info(form.name, (3, 2 * form.block_size), form.name) for form in formats().values() if form.ggml_type < 41]
    metadata = Metadata()
    metadata["general.architecture"] = "llama"
    metadata.set("numbers", [1, 2, 300], ValueType.ARRAY, ValueType.UINT16)
    metadata["texts"] = ["a", "", "ü"]
    metadata.set("flag", True, ValueType.BOOL)
    layout = plan_file(metadata, infos)
    data = [noise.integers(0, 256, (tensor.rows, tensor.row_bytes), np.uint8) for tensor in infos]
    write_all(tmp_path / "t.gguf", layout, data)
    reader = gguf.GGUFReader(tmp_path / "t.gguf")
    assert reader.fields["texts"].contents() == ["a", "", "ü"]
    assert reader.fields["numbers"].contents() == [1, 2, 300]
    assert reader.fields["flag"].contents() is True
    assert len(reader.tensors) == len(infos)
    for theirs, ours, rows in zip(reader.tensors, infos, data, strict=True):
        assert (theirs.name, theirs.tensor_type.name) == (ours.name, ours.format.name)
        assert theirs.shape.tolist() == [ours.shape[1], 3]
        assert theirs.data.tobytes() == rows.tobytes()


@pytest.mark.verify
def test_the_reference_library_reads_it(tmp_path):
    """ggml's own reader, which refuses gaps and misplaced data."""
    import ctypes
    from pathlib import Path

    import llama_cpp

    library = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))

    class Parameters(ctypes.Structure):
        _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]

    library.gguf_init_from_file.restype = ctypes.c_void_p
    library.gguf_init_from_file.argtypes = [ctypes.c_char_p, Parameters]
    library.gguf_get_n_tensors.argtypes = library.gguf_free.argtypes = [ctypes.c_void_p]
    library.gguf_get_n_tensors.restype = ctypes.c_int64
    metadata = Metadata()
    metadata["general.name"] = "a"
    metadata.set("raw", b"\xff", ValueType.STRING)
    for reserve in (0, 500):
        layout = plan_file(metadata, [info("a", (3, 64)), info("b", (3, 64), "Q4_0"), info("c", (1,))], reserve=reserve)
        write_all(tmp_path / "t.gguf", layout, [np.zeros((t.rows, t.row_bytes), np.uint8) for t in layout.tensors])
        context = library.gguf_init_from_file(str(tmp_path / "t.gguf").encode(), Parameters(True, None))
        assert context
        assert library.gguf_get_n_tensors(context) == 3
        library.gguf_free(context)


def test_copies_of_reference_files_are_identical(shared, tmp_path):
    for source in sorted((shared / "golden" / "e2e").glob("*.gguf")):
        opened = open_gguf(source)
        layout = plan_file(opened.metadata, [TensorInfo(t.name, t.shape, t.format) for t in opened.tensors.values()])
        write_all(tmp_path / "copy.gguf", layout, [tensor.raw() for tensor in opened.tensors.values()])
        assert (tmp_path / "copy.gguf").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "temporary name"])
def test_nothing_remains_of_a_failure(tmp_path, monkeypatch, failure, named):
    if named:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    layout, data = model()
    target = tmp_path / "t.gguf"
    target.write_bytes(b"older")
    with pytest.raises(failure), create_gguf(target, layout, overwrite=True) as output:
        output.write(0, 0, data[0])
        raise failure
    assert target.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(FileError, match=r"writing .* was abandoned"):
        output.write(0, 0, data[0])
    write_all(target, layout, data)
    assert open_gguf(target).tensors
    assert list(tmp_path.iterdir()) == [target]


def test_missing_rows_are_noticed(tmp_path):
    layout, data = model()
    with (
        pytest.raises(FileError, match="only 63 of 64 rows of 'b' were written"),
        create_gguf(tmp_path / "t.gguf", layout) as output,
    ):
        output.write(0, 0, data[0])
        output.write(1, 1, data[1][1:])
        output.write(2, 0, data[2])
    assert not list(tmp_path.iterdir())


def test_rows_that_do_not_fit(tmp_path):
    layout, data = model()
    with pytest.raises(FileError), create_gguf(tmp_path / "t.gguf", layout) as output:
        with pytest.raises(ValueError, match=r"'a' takes uint8 \(rows, 256\)"):
            output.write(0, 0, data[1])
        with pytest.raises(ValueError, match="'a' has 64 rows, not 1 … 65"):
            output.write(0, 1, data[0])
        with pytest.raises(ValueError, match="takes uint8"):
            output.write(0, 0, data[0].view(np.float32))


def test_kill_leaves_nothing(tmp_path):
    script = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from archs.metadata import Metadata
        from gguftools.io.gguf.writer import TensorInfo, create_ggufs, plan_file
        from quants import format_named
        import numpy as np
        layout = plan_file(Metadata(), [TensorInfo("a", (1000, 1000), format_named("F32"))])
        with create_ggufs([(Path(sys.argv[1]), layout)]) as (output,):
            output.write(0, 0, np.ones((500, 4000), np.uint8))
            print("half", flush=True)
            time.sleep(600)
    """)
    target = tmp_path / "t.gguf"
    for kind in (signal.SIGKILL, signal.SIGINT):
        with subprocess.Popen(
            [sys.executable, "-c", script, target], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout.readline() == b"half\n"
            process.send_signal(kind)
            assert process.wait(300)
        assert not target.exists()
        left = list(tmp_path.iterdir())
        assert not left or (kind is signal.SIGKILL and left[0].name.endswith(".partial")), left
        for path in left:
            path.unlink()


def test_missing_folder(tmp_path):
    layout, _ = model()
    with pytest.raises(FileError, match="there is no folder"), create_gguf(tmp_path / "none" / "t.gguf", layout):
        pytest.fail("the block must not run")
    with pytest.raises(FileError, match="is a folder; the name of a file"), create_gguf(tmp_path, layout):
        pytest.fail("the block must not run")


def test_existing_file(tmp_path):
    layout, data = model()
    (tmp_path / "t.gguf").write_bytes(b"older")
    with pytest.raises(FileError, match="already exists"), create_gguf(tmp_path / "t.gguf", layout, overwrite=False):
        pytest.fail("the block must not run")
    write_all(tmp_path / "t.gguf", layout, data)
    assert (tmp_path / "t.gguf").stat().st_size == layout.total


def test_disk_known_to_be_too_small(tmp_path):
    layout = plan_file(Metadata(), [info("a", (1 << 30, 1 << 30), "F32")])
    message = r"needs 4,611,686,018,427,388,000 bytes, .* has [\d,]+ free"
    with pytest.raises(FileError, match=message), create_gguf(tmp_path / "t.gguf", layout):
        pytest.fail("the block must not run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("after", [0, 1])
def test_disk_that_fills_up(tmp_path, monkeypatch, after):
    layout, data = model()
    calls = []

    def full(*arguments):
        calls.append(1)
        if len(calls) > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(FileError, match=rf"no space left for .*t\.gguf: it needs {layout.total:,} bytes, [\d,]+"):
        write_all(tmp_path / "t.gguf", layout, data)
    assert not list(tmp_path.iterdir())


def test_short_writes_are_continued(tmp_path, monkeypatch):
    layout, data = model()
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, piece, offset: real(fd, piece[:1000], offset))
    write_all(tmp_path / "t.gguf", layout, data)
    assert np.array_equal(open_gguf(tmp_path / "t.gguf").tensors["a"].raw(), data[0])


def test_close_waits_for_writes_that_have_begun(tmp_path, monkeypatch):
    """Else the descriptor could be another file's before such a write reaches it."""
    layout, data = model()
    started, go = threading.Event(), threading.Event()

    def slow(fd, piece, offset):
        started.set()
        assert go.wait(60)
        return real(fd, piece, offset)

    real = positioned.write_at
    failed = []

    def write(output):
        try:
            output.write(0, 0, data[0])
        except BaseException as error:
            failed.append(error)

    threading.Timer(0.3, go.set).start()
    with pytest.raises(RuntimeError), create_gguf(tmp_path / "t.gguf", layout) as output:
        monkeypatch.setattr(positioned, "write_at", slow)
        thread = threading.Thread(target=write, args=(output,))
        thread.start()
        assert started.wait(60)
        raise RuntimeError
    thread.join()
    assert not failed
    assert go.is_set()


@pytest.mark.parametrize(
    ("kind", "element", "data", "message"),
    [
        (ValueType.UINT8, None, 256, "cannot be stored as UINT8"),
        (ValueType.INT8, None, -129, "cannot be stored as INT8"),
        (ValueType.UINT32, None, "3", "cannot be stored as UINT32"),
        (ValueType.UINT32, None, 1.5, "cannot be stored as UINT32"),
        (ValueType.FLOAT32, None, 1e39, "cannot be stored as FLOAT32"),
        (ValueType.BOOL, None, 2, "neither true nor false"),
        (ValueType.STRING, None, 3, "3 is not a string"),
        (ValueType.ARRAY, ValueType.INT8, [1, 128], "items from 1 to 128; -128 to 127 are allowed"),
        (ValueType.ARRAY, ValueType.INT8, np.array([1, 128]), "items from 1 to 128"),
        (ValueType.ARRAY, ValueType.UINT64, [-1, 2**64 - 1], "items from -1"),
        (ValueType.ARRAY, ValueType.INT32, [1, 2.5], "an item is not an integer"),
        (ValueType.ARRAY, ValueType.INT32, np.array([2.5]), "float64 are not integers"),
        (ValueType.ARRAY, ValueType.FLOAT32, [1e39], "an item is too large for FLOAT32"),
        (ValueType.ARRAY, ValueType.FLOAT32, ["a"], "a list of numbers was expected"),
        (ValueType.ARRAY, ValueType.BOOL, [0, 2], "an item is neither true nor false"),
        (ValueType.ARRAY, ValueType.STRING, ["a", 3], "cannot be stored as array of STRING"),
        (ValueType.ARRAY, None, [1], "its items have no type"),
    ],
)
def test_values_that_their_type_cannot_hold(kind, element, data, message):
    metadata = Metadata()
    metadata.set("key", data, kind, element)
    with pytest.raises(FileError, match="metadata key 'key'") as caught:
        encode_header(metadata, [], [])
    assert message in str(caught.value)


def test_headers_that_our_reader_would_refuse():
    for key, kind in (("general.alignment", ValueType.UINT64), ("general.architecture", ValueType.UINT32)):
        metadata = Metadata()
        metadata.set(key, 32, kind)
        with pytest.raises(FileError, match="this key must be"):
            plan_file(metadata, [])
    metadata = Metadata()
    metadata[""] = 1
    with pytest.raises(FileError, match="keys have 1 to 65535 bytes"):
        plan_file(metadata, [])
    with pytest.raises(FileError, match="two tensors are called 'a'"):
        plan_file(Metadata(), [info("a", (1,)), info("a", (1,))])
    with pytest.raises(FileError, match="'a' has 6 dimensions"):
        plan_file(Metadata(), [info("a", (1,) * 6)])
    with pytest.raises(FormatError, match="rows of 33 values; Q8_0"):
        plan_file(Metadata(), [info("a", (33,), "Q8_0")])


def test_atomic_output(tmp_path):
    path = tmp_path / "a.txt"
    with atomic.atomic_output(path, "w") as file:
        file.write("grüße\n")
        assert not path.exists()
    assert path.read_bytes() == "grüße\n".encode()
    with pytest.raises(ZeroDivisionError), atomic.atomic_output(path, overwrite=True) as file:
        file.write(b"x")
        raise ZeroDivisionError
    assert path.read_bytes() == "grüße\n".encode()
    with pytest.raises(FileError, match="already exists"), atomic.atomic_output(path, overwrite=False) as file:
        file.write(b"x")
    with pytest.raises(FileError, match="there is no folder"), atomic.atomic_output(tmp_path / "no" / "a"):
        pytest.fail("the block must not run")
    assert list(tmp_path.iterdir()) == [path]
