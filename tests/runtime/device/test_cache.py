"""Keep keys, values and states on a device: the same numbers as in the processor's cache, whatever becomes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quants.errors import OptionError
from runtime.kv_cache import CACHE_TYPES, KVCache
from runtime.model import RunningModel
from tests.runtime.device.test_families import model_of, on_torch

pytestmark = pytest.mark.device

MIXERS = {  # a family for each way of mixing tokens
    "attention": "llama3-gqa-rope-tied",
    "windows": "gemma2",
    "experts": "qwen3-moe",
    "latent attention": "deepseek-v3",
    "Mamba": "mamba",
    "Mamba 2 with attention": "granite-hybrid",
    "gated delta": "qwen3-5",
    "adapters": "granite-switch",
    "RWKV": "rwkv7",
    "lightning attention": "minimax-text-01",
    "several streams and n-grams": "qwen4-exp",
}
TOKENS = 20


def caches(cache_type: str, expected: int = 0) -> tuple[Any, KVCache]:
    import torch

    from runtime.device.cache import DeviceCache

    return DeviceCache(torch.device("cpu"), cache_type, expected), KVCache(cache_type, expected)


def append(both: tuple[Any, KVCache], layer: int, k: Any, v: Any) -> None:
    import torch

    ours = both[0].append(layer, torch.from_numpy(k), torch.from_numpy(v))
    for one, other in zip(ours, both[1].append(layer, k, v), strict=True):
        np.testing.assert_array_equal(one.numpy(), other)
    assert both[0].length == both[1].length
    assert both[0].nbytes == both[1].nbytes


@pytest.mark.parametrize("cache_type", CACHE_TYPES)
def test_the_same_numbers_after_all_that_generation_does(cache_type: str) -> None:
    rng = np.random.default_rng(0)
    k, v = (rng.standard_normal((300, 2, width), dtype=np.float32) for width in (64, 32))
    k *= np.exp(rng.standard_normal((300, 2, 1), dtype=np.float32))
    k[3], k[4, :, 5:] = 0, 0
    both = caches(cache_type, expected=100)
    for start, stop in [(0, 7), (7, 90), (90, 91), (91, 180)]:  # grows
        for layer in (0, 1):
            append(both, layer, k[start:stop], v[start:stop])
    copies = both[0].copy(), both[1].copy()
    for each in both:
        each.truncate(90)
    for layer in (0, 1):
        append(both, layer, k[200:230], v[200:230])
        append(copies, layer, k[230:240], v[230:240])  # of which nothing changed
    for each in copies:
        each.keep_rows(180, np.array([1, 4, 8]))
    append(copies, 0, k[250:], v[250:])
    for each in copies:
        each.reset()
    append(copies, 1, k[:5], v[:5])


def test_widths_that_are_no_whole_blocks() -> None:
    import torch

    odd = torch.zeros((1, 2, 40))
    with pytest.raises(OptionError, match="whole blocks of 32; these are 40 wide"):
        caches("q8_0")[0].append(0, odd, odd)


def test_states_go_back_as_far_as_they_are_remembered() -> None:
    import torch

    cache = caches("f32")[0]
    cache.memory = 2
    for token in range(5):
        state = torch.full((1, 3), float(token))
        cache.keep(0, 1, state)
        cache.remember(0, 0, [state])
    copy = cache.copy()
    cache.truncate(3)
    assert cache.length == 3
    assert cache.states(0)[0].max() == 2
    assert copy.states(0)[0].max() == 4
    with pytest.raises(ValueError, match="does not remember its state 2 tokens ago"):
        cache.truncate(1)


@pytest.mark.parametrize("name", MIXERS.values(), ids=MIXERS)
def test_tokens_one_by_one_after_going_back(name: str) -> None:
    ours, wanted = on_torch(name), model_of(name)
    assert greedy(ours) == greedy(wanted)


def greedy(model: RunningModel) -> list[int]:
    """Return a text, of which some tokens are dropped and computed again at each step, by one of two copies."""
    ids = np.random.default_rng(3).integers(0, model.vocabulary_size, 11).tolist()
    cache = model.new_cache()
    cache.memory = 3
    written = [int(model.forward(ids, cache)[-1].argmax())]
    for _ in range(TOKENS):
        other = cache.copy()
        model.forward([*written[-1:], 1, 2], cache)
        cache.truncate(len(ids) + len(written) - 1)
        one, again = (model.forward(written[-1:], each)[-1] for each in (cache, other))
        np.testing.assert_allclose(one, again, atol=1e-4 * one.std())
        written.append(int(one.argmax()))
    return written
