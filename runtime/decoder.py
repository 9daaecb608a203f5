"""Run all layers of a model over whole texts: its graph (`runtime.graph`), run by the executor for texts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from . import streams
from .arrays import Floats
from .graph import layers
from .graph.attention import attention as write_attention
from .graph.builder import Builder, Graph
from .graph.executors import run
from .graph.indexer import shared_keys as write_keys
from .graph.net import net as write_net
from .graph.operations import Input
from .graph.text import Hook
from .layer import ForwardContext, Layer, Network


def decode(forward: ForwardContext, x: Floats, first: int = 0) -> Floats:
    """Return x (tokens, width) after all layers, from position `first` of each text on: float32 (tokens, width).

    Raises ModelError if values stop being finite.
    """
    return _run(forward, graph_of(forward.network, forward.sparsity is not None), x, first)


def through_layers(forward: ForwardContext, x: Floats, first: int = 0) -> Floats:
    """Return `decode` of the first layer's input: x (tokens, streams * width) in models of several streams."""
    network, width = forward.network, x.shape[1]
    graph = _kept(network, ("layers", width), lambda: layers.layers_graph(network, width))
    return _run(forward, graph, x, first)


def graph_of(network: Network, predicts: bool = False) -> Graph:
    """Return the graph of a network, built once. predicts: the file's predictor selects neurons."""
    return _kept(network, ("decoder", predicts), lambda: layers.decoder_graph(network, predicts))


def whole_graph_of(network: Network) -> Graph:
    """Return the graph from token ids to logits, built once."""
    return _kept(network, ("whole",), lambda: layers.whole_graph(network))


def through_layer(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """Return a layer's output for the input x, which stays as it is: of an array, or of states of the pass's device.

    The layer may have other tensors than the network's own.
    """
    forward.first = 0
    graph = layers.layer_graph(forward.network, layer, x.shape[1:])
    if forward.device is not None and not isinstance(x, np.ndarray):  # states of the device
        through: Floats = forward.device.through(
            replace(graph, checked={graph.output.number: layer.prefix}), forward, x
        )
        return through
    return _finished(run(graph, forward, x), x)


def through_block_layer(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """Return `through_layer` for a draft model's block, which attends to all of itself and the keys before it,
    `forward.shared_keys`.
    """
    network, name = forward.network, ("block", id(layer), x.shape[1])
    return _finished(
        run(_kept(network, name, lambda: layers.layer_graph(network, layer, x.shape[1:], True)), forward, x), x
    )


def shared_keys(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """Return the one key of each token of x (tokens, width), which all heads share: float32 (tokens, 1, its width)."""
    return _part(forward, f"keys of {layer.prefix}", x, lambda b, value: write_keys(b, layer, value), layer)


def begin(forward: ForwardContext, x: Floats) -> Floats:
    """Return the first layer's input from embedded tokens x (tokens, width)."""
    return _part(forward, "begin", x, lambda b, value: layers.begin(b, value))


def ended(forward: ForwardContext, x: Floats) -> Floats:
    """Return the last norm's input from the last layer's output: float32 (tokens, width)."""
    return _part(forward, "end", x, lambda b, value: layers.end(b, value))


def attention(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """Return self-attention of one layer over x (tokens, width), with its output projection: float32 (tokens,
    width).
    """
    return _part(forward, f"attention of {layer.prefix}", x, lambda b, value: write_attention(b, layer, value), layer)


def projected(forward: ForwardContext, layer: Layer, role: str, x: Floats) -> Floats:
    """Return x (tokens, width) times a weight of a layer: float32 (tokens, rows)."""
    return _part(forward, f"{role} of {layer.prefix}", x, lambda b, value: b.linear(layer, role, value, role), layer)


def token_mixer(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """Return the output of one layer's token mixer, of any type, for x (tokens, width): float32 (tokens, width)."""
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
    """Return the result in memory of its own."""
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
    """Return hooks for requested values: layer inputs are kept, image features are added to layer outputs."""
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
    """Keep a layer's input, the mean of several streams."""
    forward.note(layer, streams.mean(forward, x) if streams.has_streams(forward) else np.array(x))


def _add_deeper(forward: ForwardContext, layer: int, x: Floats) -> None:
    """Add an image's deepstack features to a layer's output."""
    width, last = x.shape[1], layer + 1 == len(forward.network.layers)
    first, number = forward.first if last else 0, forward.network.deeper(layer)
    for image in forward.images if number is not None else ():
        deeper, skipped = image.embeddings[:, number * width :][:, :width], max(0, first - image.start)
        if deeper.shape[1] and skipped < len(deeper):
            start = image.start - first
            x[max(0, start) : image.stop - first] += deeper[skipped:]
