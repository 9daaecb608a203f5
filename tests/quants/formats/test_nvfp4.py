from __future__ import annotations

import numpy as np

import quants


def scale_bytes(largest: list[float]) -> list[int]:
    rows = np.zeros((1, 64), np.float32)
    rows[0, ::16] = largest
    return quants.encode("NVFP4", rows)[0, :4].tolist()


def test_scales_round_half_up_and_jump_to_the_largest():
    assert scale_bytes([6, 6 * 1.0625, 6 * 255, 6 * 1e6]) == [7 << 3, 7 << 3 | 1, 0x7E, 0x7E]


def test_small_groups_vanish():
    rows = np.full((1, 64), 0.005, np.float32)
    assert not quants.encode("NVFP4", rows).any()


def test_marked_out_scale_counts_as_zero():
    raw = np.full((1, 36), 0x77, np.uint8)
    raw[0, :4] = 0x7F, 0x38, 0x01, 0
    decoded = quants.decode("NVFP4", raw).reshape(4, 16)
    assert (decoded == np.array([[0], [6], [6 / 512], [0]], np.float32)).all()
