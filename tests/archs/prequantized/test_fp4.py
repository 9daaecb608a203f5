"""MXFP4 in two parts, as GPT-OSS publishes it."""

from __future__ import annotations

import numpy as np
import pytest

from archs.prequantized.fp4 import gpt_oss
from gguftools.io.checkpoint.dtypes import checkpoint_formats
from quants import Tensor
from quants.errors import ModelError

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
RNG = np.random.default_rng(2)
BLOCKS = RNG.integers(0, 256, (2, 3, 4, 16), np.uint8)  # experts, rows, blocks of a row, bytes
SCALES = RNG.integers(120, 134, (2, 3, 4), np.uint8)


def stored(name: str, values: np.ndarray) -> Tensor:
    rows = values.reshape(-1, values.shape[-1])
    return Tensor(name, values.shape, checkpoint_formats()["U8"], lambda start, stop: rows[start:stop])


def test_values_go_over() -> None:
    parts = {"w_scales": stored("w_scales", SCALES), "w_blocks": stored("w_blocks", BLOCKS)}
    both = gpt_oss({}, {"a": stored("a", SCALES), **parts}).tensors
    assert set(both) == {"a", "w"}
    whole = both["w"]
    assert (whole.name, whole.shape, whole.format.name) == ("w", (2, 3, 128), "MXFP4")
    codes = np.stack((BLOCKS & 15, BLOCKS >> 4), -1)  # the lower half of a byte comes first
    wanted = E2M1[codes].reshape(2, 3, 4, 32) * 2.0 ** (SCALES.astype(np.float32) - 127)[..., None]
    np.testing.assert_array_equal(whole.float32(), wanted.reshape(2, 3, 128))
    raw = whole.raw()
    for start in range(7):
        for stop in range(start, 7):
            np.testing.assert_array_equal(whole.raw(start, stop), raw[start:stop])


def test_scales_must_be_there_and_fit() -> None:
    with pytest.raises(ModelError, match="there are none"):
        gpt_oss({}, {"w_blocks": stored("w_blocks", BLOCKS)})
    with pytest.raises(ModelError, match=r"shape \[2, 3\]"):
        gpt_oss({}, {"w_blocks": stored("w_blocks", BLOCKS), "w_scales": stored("w_scales", SCALES[..., 0])})


def test_other_names_are_left_alone() -> None:
    tensors = {"w_blocks": stored("w_blocks", BLOCKS[..., :8])}
    assert gpt_oss({}, tensors).tensors == tensors
