"""Cuts of large vocabularies, which are partly sorted, beside plain sorts of the whole; equal logits; min_keep."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from runtime.sampling.candidates import candidates, largest
from runtime.sampling.mirostat import mirostat, mirostat_2
from runtime.sampling.truncation import min_p, top_k, top_n_sigma, top_p, typical, xtc

SPREADS = (0.1, 1.0, 3.0, 20.0)
SIZES = (1, 2, 7, 300, 20_000)


def rows():
    for seed, spread in enumerate(SPREADS):
        for size in SIZES:
            logits = (spread * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)
            yield logits
            equal = np.round(logits)
            equal[::3] = -np.inf
            if size > 1:
                yield equal


def prefix(scores: np.ndarray, p: np.ndarray, wanted: float, compare: np.ufunc) -> list[int]:
    """Tokens by descending score, of equal ones the first, until the sum of p is as wanted."""
    order = np.lexsort((np.arange(len(scores)), -scores))
    reached = np.flatnonzero(compare(np.cumsum(p[order]).astype(np.float32), np.float32(wanted)))
    return sorted(order[: reached[0] + 1 if len(reached) else len(order)].tolist())


@pytest.mark.parametrize("wanted", [0.0, 0.3, 0.9, 0.999])
def test_top_p_and_typical_of_any_size(wanted):
    for logits in rows():
        p = softmax(logits.astype(np.float64))
        of = candidates(logits)
        assert sorted(top_p(of, wanted).ids.tolist()) == prefix(p, p, wanted, np.greater_equal)
        surprise = -np.log(p, out=np.full(len(p), -np.inf), where=p > 0)
        distance = np.where(p > 0, np.abs(surprise - float(surprise[p > 0] @ p[p > 0])), np.inf)
        left = typical(of, wanted).ids.tolist()
        expected = prefix(-distance, p, wanted, np.greater)
        assert len(left) == len(expected)
        assert distance[left].sum() == pytest.approx(distance[expected].sum())


@pytest.mark.parametrize("k", [1, 2, 40, 6000, 10**6])
def test_the_largest_of_any_size(k):
    for logits in rows():
        expected = np.lexsort((np.arange(len(logits)), -logits))[:k]
        assert largest(logits, k).tolist() == expected.tolist()
        left = top_k(candidates(logits), k)
        assert left.ids.tolist() == expected.tolist()
        assert left.ordered
        assert top_k(left, 3).ids.tolist() == expected[:3].tolist()


def test_what_is_in_order_is_cut_alike():
    for logits in rows():
        of = candidates(logits)
        ordered = top_k(of, len(logits))
        for sampler, number in ((top_p, 0.8), (min_p, 0.1), (top_n_sigma, 1.0), (xtc, 0.05), (typical, 0.6)):
            left, same = sampler(of, number), sampler(ordered, number)
            assert sorted(left.logits.tolist()) == pytest.approx(sorted(same.logits.tolist()))
            assert not same.ordered or (np.diff(same.logits[same.logits > -np.inf]) <= 0).all()


@pytest.mark.parametrize("keep", [1, 3, 100, 10**6])
def test_min_keep(keep):
    for logits in rows():
        of = candidates(logits)
        kept = min(keep, len(logits))
        assert len(top_p(of, 0.0, keep)) == kept
        assert len(typical(of, 0.0, keep)) == kept
        assert len(min_p(of, 1.0, keep)) >= kept
        assert len(min_p(of, 1.0, keep)) == max(kept, int((logits == logits.max()).sum()))
        left = xtc(of, 0.0, keep)
        assert len(left) == len(logits) or len(left) >= keep


def test_xtc_leaves_one_of_equal_tokens():
    left = xtc(candidates(np.array([1, 1, -9, 1], np.float32)), 0.2)
    assert left.ids.tolist() == [2, 3]
    barred = candidates(np.array([0, -np.inf], np.float32))
    assert xtc(barred, 0.0).ids.tolist() == [0, 1]  # not the one that is out alone


def test_mirostat_of_odd_rows():
    one = candidates(np.array([3.0], np.float32))
    assert mirostat(one, 10.0, 1).ids.tolist() == [0]
    assert mirostat_2(one, -5.0).ids.tolist() == [0]
    alone = candidates(np.array([-np.inf, 3.0, -np.inf], np.float32))
    assert mirostat(alone, 10.0, 3).ids.tolist() == [1]
    assert mirostat_2(alone, 10.0).ids.tolist() == [1]
    flat = candidates(np.zeros(50, np.float32))
    assert len(mirostat(flat, 10.0, 50)) == 50
    assert len(mirostat(flat, -10.0, 50)) == 1
    assert len(mirostat(flat, 1e6, 50)) == 50  # 2^mu would overflow
    assert len(mirostat_2(flat, 5.0)) == 1
    assert len(mirostat_2(flat, 5.7)) == 50
