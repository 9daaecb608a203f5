"""Feed-forward nets of PowerInfer's files: only the neurons that a predictor marks take part.

The predictor reads what the feed-forward net's norm reads, and scores every neuron: fc2 · relu(fc1 · x). A neuron takes
part where its score is not below the threshold; for all others gate, up and down are taken for zero. Neurons that no
token marks are not even read; of the rest a token's own choice is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from archs.transforms import take

from . import ops
from .matmul import matmul, matmul_transposed

if TYPE_CHECKING:
    from .graph import Layer, Pass

Floats = NDArray[np.float32]


@dataclass
class Sparsity:
    """The score from which a neuron takes part, and how many of all neurons (of every token and layer) did so far."""

    threshold: float = 0.0
    marked: int = 0
    neurons: int = 0

    @property
    def skipped(self) -> float:
        """The share of neurons that did not take part."""
        return 1 - self.marked / self.neurons if self.neurons else 0.0

    def count(self, marked: NDArray[np.bool_]) -> None:
        self.marked += int(np.count_nonzero(marked))
        self.neurons += marked.size


def predicted(layer: Layer, x: Floats, sparsity: Sparsity) -> NDArray[np.bool_]:
    """Which neurons (tokens, neurons) are marked for the residual stream x (tokens, width)."""
    scores = matmul(ops.relu(matmul(x, layer.need("fc1.weight"))), layer.need("fc2.weight"))
    marked: NDArray[np.bool_] = scores >= np.float32(sparsity.threshold)
    sparsity.count(marked)
    return marked


def sparse_feed_forward(run: Pass, layer: Layer, x: Floats, residual: Floats, sparsity: Sparsity) -> Floats:
    """down(relu(gate x) * up x) over marked neurons: float32 (tokens, width). x: the norm's output."""
    marked = predicted(layer, residual, sparsity)
    chosen = np.flatnonzero(marked.any(axis=0))
    hidden = _neurons(layer, "ffn_up", x, chosen)
    if "ffn_gate.weight" in layer:
        gate = ops.relu(_neurons(layer, "ffn_gate", x, chosen))
        hidden = np.multiply(gate, hidden, out=hidden)
    else:
        hidden = ops.relu(hidden)
    hidden *= marked[:, chosen]
    result = matmul_transposed(hidden, take(layer.need("ffn_down_t.weight"), chosen))
    bias = layer.array("ffn_down_t.bias")
    return result if bias is None else np.add(result, bias, out=result)


def _neurons(layer: Layer, name: str, x: Floats, chosen: NDArray[np.intp]) -> Floats:
    """The projection `name` of x, of chosen neurons: float32 (tokens, chosen)."""
    result = matmul(x, take(layer.need(f"{name}.weight"), chosen))
    bias = layer.array(f"{name}.bias")
    return result if bias is None else np.add(result, bias[chosen], out=result)
