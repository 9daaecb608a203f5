from __future__ import annotations

import math

import numpy as np
import pytest

from quants.errors import OptionError
from runtime.evaluation.perplexity import perplexities, token_losses, windows
from tests.one_perplexity import perplexity

VOCABULARY = 50


def text(n: int) -> list[int]:
    return np.random.default_rng(0).integers(1, VOCABULARY, n).tolist()


def model(ids, first):
    """Logits that depend on every id up to a position, so that windows, BOS and positions all matter."""
    seen = np.cumsum(ids, dtype=np.float64)[first:]
    return (4 * np.sin(seen[:, None] * 0.01 + np.arange(VOCABULARY))).astype(np.float32)


def log_softmax(row):
    wide = row.astype(np.float64)
    return wide - np.log(np.exp(wide).sum())


def by_hand(tokens, n_ctx, bos, starts, first):
    losses, running = [], []
    for start in starts:
        ids = np.array(tokens[start : start + n_ctx])
        if bos is not None:
            ids[0] = bos
        logits = model(ids, 0)
        for position in range(first, n_ctx - 1):
            losses.append(-log_softmax(logits[position])[tokens[start + position + 1]])
        running.append(math.exp(np.mean(losses)))
    error = running[-1] * math.sqrt((np.mean(np.square(losses)) - np.mean(losses) ** 2) / (len(losses) - 1))
    return running, error


@pytest.mark.parametrize("bos", [None, 0])
def test_protocol(bos):
    tokens, reports = text(107), []
    got = perplexity(tokens, model, 16, bos=bos, progress=lambda *report: reports.append(report))
    running, error = by_hand(tokens, 16, bos, range(0, 96, 16), 8)
    np.testing.assert_allclose(got.chunks, running, rtol=1e-6)
    assert got.perplexity == got.chunks[-1]
    assert got.standard_error == pytest.approx(error, rel=1e-5)
    assert (got.tokens, got.scored) == (96, 6 * 7)
    assert reports == [(i + 1, 6, got.chunks[i]) for i in range(6)]


def test_stride():
    tokens = text(107)
    got = perplexity(tokens, model, 16, bos=0, stride=4)
    running, _ = by_hand(tokens, 16, 0, range(0, 4 * 23, 4), 11)  # ceil((107 - 16) / 4) windows
    np.testing.assert_allclose(got.chunks, running, rtol=1e-6)
    assert got.scored == 23 * 4


def test_fewer_chunks():
    tokens = text(107)
    whole, two = (perplexity(tokens, model, 16, bos=0, chunks=chunks) for chunks in (None, 2))
    assert two.chunks == whole.chunks[:2]


def test_several_texts():
    """Each as alone, and all predictions together; no window has two of them."""
    first, second, reports = text(107), text(200)[120:], []
    plans = [windows(len(each), 16, chunks=4) for each in (first, second)]
    both, each = perplexities([first, second], model, plans, bos=0, progress=lambda *report: reports.append(report))
    assert each == [perplexity(tokens, model, 16, bos=0, chunks=4) for tokens in (first, second)]
    assert both.perplexity == pytest.approx(math.sqrt(each[0].perplexity * each[1].perplexity), rel=1e-12)
    running, error = by_hand(first[:64] + second[:64], 16, 0, range(0, 128, 16), 8)
    np.testing.assert_allclose(both.chunks, running, rtol=1e-6)
    assert both.standard_error == pytest.approx(error, rel=1e-5)
    assert (both.tokens, both.scored) == (128, 8 * 7)
    assert reports == [(i + 1, 8, both.chunks[i]) for i in range(8)]


@pytest.mark.parametrize("batch", [2, 4])
def test_several_windows_at_once(batch):
    def forward(ids, first):
        assert ids.shape[0] <= batch
        return (model(window, first) for window in ids)

    tokens = text(100)
    assert perplexity(tokens, forward, 16, bos=0, batch=batch) == perplexity(tokens, model, 16, bos=0)


def test_only_scored_positions_are_asked_for():
    assert windows(100, 16).first == 8
    assert windows(100, 16).scored == 7
    assert windows(1024, 512).scored == 255
    assert windows(100, 17).first == 8
    assert windows(100, 17).scored == 8


@pytest.mark.parametrize(
    ("tokens", "n_ctx", "options"),
    [
        (31, 16, {}),
        (0, 16, {}),
        (100, 2, {}),
        (100, 16, {"stride": 16}),
        (17, 16, {"stride": 4}),
        (99, 16, {"chunks": 0}),
    ],
)
def test_refused(tokens, n_ctx, options):
    with pytest.raises(OptionError):
        perplexity(text(tokens), model, n_ctx, bos=None, **options)


def test_losses_of_large_vocabularies_and_values():
    logits = (np.random.default_rng(0).standard_normal((40, 130_001)) * 8).astype(np.float32)
    logits[0] += 1000
    targets = np.arange(40) * 3000
    want = [-log_softmax(row - row.max())[target] for row, target in zip(logits, targets, strict=True)]
    np.testing.assert_allclose(token_losses(logits, targets), want, rtol=1e-7)


def test_nan_is_not_hidden():
    logits = np.zeros((2, 100), np.float32)
    logits[0, 50] = np.nan
    assert np.isnan(token_losses(logits, np.array([3, 3]))).tolist() == [True, False]
