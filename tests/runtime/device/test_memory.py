"""Measure how much memory streaming takes: a process that streams eight layers keeps less than three of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.device

CODE = """
import sys
sys.path.insert(0, ROOT)
from pathlib import Path
import numpy as np, torch
from dataclasses import replace
from runtime import decoder
from runtime.graph.placement import bytes_of_values, segments
from tests.runtime.device import models

torch.set_num_threads(1)
model = models.model(layers=8, width=1024, net=16384, empty=True)
from runtime.device.torch_device import torch_device
graph = decoder.graph_of(model.network)
layer = segments(graph)[1].nbytes
batches = models.texts(count=3, windows=1, length=16)

def peak():
    "Return the most memory so far; ru_maxrss would begin with that of the process that started this one."
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

def pass_of(memory):
    model.device = torch_device("cpu", memory)
    with model.prepare([(ids, 0) for ids in batches]):
        for ids in batches:
            model.lazy_logits(ids)
    return model.device.weights.peak

few = models.model(layers=1, width=32, net=32)
few.device = torch_device("cpu")
few.lazy_logits(batches[0])  # loads libraries and kernels
before = peak()
kept = pass_of(MEMORY(layer, bytes_of_values(graph, 1, 16)))
print(layer, kept, peak() - before)
"""


# Matrices have more than 32 MB, so that the C library gives freed ones back (see `runtime.kernels.memory`).
def measured(memory: str) -> tuple[int, int, int]:
    """Return the bytes of a layer, what was kept of weights at most, and how far the process grew."""
    root = Path(__file__).parents[3]
    code = CODE.replace("ROOT", repr(str(root))).replace("MEMORY", memory)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert not ended.returncode, ended.stderr
    layer, kept, grown = map(int, ended.stdout.split())
    return layer, kept, grown


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process its peak")
def test_eight_layers_take_the_memory_of_less_than_three() -> None:
    layer, kept, grown = measured("(lambda layer, values: int(2.5 * layer) + values)")
    assert layer < kept < 3 * layer
    assert layer < grown < 3 * layer
