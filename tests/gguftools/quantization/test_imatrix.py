"""Importance matrices: both stored forms, what is wrong in one, and which weights a tensor gets."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from archs.metadata import Metadata, ValueType
from gguftools.io.gguf.writer import TensorInfo, plan_file
from gguftools.quantization.imatrix import (
    Entry,
    ImportanceMatrix,
    check,
    importance_for,
    layer_importance,
    merge,
    problems,
    read_imatrix,
    select_entries,
    summary,
    write_imatrix,
)
from quants import from_array
from quants.errors import FileError, OptionError
from tests.conftest import DATA

from ..tiny_models import create_gguf

DENSE = DATA / "golden" / "e2e" / "tiny-dense.imatrix.gguf"
MOE = DATA / "golden" / "e2e" / "tiny-moe.imatrix.gguf"


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def matrix(**entries: tuple[list[list[float]], list[float]]) -> ImportanceMatrix:
    made = {
        f"{name}.weight": Entry(np.array(sums, np.float32), np.array(counts, np.float32))
        for name, (sums, counts) in entries.items()
    }
    return ImportanceMatrix(Path("m.gguf"), made, ("a.txt",), 3)


def tensor(name: str, *shape: int):
    return from_array(name, np.zeros(shape, np.float32))


def test_the_reference_form() -> None:
    read = read_imatrix(MOE)
    assert (read.datasets, read.chunks, read.chunk_size, len(read.entries)) == (("synthetic-ones",), 1, 512, 7)
    experts = read.entries["blk.0.ffn_gate_exps.weight"]
    assert experts.sums.shape == (2, 256)
    assert experts.counts.tolist() == [64, 0]
    assert experts.unseen == [1]
    assert (experts.mean()[1] == 1).all()
    assert np.array_equal(experts.mean()[0], experts.sums[0] / np.float32(64))


@pytest.mark.parametrize("source", [DENSE, MOE])
def test_gguf_and_back(source: Path, tmp_path: Path) -> None:
    first = read_imatrix(source)
    write_imatrix(first, tmp_path / "m.gguf")
    second = read_imatrix(tmp_path / "m.gguf")
    assert (second.datasets, second.chunks, second.chunk_size) == (first.datasets, first.chunks, first.chunk_size)
    assert first.entries.keys() == second.entries.keys()
    for name, entry in first.entries.items():
        assert np.array_equal(entry.sums, second.entries[name].sums)
        assert np.array_equal(entry.counts, second.entries[name].counts)


def test_dat_and_back_keeps_the_importance(tmp_path: Path) -> None:
    first = read_imatrix(MOE)
    write_imatrix(first, tmp_path / "m.dat")
    second = read_imatrix(tmp_path / "m.dat")
    assert (second.datasets, second.chunks) == (first.datasets, first.chunks)
    for name, entry in first.entries.items():
        mean = second.entries[name].mean().reshape(entry.sums.shape)
        assert np.array_equal(mean, entry.mean()), name


def test_a_dat_file_byte_by_byte(tmp_path: Path) -> None:
    name = b"blk.0.ffn_up_exps.weight"
    values = floats(3, 6, 9, 12)
    data = struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii", 3, 4) + values.tobytes()
    (tmp_path / "old.dat").write_bytes(data)
    (tmp_path / "new.dat").write_bytes(data + struct.pack("<ii", 7, 4) + b"wiki")
    for path, chunks, datasets in (("old.dat", 0, ()), ("new.dat", 7, ("wiki",))):
        read = read_imatrix(tmp_path / path)
        assert (read.chunks, read.datasets) == (chunks, datasets)
        weights = importance_for(read, tensor("blk.0.ffn_up_exps.weight", 2, 5, 2))  # two experts of width 2
        assert weights is not None
        assert weights.tolist() == [[1, 2], [3, 4]]
    for cut in range(len(data)):
        (tmp_path / "cut.dat").write_bytes(data[:cut])
        with pytest.raises(FileError, match="is not an importance matrix"):
            read_imatrix(tmp_path / "cut.dat")


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, b"\x00" * 40, struct.pack("<iii", 1, 1 << 30, 0)])
def test_what_is_no_matrix(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.dat").write_bytes(data)
    with pytest.raises(FileError, match="is not an importance matrix"):
        read_imatrix(tmp_path / "x.dat")


def test_gguf_files_that_are_no_matrix(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no file"):
        read_imatrix(tmp_path / "none.gguf")
    with pytest.raises(FileError, match=r"general\.type is None, not 'imatrix'"):
        read_imatrix(DATA / "golden" / "e2e" / "tiny-dense-f16.gguf")
    metadata = Metadata()
    metadata.set("general.type", "imatrix", ValueType.STRING)
    for names, message in ((["a.in_sum2"], "no 'a.counts'"), (["b"], "no tensor whose name ends in .in_sum2")):
        tensors = [tensor(name, 1, 4) for name in names]
        layout = plan_file(metadata, [TensorInfo(t.name, t.shape, t.format) for t in tensors])
        with create_gguf(tmp_path / "x.gguf", layout, overwrite=True) as file:
            for index, stored in enumerate(tensors):
                file.write(index, 0, stored.raw())
        with pytest.raises(FileError, match=message):
            read_imatrix(tmp_path / "x.gguf")


def test_merging_is_measuring_both() -> None:
    a = matrix(x=([[1, 2]], [10]), y=([[1, 1]], [1]))
    b = ImportanceMatrix(Path("b"), matrix(x=([[3, 4]], [30]), z=([[5]], [1])).entries, ("a.txt", "b.txt"), 4)
    both = merge([a, b])
    assert both.entries["x.weight"].sums.tolist() == [[4, 6]]
    assert both.entries["x.weight"].counts.tolist() == [40]
    assert set(both.entries) == {"x.weight", "y.weight", "z.weight"}
    assert (both.datasets, both.chunks) == (("a.txt", "b.txt"), 7)
    with pytest.raises(FileError, match=r"'x\.weight' has shape \(1, 3\), before it was \(1, 2\)"):
        merge([a, matrix(x=([[1, 2, 3]], [1]))])
    with pytest.raises(OptionError):
        merge([])


def test_problems_are_named() -> None:
    bad = matrix(
        a=([[1, np.nan, np.inf]], [1]),
        b=([[1, -1]], [1]),
        c=([[0, 1, 0]], [1]),
        d=([[1], [0]], [5, 0]),
        e=([[1]], [np.nan]),
    )
    assert [(p.name, p.kind, p.expert, p.columns) for p in problems(bad)] == [
        ("a.weight", "non-finite", 0, (1, 2)),
        ("b.weight", "negative", 0, (1,)),
        ("c.weight", "zero", 0, (0, 2)),
        ("d.weight", "unseen", 1, ()),
        ("e.weight", "non-finite", 0, (0,)),
    ]
    with pytest.raises(FileError, match=r"a\.weight: 2 non-finite columns: 1, 2, and 2 more"):
        check(bad)
    assert check(select_entries(bad, ["c.", "d."])) == ["c.weight: 2 zero columns: 0, 2"]


def test_many_warnings_are_few_lines() -> None:
    many = {f"blk.{i}.x": Entry(np.zeros((1, 4), np.float32), floats(1)) for i in range(50)}
    lines = check(ImportanceMatrix(Path("m"), many))
    assert len(lines) == 11
    assert lines[-1].startswith("40 more")


def test_only_some() -> None:
    assert set(select_entries(read_imatrix(DENSE), ["attn_q"]).entries) == {f"blk.{i}.attn_q.weight" for i in (0, 1)}
    assert not any("attn" in name for name in select_entries(read_imatrix(DENSE), exclude=["attn"]).entries)
    with pytest.raises(OptionError, match="none of the 14 entries"):
        select_entries(read_imatrix(DENSE), ["nothing"])


def test_sizes_must_be_those_of_the_tensor() -> None:
    made = matrix(x=([[1, 2]], [1]), token_embd=([[1, 2]], [1]))
    assert importance_for(made, tensor("y.weight", 4, 2)) is None
    assert importance_for(made, tensor("token_embd.weight", 4, 3)) is None
    with pytest.raises(FileError, match=r"'x\.weight' has 2 values, the tensor needs 3"):
        importance_for(made, tensor("x.weight", 4, 3))
    with pytest.raises(FileError, match="the tensor needs 2 × 2"):
        importance_for(made, tensor("x.weight", 2, 4, 2))


def test_unseen_experts() -> None:
    sums = np.ones((40, 4), np.float32)
    counts = np.ones(40, np.float32)
    counts[[3, 5]] = 0
    made = ImportanceMatrix(Path("m"), {"x.weight": Entry(sums * 7, counts)})
    weights = importance_for(made, tensor("x.weight", 40, 2, 4))  # 2 of 40: a twentieth
    assert weights is not None
    assert weights[:, 0].tolist() == [1 if i in (3, 5) else 7 for i in range(40)]
    counts[6] = 0
    with pytest.raises(FileError, match=r"3 of 40 experts of 'x\.weight' saw no input"):
        importance_for(made, tensor("x.weight", 40, 2, 4))
    assert importance_for(made, tensor("x.weight", 40, 2, 4), allow_missing_experts=True) is not None


def test_dead_blocks_get_the_least_importance() -> None:
    sums = np.full((1, 96), 8, np.float32)
    sums[0, 10] = 0  # one dead column is left to the encoder
    sums[0, 20] = 6
    sums[0, 32:64] = 0
    made = ImportanceMatrix(Path("m"), {"x.weight": Entry(sums, floats(2)), "y.weight": Entry(sums * 0, floats(2))})
    weights = importance_for(made, tensor("x.weight", 4, 96))
    assert weights is not None
    assert weights[0, 10] == 0
    assert (weights[0, 32:64] == 3).all()
    assert (weights[0, 64:] == 4).all()
    nothing = importance_for(made, tensor("y.weight", 4, 96))
    assert nothing is not None
    assert (nothing == 1).all()


def test_summary_puts_the_most_important_first() -> None:
    found = summary(matrix(a=([[1, 3]], [1]), b=([[8, 0], [9, 9]], [2, 0]), c=([[np.nan, 1]], [1])))
    assert [(s.name[0], s.width, s.experts, s.experts_seen, s.zero_columns, s.non_finite) for s in found] == [
        ("a", 2, 1, 1, 0, 0),
        ("b", 2, 2, 1, 1, 0),
        ("c", 2, 1, 1, 0, 1),
    ]
    assert [s.importance for s in found] == [2, 2, 0.5]


def test_layers_by_importance() -> None:
    entries = {
        "blk.0.a.weight": Entry(np.full((1, 4), 2, np.float32), floats(1)),
        "blk.0.b.weight": Entry(np.full((1, 4), 3, np.float32), floats(1)),
        "blk.1.a.weight": Entry(np.full((1, 4), 9, np.float32), floats(1)),
        "output.weight": Entry(np.full((1, 4), 1, np.float32), floats(1)),
    }
    assert list(layer_importance(summary(ImportanceMatrix(Path("m"), entries))).items()) == [(1, 9), (0, 5), (-1, 1)]
