"""Run a model one layer after another over a whole text, while its weights change.

Between two layers only the hidden states of the text are kept: float32, tokens times the model's width.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from quants import Tensor
from quants.errors import ModelError

from .arrays import Floats, Ids
from .decoder import begin as begin_layers
from .decoder import ended, through_layer
from .embedding import embed
from .head import LazyLogits, head
from .kernels.blas import one_thread
from .layer import ForwardContext, Layer

if TYPE_CHECKING:
    from .hessians import Hessians, Inputs
    from .model import RunningModel

STATES = 3  # texts that weights are fitted to, and held-back ones, in two models


@dataclass
class Batch:
    """Windows of equal length between two layers: their hidden states x (tokens, width), or several streams (tokens,
    streams * width). On a device: its states, see `runtime.layer.Device`.
    """

    forward: ForwardContext
    x: Any

    def states(self) -> Floats:
        """Return the hidden states as an array."""
        states: Floats = self.x if isinstance(self.x, np.ndarray) else self.x.cpu().numpy()
        return states


def check_layerwise(model: "RunningModel") -> None:
    """Raise ModelError unless the model's layers are one sequence that each changes the hidden states in turn."""
    again = any(each.stored is not None for each in model.network.hparams.layers)
    if model.encoder_decoder is not None or model.encoder is not None or again:
        problem = f"{model.architecture.name} models cannot be run one layer after another"
        raise ModelError(problem, hint="an importance matrix serves them: `gguftools imatrix`")


def begin(model: "RunningModel", inputs: Iterable[Ids]) -> list[Batch]:
    """Return embedded token ids (windows, n_ctx), a batch for each. Raises ModelError (see `check_layerwise`)."""
    check_layerwise(model)
    batches = []
    for ids in inputs:
        forward = model.new_pass(*ids.shape)
        forward.tokens = ids.reshape(-1)
        with one_thread():
            x = forward.finite("token_embd.weight", embed(forward, ids.reshape(-1)))
            batches.append(Batch(forward, begin_layers(forward, x)))
    if model.device is not None:
        nbytes = sum(batch.x.nbytes for batch in batches)
        for batch in batches:
            batch.x = model.device.states(batch.x, STATES * nbytes)
    return batches


def hessians(model: "RunningModel", columns: int) -> "Hessians":
    """Return empty sums of the inputs of products, where the model is computed. columns: maximum block size."""
    from .hessians import Hessians

    if model.device is None:
        return Hessians(model.threads, columns)
    made: Hessians = model.device.hessians(model.threads, columns)
    return made


def changed_model(model: "RunningModel", tensors: Mapping[str, Tensor]) -> "RunningModel":
    """Return the model with other tensors, computed where it is."""
    from .model import RunningModel

    other = RunningModel(model.metadata, tensors, threads=model.threads)
    other.device = None if model.device is None else model.device.for_another()
    return other


def drop(model: "RunningModel", layer: Layer) -> None:
    """Release a layer's weights on the model's device."""
    if model.device is not None:
        model.device.drop(layer.tensors.values())


def head_input(batch: Batch) -> Floats:
    """Return the head's input of a batch after all layers: float32 (tokens, width)."""
    return ended(batch.forward, batch.states())


def watch(batches: Iterable[Batch], layer: Layer, watched: "Hessians") -> None:
    """Collect the inputs of a layer's products; the hidden states stay those before it."""
    advance(map(replace, batches), layer, watched)


def watch_differences(batches: Iterable[Batch], aims: Iterable[Batch], layer: Layer, watched: "Hessians") -> None:
    """Collect the inputs of a layer's products, and their differences from those of `aims`.

    aims: the same windows in a reference model, which go through the layer.
    """
    for batch, aim in zip(batches, aims, strict=True):
        watched.aims = watched.reference()
        advance([aim], layer, watched.aims)
        watch([batch], layer, watched)
    watched.aims = None


def advance(batches: Iterable[Batch], layer: Layer, watched: "Hessians | Inputs | None" = None) -> None:
    """Run a layer. watched: collects the inputs of its products on the way."""
    for batch in batches:
        forward = batch.forward
        if watched is not None:
            forward.observe, forward.observe_values = watched.observe, watched.observe_values
        try:
            with one_thread():
                x = through_layer(forward, layer, batch.x)
                batch.x = forward.finite(layer.prefix, x) if isinstance(x, np.ndarray) else x  # a device looks itself
        finally:
            forward.observe = forward.observe_values = None


def watch_head(batches: Iterable[Batch], name: str, watched: "Hessians") -> None:
    """Collect the inputs of the head's weight `name`, after the last layer."""
    for batch in batches:
        with one_thread():
            logits = head(batch.forward, head_input(batch))
        if isinstance(logits, LazyLogits):
            watched.observe(name, logits.x)


def with_tensors(layer: Layer, changed: Iterable[Tensor]) -> Layer:
    """Return the layer with other tensors under their names."""
    own = {tensor.name.removeprefix(layer.prefix): tensor for tensor in changed}
    return replace(layer, tensors={**layer.tensors, **own}, _small={})
