from __future__ import annotations

import struct

import numpy as np
import pytest

from quants.errors import FileError, OptionError
from runtime.divergence import compare, divergence, stored_logits
from runtime.perplexity import perplexity

VOCABULARY = 300
rng = np.random.default_rng(0)
TABLE = rng.standard_normal((VOCABULARY, VOCABULARY)).astype(np.float32) * 3
NOISE = rng.standard_normal((VOCABULARY, VOCABULARY)).astype(np.float32) * 0.05
TOKENS = rng.integers(0, VOCABULARY, 200).tolist()


def base(ids, first):
    return TABLE[ids[first:]]


def other(ids, first):
    return (TABLE + NOISE)[ids[first:]]


def log_softmax(rows):
    wide = rows.astype(np.float64)
    return wide - np.log(np.exp(wide).sum(1, keepdims=True))


def test_figures():
    got = divergence(TOKENS, base, other, 32, bos=None)
    at = np.concatenate([np.arange(start + 16, start + 31) for start in range(0, 192, 32)])
    p, q = log_softmax(TABLE[np.array(TOKENS)[at]]), log_softmax((TABLE + NOISE)[np.array(TOKENS)[at]])
    kl = (np.exp(p) * (p - q)).sum(1)
    target = np.array(TOKENS)[at + 1]
    change = np.exp(q[range(len(at)), target]) - np.exp(p[range(len(at)), target])
    assert got.scored == len(at) == 90
    assert got.kl_mean == pytest.approx(kl.mean(), rel=1e-4)
    assert got.kl_median == pytest.approx(np.median(kl), rel=1e-4)
    assert got.kl_99 == pytest.approx(np.quantile(kl, 0.99), rel=1e-4)
    assert got.kl_max == pytest.approx(kl.max(), rel=1e-4)
    assert got.kl_error == pytest.approx(kl.std() / np.sqrt(89), rel=1e-4)
    assert got.same_top == (p.argmax(1) == q.argmax(1)).mean()
    assert got.p_change_mean == pytest.approx(change.mean(), rel=1e-4)
    assert got.p_change_rms == pytest.approx(np.sqrt((change**2).mean()), rel=1e-4)
    assert got.base_perplexity == pytest.approx(perplexity(TOKENS, base, 32, bos=None).perplexity)
    assert got.perplexity == pytest.approx(perplexity(TOKENS, other, 32, bos=None).perplexity)
    ratio = p[range(len(at)), target] - q[range(len(at)), target]
    assert got.perplexity_ratio == pytest.approx(got.perplexity / got.base_perplexity)
    assert got.perplexity_ratio_error == pytest.approx(got.perplexity_ratio * ratio.std() / np.sqrt(89), rel=1e-3)
    assert got.same_top_error == pytest.approx(np.sqrt(got.same_top * (1 - got.same_top) / 89))
    both = p[range(len(at)), target], q[range(len(at)), target]
    assert got.correlation == pytest.approx(np.corrcoef(*both)[0, 1], rel=1e-4)
    np.testing.assert_allclose(got.predictions[:, 0], kl, rtol=1e-3, atol=1e-9)
    assert len(got.chunks) == 6
    assert got.chunks[-1] == got.kl_mean


def test_a_model_does_not_diverge_from_itself():
    got = divergence(TOKENS, base, base, 32, bos=None, chunks=2)
    assert got.kl_max < 1e-12
    assert got.same_top == 1
    assert got.p_change_rms == 0


def test_small_divergences_are_resolved():
    rows = TABLE[:100]
    targets = np.zeros(100, np.int64)
    noise = (NOISE[:100] / 500).astype(np.float32)
    p, q = log_softmax(rows), log_softmax(rows + noise)
    want = (np.exp(p) * (p - q)).sum(1)
    assert want.max() < 1e-7
    np.testing.assert_allclose(compare(rows, rows + noise, targets)[:, 0], want, rtol=0.05, atol=1e-11)


def test_vocabularies_must_be_equal():
    with pytest.raises(OptionError, match=r"\(3, 300\) and \(3, 299\)"):
        compare(TABLE[:3], TABLE[:3, :299], np.zeros(3, np.int64))


def stored(vocabulary: int) -> tuple[bytes, np.ndarray]:
    n_ctx, count = 8, 2
    tokens = np.arange(n_ctx * count, dtype="<i4")
    words = 4 + 2 * ((vocabulary + 1) // 2)
    rows = rng.integers(0, 65536, (count, 3, words)).astype("<u2")
    rows[:, :, :4] = np.frombuffer(struct.pack("<ff", 16 / 65535, -17.5), "<u2")
    header = b"_logits_" + struct.pack("<iii", n_ctx, vocabulary, count)
    return header + tokens.tobytes() + rows.tobytes(), rows[:, :, 4 : 4 + vocabulary] * (16 / 65535) - 17.5


@pytest.mark.parametrize("vocabulary", [10, 11])
def test_stored_logits(vocabulary):
    raw, want = stored(vocabulary)
    got = stored_logits(np.frombuffer(raw, np.uint8))
    assert (got.n_ctx, got.vocabulary, got.tokens.tolist()) == (8, vocabulary, list(range(16)))
    np.testing.assert_allclose(list(got), want, rtol=1e-5)


def test_damaged_stored_logits():
    raw = np.frombuffer(stored(10)[0], np.uint8)
    for damaged in (raw[:-1], raw[:12], raw[1:], raw[:0]):
        with pytest.raises(FileError):
            stored_logits(damaged)
