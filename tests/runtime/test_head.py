from __future__ import annotations

import numpy as np
import pytest

from quants import from_array
from runtime import head
from runtime.evaluation.perplexity import token_losses
from runtime.head import LazyLogits
from tests.one_perplexity import perplexity

rng = np.random.default_rng(0)
WEIGHT = from_array("output.weight", rng.standard_normal((3001, 64)).astype(np.float32) / 2)


def scaled_and_shifted(logits: np.ndarray, first: int) -> np.ndarray:
    return np.add(logits * np.float32(0.5), np.arange(first, first + logits.shape[1], dtype=np.float32) / 1000)


@pytest.mark.parametrize("finish", [None, scaled_and_shifted])
@pytest.mark.parametrize("tile", [1 << 19, 64 * 100])
def test_losses_are_those_of_the_logits(monkeypatch, finish, tile):
    monkeypatch.setattr(head, "TILE", tile)
    x = rng.standard_normal((3, 40, 64)).astype(np.float32)
    targets = rng.integers(0, 3001, (3, 37))
    logits = LazyLogits(x, WEIGHT, finish)
    assert logits.float32().shape == (3, 40, 3001)
    want = [token_losses(window[:37], row) for window, row in zip(logits.float32(), targets, strict=True)]
    np.testing.assert_allclose(logits.losses(targets), want, rtol=3e-6)


def test_nan_is_not_hidden():
    x = np.zeros((2, 64), np.float32)
    x[0, 3] = np.nan
    assert np.isnan(LazyLogits(x, WEIGHT).losses(np.array([1, 2]))).tolist() == [True, False]


@pytest.mark.parametrize("batch", [1, 3])
def test_perplexity_takes_them_instead_of_arrays(batch):
    table = rng.standard_normal((3001, 64)).astype(np.float32)
    tokens = rng.integers(0, 3001, 16 * 5).tolist()
    lazy = perplexity(tokens, lambda ids, first: LazyLogits(table[ids[..., first:]], WEIGHT), 16, bos=7, batch=batch)
    whole = perplexity(tokens, lambda ids, first: table[ids[first:]] @ WEIGHT.float32().T, 16, bos=7)
    np.testing.assert_allclose(lazy.chunks, whole.chunks, rtol=1e-6)
    assert lazy.standard_error == pytest.approx(whole.standard_error, rel=1e-5)
