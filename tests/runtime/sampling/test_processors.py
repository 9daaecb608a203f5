"""What changes logits before the chain, by vLLM's meaning of each parameter."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from quants.errors import OptionError
from runtime.arrays import Floats
from runtime.sampling.parameters import Sampling
from runtime.sampling.processors import bad_word_tokens
from runtime.sampling.sampler import Sampler

LOGITS = np.array([1.0, 3.0, -2.0, 2.0, 0.5], np.float32)


def sampler(**options: Any) -> Sampler:
    words = options.pop("words", ())
    return Sampler(Sampling(samplers=(), seed=0, **options), bad_words=words)


def probabilities(of: Sampler, logits: Floats = LOGITS) -> Floats:
    return of.probabilities(logits).over(len(logits))


def softmax(logits: Sequence[float]) -> Floats:
    weights = np.exp(np.array(logits, np.float64))
    return weights / weights.sum()


def test_allowed_tokens_are_the_only_ones():
    found = probabilities(sampler(allowed_token_ids=[3, 0]))
    np.testing.assert_allclose(found, softmax([1, -np.inf, -np.inf, 2, -np.inf]), atol=1e-6)
    greedy = Sampler(Sampling(temperature=0, allowed_token_ids=(0, 2)))
    assert greedy.draw(LOGITS) == 0
    with pytest.raises(OptionError, match="token 5, but the vocabulary has 5 tokens"):
        probabilities(sampler(allowed_token_ids=[5]))


def test_repetition_penalty_sees_all_of_prompt_and_text():
    of = sampler(repetition_penalty=2.0, repeat_last_n=0)
    of.prime([2, 1, 1])
    of.accept(0)
    for token in [4] * 80:
        of.accept(token)
    np.testing.assert_allclose(probabilities(of), softmax([0.5, 1.5, -4, 2, 0.25]), atol=1e-6)
    of.reset()
    np.testing.assert_allclose(probabilities(of), softmax(LOGITS.tolist()), atol=1e-6)


def test_a_bad_word_loses_its_last_token_where_that_would_complete_it():
    of = sampler(words=[(1,), (0, 3)])
    assert probabilities(of)[1] == 0 < probabilities(of)[3]
    of.accept(0)
    assert probabilities(of)[3] == 0
    of.accept(4)
    assert probabilities(of)[3] > 0


def test_words_of_a_prompt_do_not_begin_bad_words():
    of = sampler(words=[(0, 3)])
    of.prime([0])
    assert probabilities(of)[3] > 0


def test_bad_words_are_barred_after_a_space_too():
    ids = {"cat": [5], " cat": [6], "dog": [7], " dog": [8, 7], "new": [1, 2], " new": [3, 2]}
    assert bad_word_tokens(["cat", "dog", "new"], lambda text: ids[text]) == [(5,), (6,), (7,), (1, 2), (3, 2)]


def test_functions_change_logits_first():
    seen: list[Any] = []

    def of_text(generated: list[int], logits: Floats) -> Floats:
        seen.append(list(generated))
        logits[1] = -np.inf
        return logits

    def with_prompt(prompt: list[int], generated: list[int], logits: Floats) -> Floats:
        seen.append((prompt, generated))
        return logits + np.where(np.arange(5) == 3, 1.0, 0.0)

    of = sampler(logits_processors=[of_text, with_prompt], allowed_token_ids=[1, 3, 4])
    of.prime([2])
    of.accept(4)
    given = LOGITS.copy()
    np.testing.assert_allclose(probabilities(of, given), softmax([-np.inf, -np.inf, -np.inf, 3, 0.5]), atol=1e-6)
    np.testing.assert_array_equal(given, LOGITS)
    assert seen[:2] == [[4], ([2], [4])]


@pytest.mark.parametrize("wrong", [None, np.zeros(3), "text"], ids=str)
def test_functions_that_return_no_logits(wrong: object):
    with pytest.raises(OptionError, match="of logits_processors returned an array"):
        probabilities(sampler(logits_processors=[lambda tokens, logits: wrong]))


def test_options_that_leave_no_token():
    with pytest.raises(OptionError, match=r"no token can be drawn: .*bad_words"):
        probabilities(sampler(words=[(1,)], allowed_token_ids=[1]))
