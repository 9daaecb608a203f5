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


def test_sums_of_inputs_whatever_the_threads_and_batches():
    x = np.random.default_rng(1).standard_normal((40, 700)).astype(np.float32)
    one, four = Importance(), Importance(threads=4, wanted=lambda name: name == "a")
    one.observe("a", x)
    for part in np.split(x, 5):
        four.observe("a", part)
        four.observe("b", part)
    assert list(four.sums) == ["a"]
    assert np.array_equal(one.sums["a"].squares, four.sums["a"].squares)
    assert np.array_equal(one.sums["a"].inputs, four.sums["a"].inputs)
    np.testing.assert_allclose(one.sums["a"].inputs[0], x.astype(np.float64).sum(0), rtol=1e-9, atol=1e-12)
