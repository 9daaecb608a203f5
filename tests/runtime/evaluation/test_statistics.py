"""Figures by hand: where few predictions have no error, and places between values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from runtime.evaluation.statistics import median, percentiles, perplexity_figures, share_with_error, with_error


@pytest.mark.parametrize("count", [9, 10, 11])
def test_errors_of_few_predictions(count):
    """As llama-perplexity: means have one from eleven on, the covariance counts from ten on."""
    away = np.linspace(-1, 1, count)
    got = perplexity_figures(-2 - away, -2 + away)
    error = math.sqrt((away**2).mean() / (count - 1))
    covariance = -((away**2).mean()) / (count - 1)
    own = error if count > 10 else 0.0
    assert got["perplexity_standard_error"] == pytest.approx(math.exp(2) * own)
    assert got["log_ratio"] == pytest.approx(0, abs=1e-12)
    common = covariance if count >= 10 else 0.0
    assert got["log_ratio_standard_error"] == pytest.approx(math.sqrt(2 * own**2 - 2 * common))
    difference = got["perplexity_difference_standard_error"]
    assert difference == pytest.approx(math.exp(2) * math.sqrt(2 * own**2 - 2 * common))
    assert got["correlation"] == pytest.approx(-1 if count > 10 else 1)
    assert with_error(away)["standard_error"] == pytest.approx(own)


def test_places_between_values():
    values = np.array([4.0, 0.0, 1.0, 2.0])
    assert percentiles(values, {"a": 0.0, "b": 0.5, "c": 1.0, "d": 0.9}) == pytest.approx(
        {"a": 0, "b": 1.5, "c": 4, "d": 2 + 0.7 * 2}, rel=1e-6
    )
    assert median(values) == 1.5
    assert median(values[:3]) == 1.0
    assert percentiles(values[:1], {"p": 0.3}) == {"p": 4.0}


def test_shares():
    share, error = share_with_error(np.array([True, False, True, True, False]))
    assert share == 0.6
    assert error == pytest.approx(math.sqrt(0.6 * 0.4 / 4))
    assert share_with_error(np.array([True])) == (1.0, 0.0)
