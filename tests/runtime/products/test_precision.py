from __future__ import annotations

import numpy as np
import pytest

from quants import decode, encode, from_array
from quants.errors import OptionError
from runtime.products.matmul import matmul
from runtime.products.precision import as_multiplied, precision_named, rounded

X = np.random.default_rng(0).standard_normal((6, 512)).astype(np.float32)
X[0, :256] = 0


def test_what_is_stored_with_a_scale_of_32():
    np.testing.assert_allclose(rounded(X, "Q4_0"), decode("Q8_0", encode("Q8_0", X)), rtol=1e-6)


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_floats(name):
    np.testing.assert_array_equal(rounded(X, name), decode(name, encode(name, X)))


def test_scale_of_256():
    got = rounded(X, "Q4_K").reshape(-1, 256)
    for before, after in zip(X.reshape(-1, 256), got, strict=True):
        step = np.abs(before).max() / 127
        assert np.abs(before - after).max() <= step * 0.5001
        assert len(np.unique(after)) <= 255
    assert np.abs(got).max(1)[2:] == pytest.approx(np.abs(X.reshape(-1, 256)).max(1)[2:], rel=1e-6)


def test_nothing_is_rounded_unless_asked_for():
    weight = from_array("w", X)
    assert as_multiplied(X, "Q8_0", "float32") is X
    np.testing.assert_array_equal(as_multiplied(X, "Q8_0", "llama.cpp"), rounded(X, "Q8_0"))
    got = matmul(X, weight, precision="llama.cpp")
    np.testing.assert_allclose(got, X @ X.T, atol=1e-3)  # float32 weights take float32


def test_old_names():
    assert precision_named("reference") == precision_named("llama.cpp") == "llama.cpp"
    with pytest.raises(OptionError, match="float32, exact, llama"):
        precision_named("half")
