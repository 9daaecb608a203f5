"""Caches of layers that keep more than keys and values: read on, taken back, read on otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gguftools
from tests.archs import checkpoints


@pytest.mark.parametrize(
    "entry", ["deepseek-v32", "kimi-linear", "minimax-m3", "minimax-text-01", "rwkv7", "qwen4-exp", "bailing-moe-v3"]
)
def test_a_cache_taken_back_goes_on_as_if_nothing_had_been(entry: str, tmp_path: Path) -> None:
    checkpoints.build(entry, tmp_path / entry)
    gguftools.convert(tmp_path / entry, tmp_path / "f32.gguf", "f32")
    model = gguftools.load(tmp_path / "f32.gguf")
    ids = np.arange(20, 40)
    wanted = model.logits(ids)
    cache = model.new_cache()
    cache.memory = 3
    model.forward(ids[:15], cache)
    for text in ([200, 201, 202], [203]):
        model.forward(np.array(text), cache)
        cache.truncate(15)
    copied = cache.copy()
    found = np.concatenate([model.forward(ids[15:16], copied), model.forward(ids[16:], copied)])
    assert np.abs(found - wanted[15:]).max() < 2e-5 * wanted.std()
    assert cache.length == 15
    two = model.forward(np.stack([ids, ids[::-1]]))  # texts that don't see each other
    assert np.abs(two[0] - wanted).max() < 2e-5 * wanted.std()
