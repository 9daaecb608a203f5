"""The line of a bar."""

from __future__ import annotations

import io
from itertools import pairwise

import pytest
from rich.cells import cell_len
from rich.console import Console

from gguftools.cli.bars import FREE, MIN_BAR, Bar, bytes_details, shorten, window_details

TITLE = "quantize a-model-with-a-long-name-Instruct-f16.gguf"


def line(
    columns: int, in_bytes: bool = True, total: int | None = 25_000_000_000, note: str = "blk.0.attn_q.weight"
) -> str:
    console = Console(file=io.StringIO(), width=columns, force_terminal=True)
    seconds = iter(range(100))
    bar = Bar(bytes_details() if in_bytes else window_details(), console)
    bar.get_time = lambda: float(next(seconds))
    task = bar.add_task(TITLE, total=None, note="")
    for done in (1, 2, 3):
        bar.update(task, completed=done * (total or 0) // 4, total=total, note=note)
    with console.capture() as captured:
        console.print(bar.get_renderable())
    text = Console(width=columns).render_str("").from_ansi(captured.get()).plain
    assert "\n" not in text.rstrip("\n")
    return text.rstrip("\n")


@pytest.mark.parametrize("in_bytes", [True, False])
@pytest.mark.parametrize("columns", range(30, 200, 7))
def test_it_fits_and_the_bar_has_its_room(columns: int, in_bytes: bool):
    text = line(columns) if in_bytes else line(columns, in_bytes, 1000, "PPL 12.3456")
    assert cell_len(text) <= columns - FREE
    assert sum(map(text.count, "━╸╺")) >= MIN_BAR
    assert text.startswith("quan")
    assert "75%" in text or columns < 40


def test_what_is_least_needed_goes_first():
    texts = [line(columns) for columns in range(30, 160, 3)]
    shown = ("75%", "18.8/25.0 GB", "00:0", "GB/s", "blk.0.attn_q.weight")
    for earlier, later in pairwise(shown):
        assert all(earlier in text for text in texts if later in text)
    assert shown[-1] in texts[-1]


def test_no_figures_without_a_total():
    assert not set("0123456789?%") & set(line(120, total=None).partition(".gguf")[2])


def test_titles_are_cut_in_the_middle():
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghij", 5) == "ab…ij"
    assert all(cell_len(shorten("日本語モデル-f16.gguf", n)) <= n for n in range(1, 25))
    assert "…" in line(60)
