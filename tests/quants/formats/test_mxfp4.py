from __future__ import annotations

import numpy as np

import quants


def exponents(largest: np.ndarray) -> np.ndarray:
    rows = np.zeros((len(largest), 32), np.float32)
    rows[:, 5] = largest
    return quants.encode("MXFP4", rows)[:, 0]


def test_exponent_is_the_float32_logarithm_rounded_down():
    powers = (2.0 ** np.arange(-20, 20)).astype(np.float32)
    for below in range(12):  # just below a power of two the logarithm rounds up to the whole number
        log2 = np.log2(powers.astype(np.float64)).astype(np.float32)
        assert np.array_equal(exponents(powers), np.floor(log2).astype(int) + 125), below
        powers = np.nextafter(powers, np.float32(0))


def test_zero_block_is_all_zero_bytes():
    assert not quants.encode("MXFP4", np.zeros((1, 32), np.float32)).any()


def test_ties_go_to_the_smaller_magnitude_and_never_to_minus_zero():
    row = np.zeros((1, 32), np.float32)
    row[0, :8] = 6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, -0.25
    decoded = quants.decode("MXFP4", quants.encode("MXFP4", row))[0, :8]
    assert decoded.tolist() == [6, 0, 0.5, 1, 1.5, 2, 3, 0]
    assert not np.signbit(decoded[-1])
