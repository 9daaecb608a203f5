from __future__ import annotations

import numpy as np

from runtime.importance import Importance


def test_sums_over_calls():
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((n, 8)).astype(np.float32) for n in (3, 5)]
    collected = Importance()
    for part in parts:
        collected.observe("blk.0.attn_q.weight", part)
    whole = np.concatenate(parts).astype(np.float64)
    sums = collected.sums["blk.0.attn_q.weight"]
    np.testing.assert_allclose(sums.squares, (whole**2).sum(0, keepdims=True))
    assert sums.counts.tolist() == [8]
    np.testing.assert_allclose(collected.weights("blk.0.attn_q.weight"), (whole**2).mean(0, keepdims=True), rtol=1e-6)


def test_experts():
    collected = Importance()
    x = np.full((2, 4), 3, np.float32)
    collected.observe("blk.0.ffn_up_exps.weight", x, 1, 3)
    sums = collected.sums["blk.0.ffn_up_exps.weight"]
    assert sums.counts.tolist() == [0, 2, 0]
    assert collected.weights("blk.0.ffn_up_exps.weight").tolist() == [[1] * 4, [9] * 4, [1] * 4]
