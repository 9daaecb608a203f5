"""The other byte order: every value type and every tensor type, there and back; as the reference where it can."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from archs.metadata import Metadata, Value, ValueType
from gguftools.conversion.endianness import convert_endian
from gguftools.conversion.shards import split
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.gguf.writer import TensorInfo, plan_file
from quants import format_named
from quants.errors import FileError, OptionError
from quants.format import formats

from ..test_cli import gguftools as run_gguftools
from ..tiny_models import create_gguf

OF_THE_REFERENCE = ("F32", "F16", "BF16", "Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4")


def make(path, names=None, version=3):
    metadata = Metadata()
    metadata["general.architecture"] = "llama"
    for kind in ValueType:
        if kind not in (ValueType.ARRAY, ValueType.STRING):
            metadata.set(f"s.{kind.name}", 1, kind)
            metadata.set(f"a.{kind.name}", [1, 0, 1], ValueType.ARRAY, kind)
    metadata["tokens"] = [f"token {i}" for i in range(300)]
    inner = [Value(["a", ""], ValueType.ARRAY, ValueType.STRING), Value([1], ValueType.ARRAY, ValueType.INT16)]
    if names is None:
        metadata.set("nested", inner, ValueType.ARRAY, ValueType.ARRAY)
    infos = [
        TensorInfo(f"{form.name}.weight", (3, 2 * form.block_size), form)
        for form in formats().values()
        if names is None or form.name in names
    ]
    chance = np.random.default_rng(4)
    with create_gguf(path, plan_file(metadata, infos, reserve=100, version=version)) as output:
        for i, info in enumerate(infos):
            output.write(i, 0, chance.integers(0, 256, (info.rows, info.row_bytes), np.uint8))
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_there_and_back(tmp_path, version):
    path = make(tmp_path / "m.gguf", version=version)
    report = convert_endian(path)
    assert (report.files, report.order) == ([tmp_path / "m-big.gguf"], "big")
    assert report.nbytes == report.files[0].stat().st_size == path.stat().st_size
    little, big = open_gguf(path), open_gguf(report.files[0])
    assert big.byte_order == "big"
    assert list(big.metadata) == list(little.metadata)
    for key in little.metadata:
        if key != "nested":
            assert list(np.atleast_1d(big.metadata[key])) == list(np.atleast_1d(little.metadata[key]))
    for name, tensor in little.tensors.items():
        assert big.tensors[name].raw().tobytes() == tensor.raw().tobytes()
    convert_endian(report.files[0], output=tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == path.read_bytes()


def test_bytes_are_those_of_the_reference(tmp_path):
    pytest.importorskip("gguf.scripts.gguf_convert_endian")
    path = make(tmp_path / "m.gguf", OF_THE_REFERENCE)
    ours = convert_endian(path, "big").files[0]
    subprocess.run(
        [sys.executable, "-m", "gguf.scripts.gguf_convert_endian", str(path), "big"],
        input="YES\n",
        text=True,
        capture_output=True,
        check=True,
    )
    assert ours.read_bytes() == path.read_bytes()


NUMBERS = {  # format: a number of several bytes that ggml reads there, as (first byte, bytes)
    "Q5_0": (2, 4),
    "Q5_1": (4, 4),
    "IQ3_XXS": (66, 4),
    "IQ2_XXS": (6, 4),
    "IQ1_M": (48, 2),
    "IQ1_S": (34, 2),
    "IQ4_XS": (2, 2),
    "IQ2_XS": (2, 2),
    "Q8_K": (260, 2),
    "Q2_K": (82, 2),
    "Q3_K": (108, 2),
    "TQ1_0": (52, 2),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_within_blocks(name):
    form = format_named(name)
    first, size = NUMBERS[name]
    raw = np.arange(form.block_bytes, dtype=np.uint8 if form.block_bytes < 257 else np.int64).astype(np.uint8)[None]
    swapped = form.swap_byte_order(raw)[0]
    assert swapped[first : first + size].tolist() == raw[0, first : first + size][::-1].tolist()


def test_split_set(tmp_path):
    path = make(tmp_path / "m.gguf")
    shards = [shard.path for shard in split(path, max_tensors=12).shards]
    report = convert_endian(shards[1])
    assert [file.name for file in report.files] == [f"m-big-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    big = open_gguf(report.files[2])
    assert list(big.tensors) == list(open_gguf(path).tensors)
    back = convert_endian(report.files[0], output=tmp_path / "n.gguf").files
    assert [file.read_bytes() for file in back] == [shard.read_bytes() for shard in shards]


def test_refusals(tmp_path):
    path = make(tmp_path / "m.gguf")
    with pytest.raises(OptionError, match="is little endian already"):
        convert_endian(path, "little")
    with pytest.raises(OptionError, match="no byte order 'middle'"):
        convert_endian(path, "middle")
    convert_endian(path)
    with pytest.raises(FileError, match="already exists"):
        convert_endian(path)
    convert_endian(path, overwrite=True)


def test_command_line(tmp_path):
    make(tmp_path / "m.gguf")
    done = run_gguftools("convert-endian", "m.gguf", "big", "-o", "n.gguf", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert open_gguf(tmp_path / "n.gguf").byte_order == "big"
