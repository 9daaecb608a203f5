"""A model's whole list of operations, from ids of tokens to logits, and what each of its nodes gives of a text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants.errors import ModelError

from . import decoder
from .arrays import Floats
from .graph import operations as op
from .graph.builder import Graph, Node
from .graph.hooks import Observer, Wanted, hooks_on
from .graph.text import run
from .kernels.blas import one_thread
from .model import Model

ObserveValue = Callable[[Node, NDArray[Any]], None]


def whole_graph(model: Model) -> Graph:
    """Return the list of a model from ids to logits. Raises ModelError for a model that is not one list of layers."""
    if model.encoder_decoder or model.encoder or model.codes:
        raise ModelError(
            f"{model.architecture.name} models have no graph yet: they are an encoder, or one with a decoder",
            hint="`gguftools show MODEL` lists their tensors",
        )
    return decoder.whole_graph_of(model.network)


def run_observed(model: Model, tokens: Sequence[int], observers: Mapping[Wanted, Observer]) -> Floats:
    """Run a text through the whole list, and call the observers of nodes as `hooks_on` says: logits, float32 (tokens,
    vocabulary).

    Raises ModelError for an id outside the vocabulary and where values stop being finite, OptionError for no tokens and
    a name that no node has.
    """
    graph, ids = whole_graph(model), model.checked_tokens(tokens)
    hooks, forward = hooks_on(graph, observers), model.new_pass(1, len(ids))
    forward.tokens = ids
    with one_thread():
        result: Floats = run(graph, forward, np.empty((0, 0), np.float32), hooks)
    return result


def observe_values(model: Model, tokens: Sequence[int], observe: ObserveValue) -> None:
    """Call observe(node, values) with what every node gives of a text: (tokens, …), memory of its own.

    What steps hand to each other that is not of single tokens, such as cached keys, is left out. Raises as
    `run_observed` does.
    """

    def each(node: Node, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.shape == (len(tokens), *node.value.shape):
            observe(node, np.array(value))

    run_observed(model, tokens, {op.Operation: each})
