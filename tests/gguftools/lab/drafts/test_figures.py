"""What drafts gain, beside sums by hand and cycles that are followed one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gguftools
from gguftools.lab.drafts import costs as draft_costs
from gguftools.lab.drafts.figures import (
    Costs,
    best_length,
    independent_chances,
    independent_tokens,
    lookup_chances,
    mean_cycle,
    runs,
    speedup,
)

from ....archs import checkpoints

SHARES = st.floats(0, 1)


def test_cycles_begin_where_others_end():
    """Chances of 1 and 0: 1 1 | next 0, a cycle of two drafts gives 3 tokens, 3 again, then 1 at a place of 0."""
    found = mean_cycle(independent_chances([np.array([1, 1, 0, 1, 1, 1, 0, 0.0])], 4), 2)
    assert found is not None
    assert found.tokens == pytest.approx((3 + 3 + 1) / 3)
    assert found.accepted == pytest.approx([2 / 3, 1])
    assert found.drafted.tolist() == [0, 0, 1]
    assert found.standard_error is None


def test_two_texts():
    """One gives cycles of 2 tokens, the other of 1: 3 and 6 of them; the residuals 2 - 4/3 and 1 - 4/3 of each."""
    found = mean_cycle(independent_chances([np.ones(6), np.zeros(6)], 1), 1)
    assert found is not None
    assert found.tokens == pytest.approx(12 / 9)
    residuals = [6 - 12 / 9 * 3, 6 - 12 / 9 * 6]
    assert found.standard_error == pytest.approx((sum(each**2 for each in residuals) * 2) ** 0.5 / 9)


def test_a_text_too_short_for_a_cycle():
    assert mean_cycle(independent_chances([np.ones(2)], 3), 3) is None
    assert mean_cycle(independent_chances([], 3), 1) is None
    found = mean_cycle(independent_chances([np.ones(2), np.full(9, 0.5)], 3), 3)
    assert found is not None
    assert found.tokens == pytest.approx(1 + 0.5 + 0.25 + 0.125)


@given(SHARES, st.integers(1, 6))
def test_equal_chances_come_to_the_formula(alpha, length):
    found = mean_cycle(independent_chances([np.full(40, alpha)], length), length)
    assert found is not None
    assert found.tokens == pytest.approx(independent_tokens(alpha, length))


def test_a_long_draft_comes_to_the_limit():
    """1 / (1 - α), as γ grows."""
    found = mean_cycle(independent_chances([np.full(200, 0.7)], 60), 60)
    assert found is not None
    assert found.tokens == pytest.approx(1 / 0.3, rel=1e-6)
    assert independent_tokens(0.7, 60) == pytest.approx(1 / 0.3, rel=1e-6)
    assert independent_tokens(1, 4) == 5


@settings(max_examples=40, deadline=None)
@given(st.lists(SHARES, min_size=3, max_size=9), st.integers(1, 3))
def test_followed_one_by_one(chances, length):
    """All ways that cycles can go, each with its probability."""
    count = tokens = 0.0

    def follow(place: int, weight: float) -> None:
        nonlocal count, tokens
        if place + length > len(chances) or weight == 0:
            return
        count += weight
        reached = weight
        for depth in range(length):
            tokens += reached  # the token that ends here, or is followed by one more
            refused = reached * (1 - chances[place + depth])
            follow(place + depth + 1, refused)
            reached -= refused
        tokens += reached
        follow(place + length + 1, reached)

    follow(0, 1.0)
    found = mean_cycle(independent_chances([np.array(chances)], length), length)
    assert found is not None
    assert found.tokens == pytest.approx(tokens / count)


def test_copies():
    """Of four places the second drafts three tokens, of which one is right, the third two that are right.

    Second: .5, then the wrong token with .25, then the mean of what is known so deep: nothing, 0. Third: .8, .9.
    """
    given = (
        [np.array([0.3, 0.5, 0.8, 0.9])],
        [np.array([0.0, 0.25, 0.0, 0.1])],
        [np.array([0, 1, 2, 0])],
        [np.array([0, 3, 2, 1])],
        3,
    )
    found = lookup_chances(*given)
    assert found.stands[0] == pytest.approx(np.array([[0, 0, 0], [0.5, 0.125, 0], [0.8, 0.72, 0], [0.1, 0, 0]]))
    assert found.drafted.tolist() == [[0, 3, 2, 1]]
    of_two = mean_cycle(found, 2)
    assert of_two is not None
    # a cycle at 0 gives 1 token, so one begins at 1, which ends at 2 with 0.5, at 3 with 0.375; 2 is the last that fits
    assert of_two.tokens == pytest.approx((1 + 1.625 + 0.5 * 2.52) / 2.5)
    assert of_two.drafted.tolist() == pytest.approx([1 / 2.5, 0, 1.5 / 2.5])
    assert of_two.accepted == pytest.approx([(0.5 + 0.5 * 0.8) / 1.5, (0.125 + 0.5 * 0.72) / (0.5 + 0.5 * 0.8)])
    of_two = mean_cycle(lookup_chances(*given, written=True), 2)
    assert of_two is not None
    # the text says that the cycle at 1 ends at 3, where there is no room for two more
    assert of_two.tokens == pytest.approx((1 + 1.625) / 2)
    assert of_two.drafted.tolist() == pytest.approx([0.5, 0, 0.5])
    assert of_two.accepted == pytest.approx([0.5, 0.25])


def test_what_is_not_known_of_a_copy_is_as_what_is():
    """Behind a wrong token: .6 with a weight of .6, and .3 with one of .1, as what came before it had .4 and .9."""
    own, missed = np.array([0.2, 0.4, 0.6, 0.9, 0.3]), np.array([0.3, 0.0, 0.0, 0.0, 0.0])
    found = lookup_chances([own], [missed], [np.array([0, 2, 0, 2, 0])], [np.array([2, 2, 0, 2, 0])], 2)
    mean = (0.6 * 0.6 + 0.1 * 0.3) / 0.7
    assert found.stands[0] == pytest.approx(np.array([[0.3, 0.3 * mean], [0.4, 0.24], [0, 0], [0.9, 0.27], [0, 0]]))


def test_copies_of_what_a_model_wrote():
    """Texts drawn from a model give its true chances on average; the second token is likely where the first one is."""
    random = np.random.default_rng(0)
    p = np.array([[0.95, 0.9], [0.3, 0.1]])[random.integers(0, 2, 4000)]
    same = random.random(p.shape) < p
    matched = np.where(same[:, 0], 1 + same[:, 1], 0)
    missed = np.choose(matched, [p[:, 0], p[:, 1], np.zeros(len(p))])
    own = [np.array([first, second, 0.5]) for first, second in p]
    right, wrong = ([np.array([each, 0, 0]) for each in values] for values in (matched, missed))
    found = lookup_chances(own, wrong, right, [np.array([2, 0, 0])] * len(own), 2)
    assert found.stands[:, 0, 1].mean() == pytest.approx(p.prod(axis=1).mean(), rel=0.02)


def test_runs_of_agreement():
    yes, no = True, False
    first, second = np.array([yes, yes, no, no, yes, no, yes]), np.array([no, yes])
    found = runs([first, second, np.array([yes] * 20 + [no]), np.ones(3, bool)])
    assert found["counts"] == [2, 1, 1, *[0] * 14, 1]  # 0: the second no, and the first of the second text
    assert (found["longest"], found["median"], found["open"]) == (20, 1, 1 + 1 + 3)
    assert found["mean"] == pytest.approx((2 + 0 + 1 + 0 + 20) / 5)
    assert runs([np.ones(2, bool)])["mean"] is None


def test_speedup():
    """Two tokens drafted at 0.1 each and a pass of 1.4: 2.71 / 1.6."""
    chances = independent_chances([np.full(50, 0.9)], 3)
    costs = Costs(0.1, np.array([1, 1.2, 1.4, 3.0]))
    every = [mean_cycle(chances, length) for length in (1, 2, 3)]
    assert [speedup(each, costs) for each in every] == pytest.approx([1.9 / 1.3, 2.71 / 1.6, 3.439 / 3.3])
    assert best_length(every, costs) is every[1]
    assert best_length(every, Costs(1.0, np.ones(4))) is None
    assert best_length([], costs) is None
    assert [each.whole for each in every] == pytest.approx([0.9, 0.81, 0.729])
    read_again = Costs(0.1, costs.verify, last=0.05)
    assert speedup(every[1], read_again) == pytest.approx(2.71 / (1.6 + 0.81 * 0.05))
    drawn = Costs(0.1, costs.verify, drawn=0.01)
    assert speedup(every[1], drawn) == pytest.approx(2.71 / (1.6 + 1.71 * 0.01))


@pytest.mark.parametrize("family", ["mistral3", "qwen3-5"])
def test_what_is_timed_are_the_passes_of_decoding(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """How many tokens are before each pass, and in it; layers with states are taken back each time."""
    checkpoints.build(family, tmp_path / "checkpoint")
    gguftools.convert(tmp_path / "checkpoint", tmp_path / "model.gguf", "f32")
    net = gguftools.load(gguftools.open(tmp_path / "model.gguf"), threads=1)
    ids = [i % 7 + 3 for i in range(20)]
    writer, draft = draft_costs._TargetTimer(net, ids, 8, [1, 2, 4]), draft_costs._DraftTimer(net, ids, 8)
    passes: list[tuple[int, int]] = []
    forward = net.forward

    def noted(tokens: Any, cache: Any, first: int = 0) -> Any:
        passes.append((cache.length, len(tokens)))
        return forward(tokens, cache, first)

    monkeypatch.setattr(net, "forward", noted)
    state = writer.sampler.state
    for _ in range(2):
        seconds, drawing = writer.token()
        assert 0 < drawing < seconds
        assert all(writer.cycle(size) > 0 for size in (4, 2, 1))
        assert all(draft.seconds(size) > 0 for size in (1, 1, 2))
        assert writer.sampler.state == state
    assert passes == [(8, 1), (8, 4), (8, 2), (8, 1), (8, 1), (8, 1), (9, 2)] * 2
    assert writer.cycles.counts.accepted == 0


def test_costs_that_are_timed(monkeypatch: pytest.MonkeyPatch):
    """A pass of the model behind another's costs more than one behind its own, and the draft's likewise."""
    ran: list[str] = []

    def passed(net: str, size: int) -> float:
        changed = ran[-1:] != [net]
        ran.append(net)
        return (2 if net == "model" else 0.2) * (1 + 0.25 * (size - 1)) * (1.5 if changed else 1)

    class Writer:
        def __init__(self, net: str, ids: list[int], before: int, sizes: list[int]) -> None:
            self.net = net

        def token(self) -> tuple[float, float]:
            return passed(self.net, 1), 0.1

        def cycle(self, size: int) -> float:
            return passed(self.net, size)

    class Draft:
        def __init__(self, net: str, ids: list[int], before: int) -> None:
            self.net = net

        def seconds(self, size: int) -> float:
            return passed(self.net, size)

    monkeypatch.setattr(draft_costs, "_TargetTimer", Writer)
    monkeypatch.setattr(draft_costs, "_DraftTimer", Draft)
    alone, (costs,) = draft_costs.timed_costs("model", ["draft"], [1, 2], 3)  # type: ignore[arg-type, list-item]
    verify = alone.verify
    assert alone.drawn == costs.drawn == pytest.approx(0.05)
    np.testing.assert_allclose(verify, [1, 1.25, 1.5, 1.75])
    assert costs.draft == pytest.approx(0.1)
    assert costs.last == pytest.approx(0.1 * 1.5 * 0.25)
    np.testing.assert_allclose(costs.verify[1:], np.array([1.25, 1.5, 1.75]) * 1.5 + 0.05)
    assert costs.verify[0] == 1
