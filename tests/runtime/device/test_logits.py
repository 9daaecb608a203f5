"""Heads on a device: losses, figures of rows and divergences as on the processor, whole and tile by tile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quants import Tensor, encode, format_named, from_array
from runtime.evaluation.divergence import KL, LOG_P, TOP, Rows, compare, row_figures, rows_of
from runtime.head import LazyLogits, Output

pytestmark = pytest.mark.device
VOCABULARY, WIDTH, COUNT = 5000, 64, 40
RANDOM = np.random.default_rng(11)
STATES = RANDOM.standard_normal((COUNT, WIDTH), dtype=np.float32)
MATRIX = RANDOM.standard_normal((VOCABULARY, WIDTH), dtype=np.float32) * 0.4
NOISE = RANDOM.standard_normal((VOCABULARY, WIDTH), dtype=np.float32)
BIAS = RANDOM.standard_normal(VOCABULARY, dtype=np.float32)
TARGETS = RANDOM.integers(0, VOCABULARY, COUNT)
OUTPUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": BIAS},
    "scale": {"bias": BIAS, "scale": 0.3},
    "cap": {"scale": 1.5, "softcap": 7.0},
    "never": {"never": (0, 1300)},
}


def stored(matrix: Any, form: str) -> Tensor:
    raw = encode(form, matrix)
    return Tensor("output.weight", matrix.shape, format_named(form), lambda start, stop: raw[start:stop])


def heads(output: Output, memory: int | None = None) -> tuple[LazyLogits, LazyLogits]:
    """Return the same lazy logits on the processor and on a device."""
    from runtime.device.torch_device import torch_device

    device = torch_device("cpu", memory)
    assert device is not None
    ours = LazyLogits(STATES, output.weight, output.finish(2), 2, "exact")
    return ours, device.logits(ours, output)


@pytest.fixture(params=[True, False], ids=["float64", "float32"])
def wide(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr("runtime.device.figures.has_float64", lambda device: request.param)
    return bool(request.param)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.device.logits.TILE", 100 * WIDTH)
    monkeypatch.setattr("runtime.device.figures.AT_ONCE", 7 * VOCABULARY)


@pytest.mark.parametrize("memory", [None, 1], ids=["resident", "tiles"])
@pytest.mark.parametrize("form", ["F32", "F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.usefixtures("wide", "small_tiles")
def test_a_head(name: str, form: str, memory: int | None) -> None:
    output = Output(stored(MATRIX, form), **OUTPUTS[name])
    expected, logits = heads(output, memory)
    np.testing.assert_allclose(logits.float32(), expected.float32(), rtol=1e-5, atol=1e-5)
    targets = np.maximum(TARGETS, output.never[1])
    np.testing.assert_allclose(logits.losses(targets), expected.losses(targets), rtol=1e-6)
    np.testing.assert_allclose(logits.losses(targets[:9]), expected.losses(targets[:9]), rtol=1e-6)
    wanted, got = rows_of(expected, targets), rows_of(logits, targets)
    np.testing.assert_allclose(got.values, wanted.values, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(got.logits, logits.float32())
    assert logits.weights.nbytes == (0 if memory else 2 * MATRIX.size if form in ("F16", "BF16") else MATRIX.nbytes)


@pytest.mark.parametrize("size", [0, 1e-7, 1e-3, 0.1, 3.0])
@pytest.mark.usefixtures("small_tiles")
def test_divergences_of_every_size(size: float, wide: bool) -> None:
    base = Output(from_array("output.weight", MATRIX))
    other = Output(from_array("output.weight", MATRIX + np.float32(size) * NOISE))
    pairs = [
        (row_figures(each.float32(), TARGETS), rows_of(each, TARGETS)) for each in (heads(base)[1], heads(other)[1])
    ]
    wanted, got = (compare(one, two) for one, two in zip(*pairs, strict=True))
    np.testing.assert_allclose(got[:, :2], wanted[:, :2], rtol=2e-3, atol=1e-13 if wide else 1e-12)
    np.testing.assert_allclose(got[:, 2], wanted[:, 2], rtol=1e-5, atol=3e-7)
    assert size or not got.any()


@pytest.mark.usefixtures("wide")
def test_the_first_of_equal_tokens_is_the_top() -> None:
    matrix = np.zeros_like(MATRIX)
    matrix[1234] = matrix[77] = matrix[4999] = 1
    output = Output(from_array("output.weight", matrix))
    expected, logits = heads(output)
    up = STATES.sum(axis=1) > 0
    first = rows_of(logits, TARGETS).values[:, TOP]
    np.testing.assert_array_equal(first, np.where(up, 77, 0))
    np.testing.assert_array_equal(first, rows_of(expected, TARGETS).values[:, TOP])


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_stay_so(value: float) -> None:
    output = Output(from_array("output.weight", MATRIX), bias=BIAS)
    logits = heads(output)[1]
    bad = BIAS.copy()
    bad[900] = value
    damaged = heads(replace(output, bias=bad))[1]
    assert not np.isfinite(damaged.losses(TARGETS)).any()
    good, wrong = rows_of(logits, TARGETS), rows_of(damaged, TARGETS)
    assert not np.isfinite(wrong.values[:, LOG_P]).any()
    assert not np.isfinite(compare(good, wrong)[:, KL]).any()


def test_rows_on_the_host_are_compared_with_those_of_a_device() -> None:
    ours, logits = heads(Output(from_array("output.weight", MATRIX)))
    one, two = rows_of(ours, TARGETS), rows_of(logits, TARGETS)
    assert isinstance(one.held, np.ndarray)
    assert not isinstance(two.held, np.ndarray)
    assert compare(one, two)[:, KL].max() < 1e-10
    np.testing.assert_array_equal(compare(two, one), compare(Rows(two.logits, two.values), one))


def test_a_matrix_made_anew_for_each_pass_is_moved_once() -> None:
    from runtime.device.torch_device import torch_device

    device = torch_device("cpu")
    assert device is not None
    for _ in range(3):
        output = Output(from_array("output.weight", MATRIX))
        device.logits(LazyLogits(STATES, output.weight), output).losses(TARGETS)
    assert device.weights.nbytes == MATRIX.nbytes
