"""Names that were mistyped."""

from __future__ import annotations

import pytest

from quants.spelling import did_you_mean, nearest

KNOWN = ("Q4_K_M", "Q4_K_S", "Q8_0", "IQ4_XS", "llama.context_length")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("q4km", ["Q4_K_M"]),  # case and punctuation aside it is one of them: no other is offered
        ("Q4-K-S", ["Q4_K_S"]),
        ("llama.contxt_length", ["llama.context_length"]),
        ("nothing like it", []),
        ("", []),
    ],
)
def test_nearest(word, meant):
    assert nearest(word, KNOWN) == meant


def test_names_that_fold_alike_are_both_offered():
    assert nearest("ab", ["a_b", "a.b", "c"]) == ["a_b", "a.b"]


def test_hint():
    assert did_you_mean("Q8_1", KNOWN) == "did you mean Q8_0?"
    assert did_you_mean("xyz", KNOWN) is None
    assert did_you_mean("xyz", KNOWN, "they are …") == "they are …"


def test_a_huge_word_is_compared_by_its_beginning():
    assert nearest("q" * 10_000_000, KNOWN) == []
