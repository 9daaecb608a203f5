"""Sparse feed-forward nets, which compute only some neurons.

In PowerInfer's files a predictor selects the neurons. It reads the input of the net's norm, and scores every neuron:
fc2 · relu(fc1 · x). A neuron is computed if its score is not below the threshold; for all others gate, up and down
count as zero. Neurons that no token selects are not even read; of the rest each token keeps its own selection.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from archs.transforms import take

from . import ops
from .arrays import Floats
from .layer import ForwardContext, Layer, Sparsity
from .products.matmul import matmul, matmul_transposed
from .products.precision import Precision


def down_by_neuron(
    forward: ForwardContext, layer: Layer, hidden: Floats, chosen: NDArray[np.intp] | None = None
) -> Floats:
    """Return the down projection of hidden (tokens, neurons), all or those chosen: float32 (tokens, width)."""
    weight = layer.need("ffn_down_t.weight")
    result = matmul_transposed(hidden, weight if chosen is None else take(weight, chosen), forward.threads)
    bias = layer.array("ffn_down_t.bias")
    return result if bias is None else np.add(result, bias, out=result)


def predicted(
    layer: Layer, x: Floats, sparsity: Sparsity, threads: int = 1, precision: Precision = "float32"
) -> NDArray[np.bool_]:
    """Return the predicted neurons (tokens, neurons) for the residual stream x (tokens, width); they are counted."""
    product = partial(matmul, threads=threads, precision=precision)
    scores = product(ops.relu(product(x, layer.need("fc1.weight"))), layer.need("fc2.weight"))
    marked: NDArray[np.bool_] = scores >= np.float32(sparsity.threshold)
    sparsity.marked += int(np.count_nonzero(marked))
    sparsity.neurons += marked.size
    return marked


def sparse(forward: ForwardContext, layer: Layer, x: Floats, residual: Floats, sparsity: Sparsity) -> Floats:
    """Return down(relu(gate x) * up x) over predicted neurons: float32 (tokens, width)."""
    marked = predicted(layer, residual, sparsity, forward.threads, forward.precision)
    chosen = np.flatnonzero(marked.any(axis=0))
    hidden = forward.project(layer, "ffn_up", x, chosen)
    if "ffn_gate.weight" in layer:
        hidden *= ops.relu(forward.project(layer, "ffn_gate", x, chosen))
    else:
        hidden = ops.relu(hidden)
    hidden *= marked[:, chosen]
    return down_by_neuron(forward, layer, hidden, chosen)
