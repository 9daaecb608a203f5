"""Whole files of the zoo's checkpoints, run by torch: the original models' logits, at once and token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gguftools
from tests import zoo_build
from tests.zoo import CLOSE, REASONS, ZOO, entries, logit_errors

pytestmark = pytest.mark.device
TYPES = ("f16", "bf16", "q8_0")
EACH = 3  # of the entries are among the fast tests
ENTRIES = [pytest.param(each, marks=pytest.mark.slow if i % EACH else ()) for i, each in enumerate(entries())]


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_original_logits(entry: str, tmp_path: Path) -> None:
    from runtime.device.torch_device import torch_device

    zoo_build.build(ZOO, entry, tmp_path / entry)
    gguftools.convert(tmp_path / entry, tmp_path / "model.gguf", "f32")
    model = gguftools.load(tmp_path / "model.gguf")
    model.device = torch_device("cpu")
    once, cached = logit_errors(model, np.load(ZOO / entry / "logits.npz"))
    if (entry, "once") not in REASONS:
        assert max(once, cached or 0.0) < CLOSE


@pytest.mark.parametrize("outtype", TYPES)
@pytest.mark.parametrize("entry", ["qwen3", "qwen3-moe"])
def test_weights_as_they_are_stored(entry: str, outtype: str, tmp_path: Path) -> None:
    """Beside the processor's exact executor, with the same file."""
    from runtime.device.torch_device import torch_device

    zoo_build.build(ZOO, entry, tmp_path / entry)
    gguftools.convert(tmp_path / entry, tmp_path / "model.gguf", outtype)
    ours, wanted = (gguftools.load(tmp_path / "model.gguf") for _ in range(2))
    ours.device, wanted.precision = torch_device("cpu"), "exact"
    ids = np.random.default_rng(3).integers(0, wanted.vocabulary_size, (2, 30))
    logits = wanted.forward(ids)
    assert np.abs(ours.forward(ids) - logits).max() < CLOSE * logits.std()
