from __future__ import annotations

import numpy as np
import pytest

from runtime.kv_cache import MIN_ROOM, KVCache


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


def test_truncate_forgets_what_came_last():
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((9, 2, 8)).astype(np.float32), rng.standard_normal((9, 2, 4)).astype(np.float32)
    cache = KVCache()
    cache.append(0, k[:6], v[:6])
    cache.append(1, k[:6], v[:6])
    cache.append(0, k[6:7], v[6:7])  # of a token that not all layers have
    cache.truncate(4)
    assert cache.length == 4
    for layer in (0, 1):
        keys, values = cache.append(layer, k[7:], v[7:])
        np.testing.assert_array_equal(keys, np.concatenate([k[:4], k[7:]]))
        np.testing.assert_array_equal(values, np.concatenate([v[:4], v[7:]]))
    cache.truncate(9)
    assert cache.length == 6


def test_states_go_back_as_far_as_they_are_remembered():
    cache = KVCache()
    cache.memory = 2
    for token in range(5):
        state = np.full((1, 3), token, np.float32)
        cache.keep(0, 1, state)
        cache.remember(0, 0, [state.copy()])
    cache.truncate(3)
    assert cache.length == 3
    assert cache.states(0)[0].max() == 2
    cache.states(0)[0][:] = 7  # states are changed in place
    cache.remember(0, 0, [cache.states(0)[0].copy()])
    cache.keep(0, 1, cache.states(0)[0])
    cache.truncate(3)
    assert cache.states(0)[0].max() == 2
    with pytest.raises(ValueError, match="layer 0 does not remember its state 2 tokens ago"):
        cache.truncate(1)


@pytest.mark.parametrize(("kind", "bytes_a_number"), [("f32", 4), ("f16", 2), ("q8_0", 34 / 32)])
def test_memory_is_what_the_formula_says(kind, bytes_a_number):
    k, v = np.ones((5, 2, 64), np.float32), np.ones((5, 2, 32), np.float32)
    for expected, room in [(0, MIN_ROOM), (100, 100)]:
        cache = KVCache(kind, expected)
        for layer in range(3):
            keys, values = cache.append(layer, k, v)
            np.testing.assert_allclose(keys, k, rtol=1e-3)
            np.testing.assert_allclose(values, v, rtol=1e-3)
        assert cache.nbytes == 3 * room * 2 * (64 + 32) * bytes_a_number
        assert sum(array.nbytes for layer in range(3) for array in cache.arrays(layer)) == cache.nbytes


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_a_copy_goes_on_by_itself(kind):
    rng = np.random.default_rng(0)
    k = rng.standard_normal((100, 2, 32)).astype(np.float32)
    cache = KVCache(kind)
    cache.append(0, k[:60], k[:60])
    cache.keep(1, 60, np.zeros((1, 3), np.float32))
    other = cache.copy()
    one, _ = cache.append(0, k[60:], k[60:])
    other.states(1)[0][:] = 7
    two, _ = other.append(0, k[40:80], k[40:80])
    np.testing.assert_array_equal(one[:60], two[:60])
    np.testing.assert_allclose(one, k, atol=0.02)
    np.testing.assert_allclose(two[60:], k[40:80], atol=0.02)
    assert cache.states(1)[0].max() == 0
    cache.reset()
    np.testing.assert_allclose(other.append(0, k[:1], k[:1])[0][:60], k[:60], atol=0.02)


def test_what_an_encoder_read_is_among_the_bytes_and_shared():
    cache = KVCache()
    cache.context = ((np.zeros((4, 2, 8), np.float32), np.zeros((4, 2, 8), np.float32)),)
    assert cache.nbytes == 2 * 4 * 4 * 2 * 8
    assert cache.copy().context is cache.context
