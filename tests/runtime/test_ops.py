from __future__ import annotations

import math

import numpy as np
import pytest

from runtime import ops

ERFC = np.vectorize(math.erfc)


def sigmoid(x):
    return np.exp(-np.logaddexp(0, -x))


EXACT = {
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
    "gelu": lambda x: x * ERFC(-x / math.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "gelu_quick": lambda x: x * sigmoid(1.702 * x),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "softplus": lambda x: np.logaddexp(0, x),
}


def values() -> np.ndarray:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((70, 1003)) * 4).astype(np.float32)  # more than one thread's share, an odd width
    x[0, :200] = np.linspace(-120, 120, 200)
    x[1, :200] = np.linspace(-1e-3, 1e-3, 200)
    return x


@pytest.mark.parametrize("name", EXACT)
def test_activation(name):
    x = values()
    with np.errstate(under="ignore", over="ignore"):
        want = EXACT[name](x.astype(np.float64))
    got = getattr(ops, name)(given := x.copy())
    assert got is given
    assert np.abs(got - want).max() <= 3e-7 * np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh"])
def test_gated_product(name):
    gate, up = values(), values()[::-1].copy()
    want = EXACT[name](gate.astype(np.float64)) * up
    np.testing.assert_allclose(ops.gated(name, gate, up, 0), want, rtol=2e-6, atol=1e-5)


def test_activation_of_a_view_changes_only_the_view():
    x = values()
    before = x.copy()
    ops.silu(x[:, 10:20])
    np.testing.assert_array_equal(x[:, :10], before[:, :10])
    np.testing.assert_allclose(x[:, 10:20], EXACT["silu"](before[:, 10:20].astype(np.float64)), rtol=1e-6, atol=1e-30)


def test_nan_is_not_hidden():
    for name in ("silu", "gelu", "gelu_tanh", "sigmoid"):
        assert np.isnan(getattr(ops, name)(np.array([np.nan, 1], np.float32))).tolist() == [True, False]


def test_softcap():
    x = values()
    want = 30 * np.tanh(x.astype(np.float64) / 30)
    np.testing.assert_allclose(ops.softcap(x, 30), want, rtol=4e-7)


def test_xielu():
    x = values()
    wide = x.astype(np.float64)
    positive, negative = math.log1p(math.exp(0.3)), 0.5 + math.log1p(math.exp(-0.2))
    below = (np.expm1(np.minimum(wide, -1e-6)) - wide) * negative + 0.5 * wide
    want = np.where(wide > 0, positive * wide**2 + 0.5 * wide, below)
    np.testing.assert_allclose(ops.xielu(x, -0.2, 0.3, 0.5, -1e-6), want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("shape", [(3, 576), (2, 4, 64), (300, 576), (7, 5)])
def test_norms(shape):
    rng = np.random.default_rng(2)
    x = rng.standard_normal(shape).astype(np.float32) * 3 + 1
    weight, bias = rng.standard_normal((2, shape[-1])).astype(np.float32)
    wide = x.astype(np.float64)
    rms = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    centred = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    for got, want in [
        (ops.rms_norm(x, weight, 1e-5), rms * weight),
        (ops.rms_norm(x, None, 1e-5), rms),
        (ops.layer_norm(x, weight, bias, 1e-5), centred * weight + bias),
        (ops.layer_norm(x, None, None, 1e-5), centred),
    ]:
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


def test_softmax():
    x = np.array([[1e4, 1e4, -1e4], [0, math.log(2), math.log(5)]], np.float32)
    np.testing.assert_allclose(ops.softmax(x), [[0.5, 0.5, 0], [1 / 8, 2 / 8, 5 / 8]], rtol=1e-6)
