"""Numbers as a reader wants them."""

from __future__ import annotations

import math

import pytest

from gguftools.publish.report.numbers import byte_size, fixed, percent, significant, with_error


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (0, "0"),
        (1, "1.00"),
        (-0.0123456, "−0.0123"),
        (123456.0, "123456"),
        (999_999, "999999"),
        (1e6, "1e6"),
        (-2.5e7, "−2.5e7"),
        (1e-5, "0.0000100"),
        (9.99e-6, "9.99e−6"),
        (12.345, "12.3"),
    ],
)
def test_digits_that_mean_something(value, shown):
    assert significant(value) == shown


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (1.23456, 0.0123, "1.235 ± 0.012"),
        (123.456, 9.9, "123.5 ± 9.9"),
        (123.456, 12.0, "123 ± 12"),
        (1.5, 0.0, "1.50"),
        (1.5, None, "1.50"),
        (None, 0.1, "–"),
        (1.5, math.nan, "1.50"),
        (1.5, 1e-9, "1.50"),
        (0.5, 1.2e-7, "0.50000000 ± 0.00000012"),
    ],
)
def test_a_value_to_the_place_where_its_error_ends(value, error, shown):
    assert with_error(value, error) == shown


def test_fractions_and_signs():
    assert percent(0.12345) == "12.35 %"
    assert percent(-0.5, 1, signed=True) == "−50.0 %"
    assert percent(0.5, 1, signed=True) == "+50.0 %"
    assert percent(None) == "–"
    assert fixed(math.inf, 2) == "∞"


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (None, "–"),
        (math.inf, "–"),
        (999, "999 bytes"),
        (1000, "1.00 kB"),
        (999_999, "1000 kB"),
        (1e6, "1.00 MB"),
        (2.5e9, "2.50 GB"),
        (1e9, "1.00 GB"),
    ],
)
def test_bytes(size, shown):
    assert byte_size(size) == shown
