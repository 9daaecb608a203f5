"""Feed-forward nets of PowerInfer's files: only the neurons that a predictor marks take part.

The predictor reads what the feed-forward net's norm reads, and scores every neuron: fc2 · relu(fc1 · x). A neuron takes
part where its score is not below the threshold; for all others gate, up and down are taken for zero. Neurons that no
token marks are not even read; of the rest a token's own choice is kept.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from archs.transforms import take

from . import ops
from .arrays import Floats
from .layer import Layer, Pass, Sparsity
from .matmul import matmul, matmul_transposed
from .precision import Precision


def predicted(
    layer: Layer, x: Floats, sparsity: Sparsity, threads: int = 1, precision: Precision = "float32"
) -> NDArray[np.bool_]:
    """Which neurons (tokens, neurons) are marked for the residual stream x (tokens, width); they are counted."""
    product = partial(matmul, threads=threads, precision=precision)
    scores = product(ops.relu(product(x, layer.need("fc1.weight"))), layer.need("fc2.weight"))
    marked: NDArray[np.bool_] = scores >= np.float32(sparsity.threshold)
    sparsity.marked += int(np.count_nonzero(marked))
    sparsity.neurons += marked.size
    return marked


def sparse_feed_forward(forward: Pass, layer: Layer, x: Floats, residual: Floats, sparsity: Sparsity) -> Floats:
    """down(relu(gate x) * up x) over marked neurons: float32 (tokens, width). x: the norm's output."""
    marked = predicted(layer, residual, sparsity, forward.threads, forward.precision)
    chosen = np.flatnonzero(marked.any(axis=0))
    hidden = _neurons(forward, layer, "ffn_up", x, chosen)
    if "ffn_gate.weight" in layer:
        gate = ops.relu(_neurons(forward, layer, "ffn_gate", x, chosen))
        hidden = np.multiply(gate, hidden, out=hidden)
    else:
        hidden = ops.relu(hidden)
    hidden *= marked[:, chosen]
    result = matmul_transposed(hidden, take(layer.need("ffn_down_t.weight"), chosen), forward.threads)
    bias = layer.array("ffn_down_t.bias")
    return result if bias is None else np.add(result, bias, out=result)


def _neurons(forward: Pass, layer: Layer, name: str, x: Floats, chosen: NDArray[np.intp]) -> Floats:
    """The projection `name` of x, of chosen neurons: float32 (tokens, chosen)."""
    weight = take(layer.need(f"{name}.weight"), chosen)
    result = matmul(x, weight, threads=forward.threads, precision=forward.precision)
    bias = layer.array(f"{name}.bias")
    return result if bias is None else np.add(result, bias[chosen], out=result)
