"""Tables as text."""

from __future__ import annotations

import random

from gguftools.tables import WIDEST, fold, places, shorten, table

ROWS = [("key", "value"), ("a.rather.long.name", "some words of a value"), ("b", "x" * 70)]


def test_columns_stand_under_each_other():
    assert list(table([("a", "b"), ("long", "1")], "lr")) == ["a     b", "long  1"]
    assert list(table([("日本", "x"), ("abc", "y")])) == ["日本  x", "abc   y"]


def test_one_row_is_one_line_without_a_width():
    assert all("\n" not in text for text in table(ROWS))
    assert len(next(table([*ROWS, ("k" * 5000, "")]))) < WIDEST + 20


def test_words_are_never_cut():
    random.seed(1)
    for _ in range(300):
        rows = [
            tuple(" ".join("w" * random.randrange(1, 30) for _ in range(random.randrange(8))) for _ in range(3))
            for _ in range(4)
        ]
        width = random.randrange(5, 120)
        words = "\n".join(table(rows, "lrl", width)).split()
        assert sorted(words) == sorted(word for row in rows for cell in row for word in cell.split())


def test_what_fits_stays_within_the_width():
    rows = [("name", "what"), ("short", "many words " * 20), ("another", "word")]
    assert max(places(line) for text in table(rows, "", 40) for line in text.splitlines()) <= 40


def test_a_word_wider_than_its_column_has_a_line_of_its_own():
    text = next(table([("k" * 30, "UINT32", "1")], "", 20)).splitlines()
    assert text[0] == "k" * 30
    assert text[1].split() == ["UINT32", "1"]


def test_fold_and_shorten():
    assert fold("one two three", 7) == ["one two", "three"]
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghij", 5) == "ab…ij"
    assert all(places(shorten("日本語モデル-f16.gguf", n)) <= n for n in range(1, 25))
