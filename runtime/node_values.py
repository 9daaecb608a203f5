"""A model's whole graph, from token ids to logits, and the values of its nodes for a text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants.errors import ModelError

from . import decoder, encoder_decoder
from .arrays import Floats
from .audio_codec import codes_graph_of
from .graph import operations as op
from .graph.builder import Graph, Node
from .graph.executors import run
from .graph.hooks import Observer, Wanted, hooks_on
from .kernels.blas import one_thread
from .model import RunningModel

ObserveValue = Callable[[Node, NDArray[Any]], None]


def whole_graph(model: RunningModel) -> Graph:
    """Return a model's graph from ids to logits, hidden states or spectra; of T5, both sides."""
    if model.codes:
        return codes_graph_of(model.network, model.codes)
    sides = model.encoder_decoder or model.encoder
    return encoder_decoder.graph_of(model.network, sides) if sides else decoder.whole_graph_of(model.network)


def run_observed(model: RunningModel, tokens: Sequence[int], observers: Mapping[Wanted, Observer]) -> Floats:
    """Run a text through the whole graph, and call the observers of nodes as `hooks_on` says: logits, float32 (tokens,
    vocabulary).

    Raises ModelError for an id outside the vocabulary, if values stop being finite, and for a model that reads two
    texts, OptionError for no tokens and an unknown node name.
    """
    if model.encoder_decoder:
        raise ModelError(
            f"{model.architecture.name} models read two texts; values are shown of models that read one",
            hint="`gguftools graph MODEL` lists their operations",
        )
    graph, ids = whole_graph(model), model.checked_tokens(tokens)
    hooks, forward = hooks_on(graph, observers), model.new_pass(1, len(ids))
    forward.tokens = ids
    with one_thread():
        result: Floats = run(graph, forward, np.empty((0, 0), np.float32), hooks)
    return result


def observe_values(model: RunningModel, tokens: Sequence[int], observe: ObserveValue) -> None:
    """Call observe(node, values) with the values of every node for a text: (tokens, …), memory of its own.

    Values that are not per token, such as cached keys, are left out. Raises as `run_observed` does.
    """

    def each(node: Node, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.shape == (len(tokens), *node.value.shape):
            observe(node, np.array(value))

    run_observed(model, tokens, {op.Operation: each})
