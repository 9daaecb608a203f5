"""Lanes compute what numpy computes, one operation at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numba.core.errors import TypingError

from quants.kernels.jit import kernel
from quants.kernels.lane_memory import (
    block_offsets,
    load,
    put_halves,
    put_quads,
    put_tile,
    put_words,
    rooms,
    store,
    transpose,
)
from quants.kernels.lanes import (
    LANES,
    absolute,
    all_lanes,
    any_lane,
    bits_float,
    every,
    every_int,
    float_bits,
    lane,
    lane_numbers,
    larger,
    mask_bits,
    round_even,
    shift_right,
    smaller,
    square_root,
    to_float,
    to_int,
    where,
    with_sign,
)
from quants.kernels.wide_lanes import GROUPS, every_wide, load_wide, store_wide

ROOT = Path(__file__).resolve().parents[3]
f32, i32 = np.float32, np.int32


@kernel
def float_operations(x, y, out):
    a, b = load(x, 0), load(y, 0)
    total = a
    total += b
    total -= np.float32(0.5)
    results = (
        a + b,
        a - b,
        a * b,
        a / b,
        -a,
        np.float32(1) / a,
        a * np.float32(3),
        smaller(a, b),
        larger(a, b),
        smaller(a, np.float32(0)),
        where(a < b, a, np.float32(7)),
        where((a < b) & ~(a > np.float32(0)), b, a),
        round_even(a),
        absolute(a),
        square_root(absolute(a)),
        with_sign(a, b),
        to_float(to_int(a)),
        bits_float(float_bits(b)),
        every(np.float32(2)) - a,
        total,
    )
    for i in range(len(results)):
        store(out, LANES * i, results[i])


def test_floats_as_in_numpy():
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal(LANES).astype(f32) * 4 for _ in range(2))
    x[:4], y[:4] = [0.5, 1.5, -2.5, 3], [1, 1, -1, 3]
    out = np.full((30, LANES), np.nan, f32)
    float_operations(x, y, out)
    expected = [
        x + y,
        x - y,
        x * y,
        x / y,
        -x,
        f32(1) / x,
        x * f32(3),
        np.minimum(x, y),
        np.maximum(x, y),
        np.minimum(x, 0),
        np.where(x < y, x, f32(7)),
        np.where((x < y) & ~(x > 0), y, x),
        np.rint(x),
        np.abs(x),
        np.sqrt(np.abs(x)),
        np.copysign(x, y),
        np.trunc(x),
        y,
        f32(2) - x,
        (x + y) - f32(0.5),
    ]
    for found, wanted in zip(out, expected, strict=False):
        assert found.tolist() == wanted.astype(f32).tolist()


def test_choices_with_nan_and_signed_zeros_are_those_of_a_conditional():
    x = np.array([np.nan, 1, 0.0, -0.0] * 4, f32)
    y = np.array([1, np.nan, -0.0, 0.0] * 4, f32)
    out = np.zeros((30, LANES), f32)
    with np.errstate(all="ignore"):
        float_operations(x, y, out)
    for row, choose in ((7, lambda a, b: a if a < b else b), (8, lambda a, b: a if a > b else b)):
        wanted = np.array([choose(a, b) for a, b in zip(x, y, strict=True)], f32)
        assert out[row].tobytes() == wanted.tobytes()


@kernel
def integer_operations(x, y, out):
    a, b = load(x, 0), load(y, 0)
    results = (
        a + b,
        a - b,
        a * b,
        a & 15,
        a | b,
        a ^ b,
        a << 4,
        a >> 2,
        shift_right(a, 2),
        lane_numbers() * 3 - a,
        where(a == b, 5, a),
        smaller(a, b),
        larger(a, 0),
        every_int(3) + b,
        to_int(to_float(b)),
    )
    for i in range(len(results)):
        store(out, LANES * i, results[i])


def test_integers_as_in_numpy():
    rng = np.random.default_rng(2)
    x, y = (rng.integers(-(2**31), 2**31, LANES).astype(i32) for _ in range(2))
    y[::3], y[1::3] = x[::3], y[1::3] & 0xFFFF
    out = np.zeros((15, LANES), i32)
    integer_operations(x, y, out)
    expected = [
        x + y,
        x - y,
        x * y,
        x & 15,
        x | y,
        x ^ y,
        x << 4,
        x >> 2,
        (x.view(np.uint32) >> 2).view(i32),
        np.arange(LANES) * 3 - x,
        np.where(x == y, 5, x),
        np.minimum(x, y),
        np.maximum(x, 0),
        3 + y,
        y.astype(f32).astype(np.int64).clip(-(2**31), 2**31 - 1),
    ]
    for number, (found, wanted) in enumerate(zip(out, expected, strict=True)):
        same = found == wanted.astype(i32)
        assert (same | (np.abs(y) > 2**30) if number == 14 else same).all(), number


@kernel
def masks(x, y):
    smaller_x = load(x, 0) < load(y, 0)
    return mask_bits(smaller_x), any_lane(smaller_x), all_lanes(smaller_x), lane(load(x, 0), 3)


def test_masks_as_scalars():
    x, y = np.arange(LANES, dtype=f32), np.full(LANES, 5, f32)
    assert masks(x, y) == (0b11111, True, False, 3)
    assert masks(x, y + 100) == (0xFFFF, True, True, 3)
    assert masks(x, y - 100) == (0, False, False, 3)


@kernel
def widths(source, out):
    store(out, 0, load(source, 3))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32])
def test_loads_widen_and_stores_narrow(dtype: type):
    source = np.random.default_rng(3).integers(0, 256, 400).astype(np.uint8).view(dtype)
    out = np.zeros(200, dtype)
    widths(source, out)
    assert out[:LANES].tolist() == source[3 : 3 + LANES].tolist()


def test_a_load_reads_unaligned_and_read_only_memory():
    room = np.zeros(4 * LANES + 1, np.uint8)
    unaligned = room[1:].view(f32)
    unaligned[:] = np.arange(LANES)
    unaligned.flags.writeable = False
    out = np.full((30, LANES), np.nan, f32)
    with np.errstate(all="ignore"):
        float_operations(unaligned, np.ones(LANES, f32), out)
    assert out[0].tolist() == [i + 1 for i in range(LANES)]


@kernel
def through_lanes(x, starts, side, targets, out, words):
    transpose(x, starts, 32, side)
    for k in range(32):
        store(words, LANES * k, float_bits(load(side, LANES * k)))
    put_tile(out, targets, 0, words, 0)
    for k in range(0, 12, 4):
        put_quads(out, targets, 64 + 4 * k, words, LANES * (16 + k))
    for k in range(12, 16):
        put_words(out, targets, 64 + 4 * k, load(words, LANES * (16 + k)))
    put_halves(out, targets, 128, load(words, 0))


def test_blocks_laid_side_by_side_and_back():
    rng = np.random.default_rng(4)
    x = rng.standard_normal(1000).astype(f32)
    starts, targets = rng.integers(0, 968, LANES), rng.permutation(LANES) * 130
    side, out, words = np.zeros((32, LANES), f32), np.zeros(LANES * 130, np.uint8), np.zeros(32 * LANES, i32)
    through_lanes(x, starts, side, targets, out, words)
    blocks = np.array([x[s : s + 32] for s in starts])
    assert (side == blocks.T).all()
    for i, block in enumerate(blocks):
        written = out[targets[i] : targets[i] + 130]
        assert written[:128].tobytes() == block.tobytes()
        assert written[128:].tobytes() == block[:1].tobytes()[:2]


@kernel
def offsets_of(first, count, offsets):
    block_offsets(first, count, 10, offsets)


def test_spare_lanes_repeat_the_last_block():
    offsets = np.zeros(LANES, np.int64)
    offsets_of(16, 19, offsets)
    assert offsets.tolist() == [160, 170, 180] + [180] * 13


@kernel
def wide_operations(x, out, alone):
    far = LANES * 2
    a, b = load_wide(x, 0, far), load_wide(x, LANES, far)
    total = every_wide(np.float32(0.5), far)
    total += where((a < b) | (a == b), round_even(a * b), -absolute(b)) / np.float32(3)
    store_wide(out, 0, far, larger(total, smaller(a, np.float32(0.25))))
    store_wide(alone, 0, None, load_wide(x, LANES, None) + every_wide(np.float32(1), None))
    return any_lane(a > b)


def test_wide_values_are_several_f32x16():
    x = np.random.default_rng(5).standard_normal((GROUPS, 2, LANES)).astype(f32) * 3
    out, alone = np.zeros_like(x), np.zeros(LANES, f32)
    assert wide_operations(x, out, alone)
    a, b = x[:, 0], x[:, 1]
    total = f32(0.5) + np.where(a <= b, np.rint(a * b), -np.abs(b)) / f32(3)
    assert (out[:, 0] == np.maximum(total, np.minimum(a, f32(0.25)))).all()
    assert not out[:, 1].any()
    assert (alone == x[0, 1] + 1).all()


def test_rooms_start_on_a_page():
    floats, integers = rooms(3, 5)
    assert (floats.size, integers.size) == (3 * LANES, 5 * LANES)
    assert (floats.ctypes.data % 4096, integers.ctypes.data % 4096) == (0, 0)
    floats[:], integers.view(i32)[:] = 4, 5
    assert floats.tolist() == [4] * floats.size


@kernel
def promoted(x, out):
    store(out, 0, load(x, 0) * 0.1)


def test_a_double_among_floats_does_not_compile():
    with pytest.raises(TypingError, match="mul"):
        promoted(np.ones(LANES, f32), np.ones(LANES, f32))


def test_functions_on_lanes_say_that_python_cannot_call_them():
    with pytest.raises(TypeError, match="round_even exists in compiled code only"):
        round_even(1.0)


CACHED = """
import numpy as np, quants
from quants.kernels.small_blocks import KERNELS
quants.encode("Q8_0", np.ones((1, 32), np.float32))
stats = KERNELS["Q8_0"].encode.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def test_a_second_process_finds_the_compiled_kernel_unless_a_file_of_kernels_changed(tmp_path: Path):
    copy = shutil.copytree(ROOT / "quants", tmp_path / "quants", ignore=shutil.ignore_patterns("__pycache__"))
    env = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"} | {"PYTHONPATH": str(tmp_path)}

    def hits_and_misses() -> str:
        return subprocess.check_output([sys.executable, "-c", CACHED], env=env, cwd=tmp_path, text=True).strip()

    assert [hits_and_misses(), hits_and_misses()] == ["0 1", "1 0"]
    later = time.time() + 10
    os.utime(copy / "kernels" / "half.py", (later, later))
    assert hits_and_misses() == "0 1"
