from __future__ import annotations

import numpy as np

from runtime.kv_cache import KVCache


def test_grows_and_forgets():
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((200, 2, 8)).astype(np.float32), rng.standard_normal((200, 2, 4)).astype(np.float32)
    cache = KVCache()
    assert cache.length == 0
    for start, stop in [(0, 3), (3, 100), (100, 101), (101, 200)]:
        for layer in (0, 1):
            keys, values = cache.append(layer, k[start:stop] + layer, v[start:stop])
            np.testing.assert_array_equal(keys, k[:stop] + layer)
            np.testing.assert_array_equal(values, v[:stop])
        assert cache.length == stop
    cache.reset()
    assert cache.length == 0
    keys, _ = cache.append(0, k[:2], v[:2])
    np.testing.assert_array_equal(keys, k[:2])


def test_length_counts_tokens_that_all_layers_have():
    one = np.zeros((5, 1, 4), np.float32)
    cache = KVCache()
    cache.append(0, one, one)
    cache.append(1, one, one)
    cache.append(0, one, one)
    assert cache.length == 5
