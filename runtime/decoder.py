"""All layers of a model over whole texts: its list of operations (`runtime.graph`), run by the executor for texts."""

from collections.abc import Callable
from typing import Any

import numpy as np

from . import streams
from .arrays import Floats
from .graph import layers
from .graph.attention import attention as write_attention
from .graph.builder import Builder, Graph
from .graph.indexer import shared_keys as write_keys
from .graph.net import net as write_net
from .graph.operations import Input
from .graph.text import Hook, run
from .layer import ForwardContext, Layer, Network


def decode(forward: ForwardContext, x: Floats, first: int = 0) -> Floats:
    """Return x (tokens, width) through all layers, from position `first` of each text on: float32 (tokens, width).

    Raises ModelError where it stops being finite.
    """
    return _run(forward, graph_of(forward.network, forward.sparsity is not None), x, first)


def through_layers(forward: ForwardContext, x: Floats, first: int = 0) -> Floats:
    """Return the same of what stands before the first layer already: x (tokens, streams * width) in models of
    several.
    """
    network, width = forward.network, x.shape[1]
    graph = _kept(network, ("layers", width), lambda: layers.layers_graph(network, width))
    return _run(forward, graph, x, first)


def graph_of(network: Network, predicts: bool = False) -> Graph:
    """Return the list of a network, which is written once. predicts: the file's predictor chooses neurons."""
    return _kept(network, ("decoder", predicts), lambda: layers.decoder_graph(network, predicts))


def whole_graph_of(network: Network) -> Graph:
    """Return the list from ids of tokens to logits, which is written once."""
    return _kept(network, ("whole",), lambda: layers.whole_graph(network))


def through_layer(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """What stands before a layer through that layer; x stays as it is. The layer may have other tensors than the
    network's own.
    """
    forward.first = 0
    return _finished(run(layers.layer_graph(forward.network, layer, x.shape[1:]), forward, x), x)


def through_block_layer(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """Return the same of a draft's block, which sees all of itself and the keys before it, `forward.shared_keys`."""
    network, name = forward.network, ("block", id(layer), x.shape[1])
    return _finished(
        run(_kept(network, name, lambda: layers.layer_graph(network, layer, x.shape[1:], True)), forward, x), x
    )


def shared_keys(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """Return the one key of each token of x (tokens, width), which all heads share: float32 (tokens, 1, its width)."""
    return _part(forward, f"keys of {layer.prefix}", x, lambda b, value: write_keys(b, layer, value), layer)


def begin(forward: ForwardContext, x: Floats) -> Floats:
    """What the first layer reads of embedded tokens x (tokens, width)."""
    return _part(forward, "begin", x, lambda b, value: layers.begin(b, value))


def ended(forward: ForwardContext, x: Floats) -> Floats:
    """What the last norm reads of what the last layer gave: float32 (tokens, width)."""
    return _part(forward, "end", x, lambda b, value: layers.end(b, value))


def attention(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """Return self-attention of one layer over x (tokens, width), with its output projection: float32 (tokens,
    width).
    """
    return _part(forward, f"attention of {layer.prefix}", x, lambda b, value: write_attention(b, layer, value), layer)


def token_mixer(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """What one layer takes from other tokens of x (tokens, width), whatever mixes them: float32 (tokens, width)."""
    return _part(forward, f"mixer of {layer.prefix}", x, lambda b, value: layers.token_mixer(b, layer, value), layer)


def feed_forward(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """Return the feed-forward net of one layer over x (tokens, width), which is the residual stream's norm."""
    return _part(forward, f"net of {layer.prefix}", x, lambda b, value: write_net(b, layer, value, value), layer)


def _part(
    forward: ForwardContext, name: str, x: Floats, write: Callable[[Builder, Any], Any], layer: Layer | None = None
) -> Floats:
    def made() -> Graph:
        b = Builder(forward.network, forward.sparsity is not None)
        value = b.add("input", Input(x.shape[1:]))
        b.layer = layer
        write(b, value)
        return b.graph()

    forward.first = 0
    return _finished(run(_kept(forward.network, (name, x.shape[-1], layer and id(layer)), made), forward, x), x)


def _finished(result: Floats, x: Floats) -> Floats:
    """Return the result, in memory of its own."""
    return result.copy() if result is x else result


def _kept(network: Network, name: tuple[Any, ...], write: Callable[[], Graph]) -> Graph:
    if name not in network.graphs:
        network.graphs[name] = write()
    graph: Graph = network.graphs[name]
    return graph


def _run(forward: ForwardContext, graph: Graph, x: Floats, first: int) -> Floats:
    forward.first = first
    forward.streams = None
    result: Floats = run(graph, forward, x, _hooks(forward, graph))
    return _finished(result, x)


def _hooks(forward: ForwardContext, graph: Graph) -> dict[int, Hook]:
    """What is asked of values on the way: inputs of layers are kept, images are added to what layers give."""
    hooks: dict[int, list[Hook]] = {}

    def on(number: int, hook: Hook) -> None:
        hooks.setdefault(number, []).append(hook)

    layer_count, several = len(forward.network.layers), streams.has_streams(forward)
    for index, value in graph.layer_outputs.items():
        if forward.images and forward.network.deeper(index) is not None:
            on(value.number, lambda x, index=index: _add_deeper(forward, index, x))  # type: ignore[misc]
    for index in forward.noted:
        value = (
            graph.output
            if index == layer_count and not several
            else (graph.layer_outputs[layer_count - 1] if index == layer_count else graph.layer_inputs[index])
        )
        on(value.number, lambda x, index=index: _note(forward, index, x))  # type: ignore[misc]

    def all_of(each: list[Hook]) -> Hook:
        def hook(x: Floats) -> None:
            for one in each:
                one(x)

        return hook

    return {number: all_of(each) for number, each in hooks.items()}


def _note(forward: ForwardContext, layer: int, x: Floats) -> None:
    """Keep what a layer is given, of several streams their mean."""
    forward.note(layer, streams.mean(forward, x) if streams.has_streams(forward) else np.array(x))


def _add_deeper(forward: ForwardContext, layer: int, x: Floats) -> None:
    """Add to a layer's outputs what images have for it besides their embeddings."""
    width, last = x.shape[1], layer + 1 == len(forward.network.layers)
    first, number = forward.first if last else 0, forward.network.deeper(layer)
    for image in forward.images if number is not None else ():
        deeper, skipped = image.embeddings[:, number * width :][:, :width], max(0, first - image.start)
        if deeper.shape[1] and skipped < len(deeper):
            start = image.start - first
            x[max(0, start) : image.stop - first] += deeper[skipped:]
