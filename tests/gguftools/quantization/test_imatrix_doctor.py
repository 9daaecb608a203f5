"""What is found wrong with an importance matrix, and what fills it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguftools.quantization.imatrix import ImportanceMatrix, merge, read_imatrix, write_imatrix
from gguftools.quantization.imatrix_doctor import Finding, examine, filled
from gguftools.quantization.imatrix_entry import Entry
from quants import Tensor, from_array
from quants.errors import FileError


def entry(sums: list[list[float]], counts: list[float], inputs: list[list[float]] | None = None) -> Entry:
    rows = None if inputs is None else np.array(inputs, np.float32)
    return Entry(np.array(sums, np.float32), np.array(counts, np.float32), rows)


def matrix(**entries: Entry) -> ImportanceMatrix:
    named = {f"blk.0.{name}.weight": each for name, each in entries.items()}
    return ImportanceMatrix(Path("m.gguf"), named, ("a.txt",), 1)


def tensors(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    names = {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    return {name: from_array(name, np.zeros(shape, np.float32)) for name, shape in names.items()}


def said(found: list[Finding]) -> list[str]:
    return [str(each) for each in found]


def test_a_good_one() -> None:
    good = matrix(ffn_up=entry([[9, 9]], [9], [[1, -2]]), ffn_down_exps=entry([[32, 40]] * 3, [32] * 3))
    model = tensors(ffn_up=(4, 2), ffn_down_exps=(3, 4, 2), ffn_norm=(2,), ffn_gate_inp=(3, 2))
    assert examine(good, model) == []


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (entry([[1, np.nan]], [9]), "error: blk.0.ffn_up.weight: 1 non-finite columns: 1"),
        (entry([[1, -1]], [9]), "error: blk.0.ffn_up.weight: 1 negative columns: 1"),
        (entry([[1, 0]], [9]), "warning: blk.0.ffn_up.weight: no input in 1 columns: 1"),
        (entry([[0, 0]], [0]), "warning: blk.0.ffn_up.weight: saw no input"),
        (entry([[1, 1]], [9], [[1, np.inf]]), "error: blk.0.ffn_up.weight: sums of inputs are not finite"),
        (
            entry([[1, 1]], [9], [[1, 4]]),
            "error: blk.0.ffn_up.weight: 1 sums of inputs are larger than their squares' allow",
        ),
        (
            entry([[1, 1, 1]], [2]),
            "warning: the text is too short: 1 weights saw fewer inputs than they have columns (2 for 3)",
        ),
        (
            entry([[0, 0], [1, 1], [2, 2]], [0, 5, 40]),
            "warning: blk.0.ffn_up.weight: 1 of 3 experts saw no input: 0;"
            "warning: blk.0.ffn_up.weight: 1 of 3 experts saw fewer than 32 inputs: 1",
        ),
    ],
)
def test_what_is_wrong(bad: Entry, expected: str) -> None:
    assert said(examine(matrix(ffn_up=bad))) == expected.split(";")


def test_of_another_model() -> None:
    found = said(
        examine(
            matrix(ffn_up=entry([[1, 1]], [9]), attn_x=entry([[1, 1]], [9])),
            tensors(ffn_up=(4, 3), ffn_gate=(4, 3), ffn_norm=(3,)),
        )
    )
    assert found == [
        "error: blk.0.ffn_up.weight: 2 values where the model has 3 columns: the matrix is of another model",
        "error: blk.0.attn_x.weight: the model has no such weight: the matrix is of another model",
        "warning: nothing on 1 weights of the model: blk.0.ffn_gate.weight",
    ]


def test_a_gate_takes_what_its_up_projection_saw() -> None:
    model = tensors(ffn_up=(4, 2), ffn_gate=(4, 2), ffn_down=(2, 4))
    more, lines = filled(matrix(ffn_up=entry([[1, 2]], [9])), model)
    assert lines == ["blk.0.ffn_gate.weight takes what blk.0.ffn_up.weight saw: the inputs are the same"]
    assert set(more.entries) == {"blk.0.ffn_up.weight", "blk.0.ffn_gate.weight"}
    assert more.entries["blk.0.ffn_gate.weight"].sums.tolist() == [[1, 2]]


def test_experts_that_saw_little_are_drawn_to_the_mean() -> None:
    """They get the inputs that they lack, each like the mean of the 12 that there are: 36 / 12 and 12 / 12."""
    few = entry([[7, 7], [6, 2], [30, 10]], [0, 2, 10], [[0, 0], [2, 0], [10, 12]])
    more, lines = filled(matrix(ffn_up_exps=few), min_rows=4)
    after = more.entries["blk.0.ffn_up_exps.weight"]
    assert after.counts.tolist() == [4, 4, 10]
    assert after.sums.tolist() == [[12, 4], [12, 4], [30, 10]]
    assert after.inputs is not None
    assert after.inputs.tolist() == [[4, 4], [4, 2], [10, 12]]
    assert lines == [
        "blk.0.ffn_up_exps.weight: 2 of 3 experts saw fewer than 4 inputs (1 none);"
        " the mean of all experts stands for the others"
    ]


def test_nothing_is_filled_unasked() -> None:
    few = matrix(ffn_up_exps=entry([[7, 7], [6, 2]], [0, 2]))
    assert filled(few) == (few, [])


def test_merging_sums_of_inputs_and_chunks_of_other_sizes() -> None:
    one, other = (matrix(ffn_up=entry([[n, 2 * n]], [n], [[-n, n]])) for n in (4.0, 6.0))
    both = merge([one, ImportanceMatrix(Path("b"), other.entries, (), 3, 1024)])
    assert [each.tolist() for each in both.entries["blk.0.ffn_up.weight"] if each is not None] == [
        [[10, 20]],
        [10],
        [[-10, 10]],
    ]
    assert (both.chunks, both.chunk_size) == (7, 512)
    legacy = matrix(ffn_up=entry([[1, 1]], [1]))
    assert merge([one, legacy]).entries["blk.0.ffn_up.weight"].inputs is None


def test_merging_the_legacy_form_which_counts_experts_as_one(tmp_path: Path) -> None:
    experts = matrix(ffn_up_exps=entry([[512, 1024], [2048, 512]], [512, 512]))
    write_imatrix(experts, tmp_path / "m.dat")
    legacy = read_imatrix(tmp_path / "m.dat")
    for both in (merge([experts, legacy]), merge([legacy, experts])):
        assert both.entries["blk.0.ffn_up_exps.weight"].counts.tolist() == [1024, 1024]
        assert both.entries["blk.0.ffn_up_exps.weight"].sums.tolist() == [[1024, 2048], [4096, 1024]]
    with pytest.raises(FileError, match="has shape"):
        merge([experts, matrix(ffn_up_exps=entry([[1, 2, 3]], [1]))])


def test_what_the_legacy_form_leaves_out(tmp_path: Path) -> None:
    """A weight of which no expert saw an input."""
    write_imatrix(matrix(a=entry([[0], [0]], [0, 0]), b=entry([[512]], [512])), tmp_path / "m.dat")
    assert list(read_imatrix(tmp_path / "m.dat").entries) == ["blk.0.b.weight"]
