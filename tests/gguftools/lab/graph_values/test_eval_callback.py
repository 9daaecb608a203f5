"""Places of the numbers that llama-eval-callback prints: three from each end of an axis, all of a short one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguftools.lab.graph_values.eval_callback import is_eval_log, read_eval_log
from quants.errors import FileError


def printed(name: str, operation: str, values: np.ndarray) -> str:
    """An array as llama.cpp prints it, of up to four axes, the slowest first."""
    whole = values.reshape((1,) * (4 - values.ndim) + values.shape)
    sizes = ", ".join(map(str, whole.shape[::-1]))
    lines = [f"common_debug_cb_eval: {name:>24} = (f32) {operation:>10}(x{{{sizes}}}, }}) = {{{sizes}}}"]

    def rows(array: np.ndarray, depth: int) -> None:
        indent = " " * 4 * depth
        if array.ndim == 1:
            words = [f"{value:12.4f}" for value in array]
            ends = [*words[:3], "   ...", *words[-3:]] if len(words) > 6 else words
            lines.append(f"{indent}[{', '.join(ends)}  ],")
            return
        lines.append(f"{indent}[")
        for i, each in enumerate(array):
            if i == 3 and len(array) > 6:
                lines.append(f"{indent}    ..., ")
            if len(array) <= 6 or i < 3 or i >= len(array) - 3:
                rows(each, depth + 1)
        lines.append(f"{indent}],")

    for each in whole:
        rows(each, 1)
        lines.append(f"    sum = {whole.sum():f}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("shape", [(3,), (7, 9), (4, 5), (8, 7, 9), (7, 4, 3), (12, 9, 20)])
def test_each_number_has_its_place(tmp_path: Path, shape: tuple[int, ...]):
    values = np.random.default_rng(0).normal(size=shape).round(4)
    (tmp_path / "log").write_text(printed("Qcur-0", "MUL_MAT", values))
    assert is_eval_log(tmp_path / "log")
    found = read_eval_log(tmp_path / "log").find("Qcur-0", 0)
    assert found is not None
    assert found.count == values.size
    assert np.array_equal(values.reshape(-1)[found.places], found.values)
    assert len(found.places) == np.prod([min(size, 6) for size in shape])
    assert found.sum == pytest.approx(values.sum(), abs=1e-5)


def test_of_one_name_the_stage_is_found(tmp_path: Path):
    one, two, three = (np.full((2, 4), value) for value in (1.0, 2.0, 3.0))
    text = printed("Qcur-0", "MUL_MAT", one) + printed("Qcur-0", "ADD", two) + printed("Qcur-0", "ROPE", three)
    text += printed("Qcur-0 (view)", "VIEW", one)
    (tmp_path / "log").write_text("number of input tokens = 2\n  17\n  4\n" + text)
    log = read_eval_log(tmp_path / "log")
    assert log.tokens == (17, 4)
    assert [log.find(name, 0).values[0] for name in ("Qcur-0", "Qcur_rope-0")] == [2, 3]
    assert log.find("Kcur-0", 0) is None
    assert log.find("Qcur-1", 1) is None


def test_what_is_no_log(tmp_path: Path):
    (tmp_path / "log").write_text("Qcur-0 = 3\n")
    assert not is_eval_log(tmp_path / "log")
    assert not is_eval_log(tmp_path)
    with pytest.raises(FileError, match="has no values of nodes"):
        read_eval_log(tmp_path / "log")
