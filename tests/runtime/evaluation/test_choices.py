"""What is scored of each answer, and that padding and batches change no score."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gguftools.models.model import open
from quants.errors import ModelError
from runtime.evaluation.choices import Prediction, common_prefix, continuations, mean_log_probabilities, substitutions
from runtime.model import RunningModel

from ...conftest import DATA

FILE = DATA / "golden" / "e2e" / "tiny-dense-f16.gguf"


def test_what_is_common():
    assert common_prefix([[1, 2, 3], [1, 2, 4, 5]]) == 2
    assert common_prefix([[1, 2], [1, 2, 3]]) == 2
    assert common_prefix([[1], [2]]) == 0


def test_continuations_count_from_where_they_differ():
    task = continuations([[1, 2, 3, 4], [1, 2, 5]])
    assert task.scored == ((Prediction(0, 1, 3), Prediction(0, 2, 4)), (Prediction(1, 1, 5),))
    assert task.tokens == 2 + 2 + 1


def test_an_answer_that_begins_all_others_has_a_score():
    assert continuations([[1, 2], [1, 2, 3]]).scored == (
        (Prediction(0, 0, 2),),
        (Prediction(1, 0, 2), Prediction(1, 1, 3)),
    )


def test_what_follows_a_choice_counts():
    """Four tokens behind the common one, and the last does not count."""
    task = substitutions([[1, 9, 3, 4, 5], [1, 7, 8, 3, 4, 5]], [2, 3])
    assert task.scored == ((Prediction(0, 1, 3), Prediction(0, 2, 4)), (Prediction(1, 2, 3), Prediction(1, 3, 4)))


def test_a_choice_at_the_end_counts_itself():
    """The reference's slip: the second sentence's first token by the logits behind the first sentence."""
    task = substitutions([[1, 2, 9, 3], [1, 2, 7, 3]], [3, 3])
    assert task.scored == ((Prediction(0, 1, 9),), (Prediction(0, 3, 7),))
    task = substitutions([[1, 2, 9, 4, 3], [1, 2, 7, 4, 3]], [3, 3])
    assert task.scored[1] == (Prediction(0, 4, 7), Prediction(1, 2, 4))


@pytest.fixture(scope="module")
def net() -> RunningModel:
    source = open(FILE)
    return RunningModel(source.metadata, source.tensors, precision="exact")


def test_scores_are_means_of_log_probabilities(net):
    rng = np.random.default_rng(0)
    tasks = []
    for _ in range(9):
        shared = rng.integers(5, 100, rng.integers(2, 20)).tolist()
        ends = [rng.integers(5, 100, rng.integers(1, 9)).tolist() for _ in range(rng.integers(2, 5))]
        tasks.append(continuations([shared + end for end in ends]))
    tasks.append(substitutions([[1, 2, 9, 4, 3], [1, 2, 7, 4, 3]], [3, 3]))
    tasks.append(substitutions([[1, 2], [1, 2]], [2, 2]))
    expected = []
    for task in tasks:
        logits = [net.logits(sequence).astype(np.float64) for sequence in task.sequences]
        tables = [each - np.log(np.exp(each).sum(axis=1, keepdims=True)) for each in logits]
        own = [[tables[p.sequence][p.position, p.token] for p in answer] for answer in task.scored]
        expected.append([np.mean(each) if each else math.nan for each in own])
    for tokens_at_once in (1, 50, 4096):
        found = mean_log_probabilities(tasks, net.lazy_logits, tokens_at_once)
        for own, wanted in zip(found, expected, strict=True):
            assert own == pytest.approx(wanted, rel=1e-5, nan_ok=True)
        once = mean_log_probabilities(tasks, net.lazy_logits, tokens_at_once, net.branched_logits)
        for own, wanted in zip(once, expected, strict=True):
            assert own == pytest.approx(wanted, rel=1e-5, nan_ok=True)
    assert math.isnan(found[-1][0])
    assert net.branches


def test_logits_that_are_no_numbers(net):
    def broken(ids, first):
        logits = net.lazy_logits(ids, first)
        logits.x[:] = np.nan
        return logits

    with pytest.raises(ModelError, match="not finite"):
        mean_log_probabilities([continuations([[1, 2], [1, 3]])], broken, 64)
