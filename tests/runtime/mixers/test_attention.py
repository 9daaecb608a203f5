from __future__ import annotations

import math

import numpy as np
import pytest

from runtime.kv_cache import KVCache
from runtime.mixers import attention
from runtime.mixers.attention import AttentionOptions, attend

rng = np.random.default_rng(0)


def exact(q, k, v, positions, scale, window=None, softcap=None, alibi=None, causal=True, sinks=None, bias=None):
    """One query and head at a time, in float64."""
    n, heads, _ = q.shape
    m, kv_heads, width = v.shape
    out = np.zeros((n, heads, width))
    for i, head in np.ndindex(n, heads):
        kv = head // (heads // kv_heads)
        scores = k[:, kv].astype(np.float64) @ q[i, head].astype(np.float64) * scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        if bias is not None:
            scores = scores + bias[head, i]
        distance = positions[i] - np.arange(m)
        if alibi is not None:
            scores = scores - alibi[head] * np.abs(distance)
        hidden = (distance < 0) & causal
        if window:
            hidden |= np.abs(distance) >= window
        weights = np.where(hidden, 0, np.exp(scores))
        total = weights.sum() + (0 if sinks is None else np.exp(float(sinks[head])))
        out[i, head] = weights / total @ v[:, kv] if total else 0
    return out.reshape(n, -1)


def some(n, m, heads, kv_heads, d=16, dv=None):
    shapes = [(n, heads, d), (m, kv_heads, d), (m, kv_heads, dv or d)]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((50, 50, 9, 3), {}),
        ((1, 77, 8, 8), {}),
        ((5, 40, 4, 1, 16, 24), {}),
        ((300, 300, 4, 2), {}),
        ((150, 333, 6, 2, 80, 48), {}),
        ((40, 700, 4, 4, 64, 64), {"window": 130}),
        ((13, 13, 1, 1, 3, 5), {}),
        ((300, 300, 4, 2), {"window": 40}),
        ((9, 300, 4, 2), {"window": 40}),
        ((20, 20, 4, 2), {"softcap": 5.0}),
        ((20, 30, 4, 4), {"alibi": np.array([0.5, 0.25, 0.125, 0.0625], np.float32)}),
        ((20, 20, 4, 4), {"causal": False}),
        ((60, 60, 4, 4), {"causal": False, "window": 7}),
        ((20, 20, 4, 2), {"sinks": np.array([0.1, -2, 3, 0], np.float32)}),
        ((20, 20, 4, 2), {"bias": rng.standard_normal((4, 20, 20)).astype(np.float32), "causal": False}),
        ((30, 30, 4, 2), {"bias": rng.standard_normal((4, 30, 30)).astype(np.float32), "window": 5}),
    ],
)
def test_attend(shape, options):
    q, k, v = some(*shape)
    positions = np.arange(shape[1] - shape[0], shape[1])
    got = attend(q, k, v, positions, 0.3, AttentionOptions(**options))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, exact(q, k, v, positions, 0.3, **options), atol=1e-5)


def test_sequences_do_not_see_each_other():
    q, k, v = some(90, 90, 4, 2)
    got = attend(q, k, v, np.arange(30), 0.25, sequences=3)
    for start in (0, 30, 60):
        part = slice(start, start + 30)
        want = attend(q[part], k[part], v[part], np.arange(30), 0.25)
        np.testing.assert_allclose(got[part], want, atol=1e-6)


def test_heads_cut_from_a_fused_product():
    fused = rng.standard_normal((20, 12, 16)).astype(np.float32)
    q, k, v = fused[:, :4], fused[:, 4:8], fused[:, 8:]
    want = exact(q, k, v, np.arange(20), 0.25)
    np.testing.assert_allclose(attend(q, k, v, np.arange(20), 0.25), want, atol=5e-6)


def test_blocks_and_threads_change_nothing_but_rounding(monkeypatch):
    """Texts so long that a block has few queries; any number of threads gives the same bits."""
    q, k, v = some(500, 500, 6, 2, 32)
    whole = attend(q, k, v, np.arange(250), 0.25, sequences=2)
    monkeypatch.setattr(attention, "ROOM", 1 << 12)
    monkeypatch.setattr(attention, "MIN_OPS_PER_THREAD", 0)
    found = [attend(q, k, v, np.arange(250), 0.25, sequences=2, threads=threads) for threads in (1, 2, 3)]
    np.testing.assert_allclose(found[0], whole, atol=2e-6)
    for each in found[1:]:
        np.testing.assert_array_equal(each, found[0])


@pytest.mark.parametrize("queries", [1, 30])
def test_what_is_not_a_number_is_seen_by_those_who_look_at_it(queries):
    q, k, v = some(queries, 40, 4, 2)
    k[35], v[38] = np.nan, np.nan
    positions = np.arange(40 - queries, 40)
    found = np.isfinite(attend(q, k, v, positions, 0.25)).all(axis=1)
    assert not found[positions >= 35].any()  # some before them, too, for whom it weighs 0


def test_huge_scores_do_not_overflow():
    q, k, v = some(4, 4, 1, 1)
    got = attend(q * 1000, k, v, np.arange(4), 1.0)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got[0], v[0, 0], rtol=1e-6)


def test_cache_gives_what_one_shot_gives():
    q, k, v = some(150, 150, 4, 2)
    whole = attend(q, k, v, np.arange(150), 0.25)
    cache, parts = KVCache(), []
    for start, stop in [(0, 1), (1, 2), (2, 60), (60, 64), (64, 65), (65, 150)]:
        keys, values = cache.append(0, k[start:stop], v[start:stop])
        parts.append(attend(q[start:stop], keys, values, np.arange(start, stop), 0.25))
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=2e-6)
    assert math.isfinite(parts[0].sum())
