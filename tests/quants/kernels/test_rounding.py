from __future__ import annotations

import ctypes
import ctypes.util

import numpy as np

from quants.kernels.jit import kernel
from quants.kernels.lane_memory import load, store
from quants.kernels.lanes import LANES
from quants.kernels.rounding import half_away, nearest_int


@kernel
def both_ways(x, away, even):
    for i in range(0, x.size, LANES):
        store(away, i, half_away(load(x, i)))
        store(even, i, nearest_int(load(x, i)))


def awkward() -> np.ndarray:
    halves = np.arange(-130, 130, 0.5, np.float32)
    near = [np.nextafter(halves, np.float32(side)) for side in (-np.inf, np.inf)]
    values = np.concatenate([halves, *near, np.random.default_rng(0).uniform(-128, 128, 1000).astype(np.float32)])
    return np.concatenate([values, np.zeros(-values.size % LANES, np.float32)])


def test_rounding_is_that_of_c():
    x = awkward()
    away, even = np.zeros(x.size, np.int32), np.zeros(x.size, np.int32)
    both_ways(x, away, even)
    assert even.tolist() == np.rint(x).astype(np.int32).tolist()
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    library.roundf.restype, library.roundf.argtypes = ctypes.c_float, [ctypes.c_float]
    assert away.tolist() == [int(library.roundf(v)) for v in x.tolist()]
