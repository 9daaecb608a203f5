"""Tables as text."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence

from rich.console import Console

from gguftools.cli.ui import WIDEST, folded, places, table

ROWS = [("key", "value"), ("a.rather.long.name", "some words of a value"), ("b", "x" * 70)]


def on_terminal(rows: Sequence[Sequence[str]], right: str, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as captured:
        console.print(*folded(rows, right, width), sep="", end="")
    return captured.get()


def test_columns_stand_under_each_other():
    assert list(table([("a", "b"), ("long", "1")], "lr")) == ["a     b", "long  1"]
    assert list(table([("日本", "x"), ("abc", "y")])) == ["日本  x", "abc   y"]
    assert on_terminal([("a", "b"), ("long", "1")], "lr", 30).splitlines() == ["a     b", "long  1"]


def test_one_row_is_one_line_in_a_pipe():
    assert all("\n" not in text for text in table(ROWS))
    assert len(next(table([*ROWS, ("k" * 5000, "")]))) < WIDEST + 20


def test_words_that_fit_the_terminal_are_not_cut():
    random.seed(1)
    for _ in range(200):
        rows = [
            tuple(" ".join("w" * random.randrange(1, 30) for _ in range(random.randrange(8))) for _ in range(3))
            for _ in range(4)
        ]
        width = random.randrange(30, 120)
        shown = on_terminal(rows, "", width)
        assert sorted(shown.split()) == sorted(word for row in rows for cell in row for word in cell.split())
        assert max(map(places, shown.splitlines()), default=0) <= width


def test_a_word_wider_than_the_terminal_is_all_there():
    shown = on_terminal([("name", "what"), ("k" * 99, "a b")], "", 20)
    assert shown.count("k") == 99
    assert shown.split()[-2:] == ["a", "b"]


def test_a_word_wider_than_its_column_has_a_line_of_its_own():
    rows = [("key", "type", "value"), ("k" * 18, "UINT32", "1"), ("short", "STRING", "yes")]
    assert [line.rstrip() for line in on_terminal(rows, "", 24).splitlines()] == [
        "key    type    value",
        "k" * 18,
        "       UINT32  1",
        "short  STRING  yes",
    ]


def test_text_is_no_markup():
    assert on_terminal([("[red]", ":smile:")], "", 40) == "[red]  :smile:\n"
