"""Test a device before it is trusted: products and a model's first layers beside the processor's.

Some devices are wrong in silence, such as Metal in some releases of torch.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from quants.errors import OptionError

from .. import decoder
from ..arrays import Floats
from ..embedding import embed
from ..graph import text
from ..graph.builder import Graph
from ..layer import ForwardContext
from .weights import product

if TYPE_CHECKING:
    from ..model import RunningModel
    from .torch_device import TorchDevice

TOKENS = 32
BOUND = 1e-3  # of the values' spread
TIES = 1  # tokens that may differ: a router's choice between two equal scores
LEAVE_OUT = "measure on another device, or on the processor"


def check_device(model: "RunningModel", device: "TorchDevice") -> None:
    """Raise OptionError, with the device's name, if it computes products or the model's first layers wrongly."""
    for problem in _wrong_products(device.device):
        raise OptionError(f"{device.title} computes {problem} wrongly", LEAVE_OUT)
    if model.encoder_decoder is not None or model.encoder is not None or not model.network.layers:
        return
    graph = first_layers(decoder.graph_of(model.network))
    ids = np.random.default_rng(7).integers(0, model.vocabulary_size, (1, TOKENS))
    expected = text.run(graph, *_begun(model, ids))
    result = next(device.stream(graph, [_begun(model, ids)])) if device.streams(model.tensors.values()) else None
    if result is None:
        result = device.run(graph, *_begun(model, ids))
    wrong = _tokens_apart(expected, result)
    if wrong > TIES:
        last = graph.nodes[-1].layer
        what = f"{wrong} of {TOKENS} tokens differ from the processor's after layer {last}"
        raise OptionError(f"{device.title} computes this model wrongly: {what}", LEAVE_OUT)


def first_layers(graph: Graph) -> Graph:
    """Return a graph up to the first layer after which no layer has another type of operation."""
    seen, stop = set[type](), 0
    for layer, value in graph.layer_outputs.items():
        types = {type(node.operation) for node in graph.nodes if node.layer == layer}
        if types - seen or not stop:
            stop = value.number + 1
        seen |= types
    nodes = graph.nodes[:stop]
    return replace(graph, nodes=nodes, regions=tuple(each for each in graph.regions if each.stop <= stop))


def _begun(model: "RunningModel", ids: np.ndarray) -> tuple[ForwardContext, Floats]:
    """Return a pass in exact products on the processor, and its embedded tokens."""
    forward = replace(model.new_pass(*ids.shape), precision="exact", observe=None, device=None)
    forward.tokens = ids.reshape(-1)
    return forward, embed(forward, forward.tokens)


def _tokens_apart(expected: Floats, result: Floats) -> int:
    apart = np.abs(np.asarray(result) - expected).reshape(len(expected), -1).max(axis=1)
    return int(np.sum(~(apart < BOUND * expected.std())))


def _wrong_products(device: torch.device) -> list[str]:
    """Return what a device computes wrongly of products of some shapes and types."""
    made, wrong = np.random.default_rng(5), []
    for tokens, width, rows in ((1, 64, 96), (33, 320, 257), (512, 1024, 640)):
        x, w = (made.standard_normal((n, width), dtype=np.float32) for n in (tokens, rows))
        for stored in (torch.float32, torch.float16, torch.bfloat16):
            weight = torch.from_numpy(w).to(stored)
            expected = x.astype(np.float64) @ weight.double().numpy().T
            with torch.inference_mode():
                y = product(torch.from_numpy(x).to(device), weight.to(device)).cpu().numpy()
            if not np.abs(y - expected).max() < 1e-4 * np.sqrt(width):
                name = str(stored).removeprefix("torch.")
                wrong.append(f"a product of ({tokens}, {width}) with {name} ({rows}, {width})")
    return wrong
