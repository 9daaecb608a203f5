"""The line of a bar."""

from __future__ import annotations

import pytest

from gguftools.progress import LEAST_BAR, Pace, clock, line
from gguftools.tables import places

FIGURES = ["  4 %", "1.00/25.00 GB", "1:02:03 left", "100.00 MB/s"]


@pytest.mark.parametrize("columns", range(30, 200, 7))
def test_it_fits_and_the_bar_has_its_room(columns: int):
    text = line("quantize a-model-with-a-long-name-Instruct-f16.gguf", 0.5, FIGURES, "blk.0.attn_q.weight", columns)
    assert places(text) < columns
    assert text.count("━") + text.count("─") >= LEAST_BAR or columns < 40
    assert "4 %" in text


def test_what_is_least_needed_goes_first():
    texts = [line("title", 0.5, FIGURES, "some tensor's name", columns) for columns in range(30, 140)]
    for earlier, later in (("left", "MB/s"), ("GB", "left"), ("%", "GB"), ("MB/s", "tensor")):
        assert all(earlier in text for text in texts if later in text)


def test_without_a_total():
    assert line("title", None, (), "what it is at", 80) == "title  what it is at"


def test_pace_is_that_of_the_last_seconds():
    pace = Pace()
    assert pace.at(0.0, 0) == pace.at(0.5, 100) == 0.0
    assert pace.at(2.0, 200) == 100.0
    for second in range(3, 60):
        rate = pace.at(float(second), 200 + 10 * second)
    assert rate == pytest.approx(10)


def test_clock():
    assert [clock(seconds) for seconds in (0.4, 7, 750, 3723)] == ["0:00", "0:07", "12:30", "1:02:03"]
