from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import log_softmax

from quants.errors import ModelError
from runtime.sampling.logprobs import token_logprobs


def test_logprobs_are_those_of_the_whole_vocabulary():
    logits = (5 * np.random.default_rng(0).standard_normal(1000)).astype(np.float32)
    expected = log_softmax(logits.astype(np.float64))
    order = np.argsort(-expected)
    for rank in (1, 7, 1000):
        found = token_logprobs(logits, int(order[rank - 1]), 5)
        assert (found.token, found.rank) == (order[rank - 1], rank)
        assert found.logprob == pytest.approx(expected[found.token])
        assert found.ids.tolist() == order[:5].tolist()
        assert found.logprobs == pytest.approx(expected[order[:5]])


def test_none_of_the_likeliest_and_tokens_that_cannot_come():
    found = token_logprobs(np.array([0, -np.inf, 0], np.float32), 1, 0)
    assert found.as_dict() == {"token": 1, "logprob": None, "rank": 3, "top": []}
    found = token_logprobs(np.array([0, -np.inf, 0], np.float32), 2, 9)
    assert json.loads(json.dumps(found.as_dict()))["top"][2] == {"token": 1, "logprob": None}
    assert found.rank == 1


def test_nan_is_refused():
    with pytest.raises(ModelError, match="1 of 2 logits are NaN"):
        token_logprobs(np.array([0, np.nan], np.float32), 0, 1)
