"""A model's whole list of operations, from ids of tokens to logits, and what each of its nodes gives of a text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants.errors import ModelError

from . import decoder
from .arrays import Floats
from .graph import operations as op
from .graph.builder import Graph, Node
from .graph.hooks import Observer, Wanted, base_name, hooks_on
from .graph.text import run
from .kernels.blas import one_thread
from .model import Model

WEIGHTS = "ffn_moe_weights"
ObserveValue = Callable[[Node, str, NDArray[Any]], None]


def whole_graph(model: Model) -> Graph:
    """The list of a model from ids to logits. Raises ModelError for a model that is not one list of layers."""
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
    """Call observe(node, name, values) with what every node gives of a text: (tokens, …), memory of its own.

    A router gives two values: the chosen experts, and their weights under the name `ffn_moe_weights`. Raises as
    `run_observed` does.
    """

    def each(node: Node, value: Any) -> None:
        for name, array in parts(node, value):
            observe(node, name, np.array(array))

    run_observed(model, tokens, {op.Operation: each})


def parts(node: Node, value: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays of a node's value with their names; functions and what else steps hand to each other are left out."""
    if isinstance(value, np.ndarray):
        yield node.name, _by_token(node, value)
    elif isinstance(node.operation, op.Route):
        yield node.name, value[0]
        yield node.name.replace(base_name(node), WEIGHTS), value[1]
    elif isinstance(value, tuple) and isinstance(value[0], np.ndarray):
        yield node.name, value[0]


def _by_token(node: Node, value: NDArray[Any]) -> NDArray[Any]:
    """Tokens first, also of copies of hidden states, which lie (copies, tokens, width)."""
    return value if value.shape[1:] == node.value.shape or value.ndim != 3 else value.swapaxes(0, 1)
