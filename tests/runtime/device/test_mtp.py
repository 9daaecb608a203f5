"""Compute MTP layers on a device, also where weights go through it layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import decoder
from runtime.graph.placement import bytes_of_values, segments
from runtime.importance import Importance
from runtime.model import RunningModel
from tests.runtime.test_mtp import converted

pytestmark = pytest.mark.device


@pytest.mark.parametrize("entry", ["qwen3-5-moe", "glm4-moe-lite"])
def test_logits_and_sums_are_the_processors(entry: str, tmp_path: Path) -> None:
    from runtime.device.importance import DeviceImportance
    from runtime.device.torch_device import torch_device

    source = converted(entry, tmp_path)
    batches = [*np.random.default_rng(0).integers(0, 60, (3, 1, 24))]
    ours, importance = RunningModel(source.metadata, source.tensors, threads=1, precision="exact"), Importance()
    ours.observe = importance.observe
    wanted = _read(ours, batches)
    graph = decoder.graph_of(ours.network)
    least = max(part.least for part in segments(graph, 0)) + bytes_of_values(graph, 1, 24)
    measured = []
    for memory in (None, least):
        model, sums = RunningModel(source.metadata, source.tensors, threads=1, precision="exact"), DeviceImportance()
        model.device, model.observe = torch_device("cpu", memory), sums.observe
        logits = _read(model, batches)
        for mine, theirs in zip(logits, wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-4 * np.std(theirs))
        measured.append(sums.finish())
    assert measured[0].keys() == measured[1].keys() == importance.sums.keys()
    for name, theirs in importance.sums.items():
        np.testing.assert_array_equal(measured[0][name].squares, measured[1][name].squares)
        np.testing.assert_allclose(measured[0][name].squares, theirs.squares, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(measured[0][name].counts, theirs.counts)


def _read(model: RunningModel, batches: list[Any]) -> list[Any]:
    """Return the MTP layer's logits of each batch."""
    with model.prepare([(ids, 0) for ids in batches]):
        return [model.mtp_logits(ids, model.lazy_logits(ids).states).float32() for ids in batches]
