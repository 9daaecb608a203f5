"""Chances that drafted tokens stand, beside distributions by hand; the check of files; and decoding beside both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguftools.lab.drafts.acceptance import Acceptance, AcceptanceRun, TemperedLogits, lookup_drafts
from gguftools.lab.drafts.simulation import prompts_of
from quants.errors import ModelError
from runtime.evaluation.windows import Window

from ....conftest import ROOT

TEXT = ROOT / "examples" / "persuasion.txt"
AUSTEN = ROOT / "examples" / "austen-4m"


class Said:
    """A model that says the same rows of logits in every window."""

    def __init__(self, probabilities) -> None:
        with np.errstate(divide="ignore"):
            self.rows = np.log(np.array(probabilities, np.float32))

    def logits(self, window, start, stop):
        return self.rows[start:stop]


def window(ids, first=0):
    ids = np.array(ids, np.int64)
    scored = np.arange(first, len(ids) - 1)
    return Window(ids, scored, ids[scored + 1])


def measured(p, q, temperatures, size=3, drafts=None, ids=(0, 1, 0)) -> Acceptance:
    drafts = {"q": Said(q)} if drafts is None else drafts
    return AcceptanceRun([window(ids)], size, Said(p), drafts, None, temperatures, 1).run()["q"]


def test_sums_by_hand():
    """At temperature 1: .2 + .3 + .1 and .5 + .3; at 0.5 squares of these, normed."""
    p, q = [[0.5, 0.3, 0.2], [0.5, 0.4, 0.1]], [[0.2, 0.3, 0.5], [0.6, 0.4, 0.0]]
    found = measured(p, q, (0.0, 0.5, 1.0))
    square = [np.array([[25, 9, 4], [25, 16, 1]]) / [[38], [42]], np.array([[4, 9, 25], [36, 16, 0]]) / [[38], [52]]]
    assert found.stands[0][:, 2] == pytest.approx([0.2 + 0.3 + 0.2, 0.5 + 0.4], rel=1e-6)
    assert found.stands[0][:, 1] == pytest.approx(np.minimum(*square).sum(axis=1), rel=1e-6)
    assert found.stands[0][:, 0].tolist() == [0, 1]
    assert found.agree[0].tolist() == [False, True]


def test_tokens_that_a_draft_lacks_have_probability_0():
    """And those beyond the vocabulary are nobody's: the fourth column is padding of the matrix."""
    found = measured([[0.5, 0.3, 0.2, 1e-30]] * 2, [[0.25, 0.75]] * 2, (1.0,))
    assert found.stands[0][:, 0] == pytest.approx([0.25 + 0.3] * 2, rel=1e-6)
    found = measured([[0.5, 0.5]] * 2, [[0.25, 0.25, 0.5]] * 2, (1.0,), size=2)
    assert found.stands[0][:, 0] == pytest.approx([1, 1], rel=1e-6)


def test_numbers_that_are_none():
    good = [[0.5, 0.5]] * 2
    drafts = {"q": Said([[0.5, np.nan]] * 2), "r": Said(good)}
    found = AcceptanceRun([window((0, 1, 0))], 2, Said(good), drafts, None, (1.0,), 1).run()
    assert "not finite" in (found["q"].problem or "")
    assert found["r"].problem is None
    assert found["r"].stands[0][:, 0] == pytest.approx([1, 1])
    with pytest.raises(ModelError, match="not finite"):
        measured([[0.5, np.nan]] * 2, good, (1.0,), size=2)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.floats(0.2, 3))
def test_overlap_is_one_less_the_total_variation(seed, temperature):
    rows = np.random.default_rng(seed).normal(0, 3, (2, 4, 40)).astype(np.float32)
    e = np.exp(rows.astype(np.float64) / temperature)
    p, q = e / e.sum(axis=2, keepdims=True)
    tempered = TemperedLogits(rows[0], temperature)
    assert tempered.overlap(rows[1]) == pytest.approx(1 - np.abs(p - q).sum(axis=1) / 2, abs=1e-5)
    assert tempered.overlap(rows[0]) == pytest.approx(np.ones(4), abs=1e-6)
    tokens = np.array([3, -1, 39, 0])
    expected = np.where(tokens < 0, 0, p[np.arange(4), tokens])
    assert tempered.probability(np.arange(4), tokens) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_what_is_looked_up():
    """1 2 3 4 came before, so 3 4 is drafted behind 1 2; the text goes on with 3 5."""
    found = lookup_drafts(window([1, 2, 3, 4, 9, 1, 2, 3, 5], first=5))
    assert found[0].tokens == []
    assert found[1].tokens[:2] == [3, 4]
    assert found[1].matched == 1
    assert found[2].tokens[0] == 4
    assert found[2].matched == 0


def test_chances_of_what_is_looked_up():
    """The model gives .75 to each right token and .25 to the wrong one that is drafted behind the first."""
    ids = [1, 2, 3, 4, 0, 1, 2, 3, 5]
    p = np.full((9, 6), 1e-9)
    for place, token in enumerate(ids[6:], 5):
        p[place - 5, token] = 0.75
    p[2] = [0, 0, 0, 0, 0.25, 0.75]
    found = AcceptanceRun([window(ids, first=5)], 6, Said(p), {}, "lookup", (0.0, 1.0), 1).run()["lookup"]
    assert found.drafted[0][0] == 0
    assert found.matched[0].tolist() == [0, 1, 0]
    assert found.own[0][:, 1] == pytest.approx([1, 1, 0.75], rel=1e-6)
    assert found.missed[0][:, 1] == pytest.approx([0, 0.25, 0.25], rel=1e-6)
    assert found.stands[0][:, 1] == pytest.approx([0, 1, 0.25], rel=1e-6)
    assert found.stands[0][:, 0].tolist() == [0, 1, 0]
    assert found.agree[0].tolist() == [False, True, False]


def test_prompts_leave_room_in_a_window():
    """Of two texts in turn: at least four where 32 tokens each are wanted, more where a window would overflow."""
    texts = [[window(range(10 * i, 10 * i + 8)) for i in range(3)], [window(range(90, 98))]]
    found = prompts_of(texts, 64, 128)
    assert [each[0] for each in found.texts] == [0, 90, 10, 20]
    assert found.tokens == 32
    assert [len(each) for each in prompts_of(texts, 16, 128).texts] == [4] * 4
    assert prompts_of(texts, 16, 128).tokens == 12
    assert len(prompts_of(texts, 64, 40).texts) == 1
    assert prompts_of(texts, 64, 40).tokens == 40
