from __future__ import annotations

import numpy as np
import pytest

from quants.kernels.byte_codes import decode_codes


@pytest.mark.parametrize(("rows", "width", "groups"), [(0, 32, 2), (1, 1, 1), (5, 48, 1), (3, 96, 6), (4, 7, 7)])
def test_values_times_the_scale_of_their_group(rows: int, width: int, groups: int) -> None:
    random = np.random.default_rng(width)
    codes = random.integers(0, 256, (rows, width), np.uint8)
    table, scales = random.standard_normal(256).astype(np.float32), random.random((rows, groups)).astype(np.float32)
    out = np.empty((rows, width), np.float32)
    decode_codes(codes, table, scales, out)
    np.testing.assert_array_equal(out, table[codes] * np.repeat(scales, width // groups, axis=1))
