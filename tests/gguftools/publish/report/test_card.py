"""The table for a model card, and the numbers in it."""

from __future__ import annotations

import math

import pytest

from gguftools.publish.report.card import COLUMNS, markdown
from gguftools.publish.report.numbers import byte_size, percent, significant, with_error
from gguftools.publish.report.results import labels
from quants.errors import FileError

from .example import results


def test_a_table_has_a_line_for_each_file_and_one_for_the_base():
    lines = markdown(results(3)).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 1 + 3
    assert all(len(line.replace("\\|", "").split("|")) == len(COLUMNS) + 2 for line in table)
    assert table[3].split(" | ")[1:5] == ["143 MB", "8.50", "16.43 ± 0.32", "1.0002"]
    assert "6,120 predictions on novel, code" in lines[-1]


def test_names_cannot_break_the_table():
    data = results(1)
    data["files"][0]["file"] = "a|b\n<b>*x*\x1b.gguf"
    row = markdown(data).splitlines()[3]
    assert row.startswith("| a\\|b\\\\n\\<b\\>\\*x\\*\\\\x1b.gguf |")


def test_lower_bounds_are_called_so():
    data = results(2)
    data["files"][0]["lower_bound"] = True
    said = markdown(data)
    assert said.count("≥") == 2
    assert "lower bounds" in said
    with pytest.raises(FileError):
        markdown({"files": []})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (0.012345, "0.0123"),
        (123.4, "123"),
        (-0.5, "−0.500"),
        (1.5e-7, "1.5e−7"),
        (math.inf, "∞"),
        (math.nan, "–"),
        (None, "–"),
        (2e7, "2e7"),
    ],
)
def test_numbers_have_the_digits_that_mean_something(value: float | None, shown: str):
    assert significant(value) == shown


def test_errors_sizes_and_shares():
    assert with_error(16.4213, 0.0312) == "16.421 ± 0.031"
    assert with_error(0.5, 0.0) == with_error(0.5, None) == "0.500"
    assert [byte_size(size) for size in (143e6, 2.5e9, 12, None)] == ["143 MB", "2.50 GB", "12 bytes", "–"]
    assert (percent(0.98765), percent(math.inf), percent(None)) == ("98.77 %", "∞ %", "–")


def test_files_have_short_labels_that_differ():
    assert labels(["a/m-Q8_0.gguf", "a/m-Q4_0.gguf"], ["Q8_0", "Q4_0"]) == ["Q8_0", "Q4_0"]
    assert labels(["m-mine-Q4.gguf", "m-theirs-Q4.gguf"], ["Q4_0", "Q4_0"]) == ["mine-Q4", "theirs-Q4"]
    assert len(set(labels(["m.gguf"] * 4, [""] * 4))) == 4
    assert labels(["m.gguf", "m.gguf", "m (2).gguf"], [""] * 3)[0] == "m"
    assert len(labels(["x" * 300], [""])[0]) <= 28
