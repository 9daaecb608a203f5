"""Gemma 4's assistants: layers that attend to the target's own keys and values, and draft from one position.

All tokens of a draft are drafted from the position of the last known token, whose keys the target does not have yet.
The first reads the target's state of the token before it, each later one the assistant's own. Source: transformers
`models/gemma4_assistant/`, whose windows include one key more than the model's, counted from the last token that has
keys; llama.cpp's graph of `gemma4-assistant`, whose windows are the model's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import read_hparams
from archs.layered import by_layer
from archs.spec import Architecture
from archs.validation.draft_validators import as_layers, check_draft
from quants import Tensor
from quants.errors import ModelError
from quants.tensor import all_readable

from .. import decoder
from ..arrays import Floats
from ..head import LazyLogits
from ..kernels.blas import one_thread
from ..kv_cache import KVCache
from ..layer import ForwardContext, Layer, Network
from ..model import RunningModel
from ..products.matmul import gather
from ..rope import rope_scaling
from ..sampling.sampler import State
from .acceptance import Candidate
from .drafts import Drawing
from .trees import DraftTree, comb


class Assistant:
    """An assistant's file, ready to run with a model."""

    def __init__(
        self,
        model: RunningModel,
        architecture: Architecture,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
    ) -> None:
        """Load the file. model: the target. Raises ModelError if they don't belong together, or the file contradicts
        itself.
        """
        tensors = all_readable(tensors)
        check_draft(architecture, metadata, tensors)
        whole, grouped = as_layers(metadata), by_layer(tensors)
        keys, numbers = Keys.of(architecture, whole), read_hparams(architecture, whole)
        sources = _sources(model)
        of_layers = [own.window is not None for own in numbers.layers]
        if model.architecture.name != "gemma4" or any(each not in sources for each in of_layers):
            raise ModelError(f"the assistant was made for another model than one of {model.architecture.name}")
        for i, own in enumerate(numbers.layers):
            theirs = model.network.hparams.layers[sources[of_layers[i]]]
            if (own.key_width, own.value_width) != (theirs.key_width, theirs.value_width) or (
                own.heads % theirs.kv_heads
            ):
                problem = f"the assistant's layer {i} has {own.heads} heads {own.key_width} wide"
                raise ModelError(f"{problem}; the model's keys are {theirs.kv_heads}, {theirs.key_width} wide")
        wide = int(keys.need("embedding_length_out"))
        if wide != model.network.hparams.width:
            problem = f"the assistant was made for states {wide} wide; the model's are"
            raise ModelError(f"{problem} {model.network.hparams.width} wide")
        self.model = model
        self.network = Network(
            block=architecture.block,
            keys=keys,
            hparams=numbers.with_layers(
                lambda i, own: {"kv_source_layer": sources[of_layers[i]], "window": own.window and own.window + 1}
            ),
            layers=tuple(Layer(f"blk.{i}.", grouped[f"blk.{i}."]) for i in range(len(numbers.layers))),
            global_tensors=Layer("", grouped[""]),
            scaling=rope_scaling(keys, two_lists=False),
        )

    def read(self, token: int, state: Floats, place: int, cache: KVCache) -> tuple[LazyLogits, Floats]:
        """Return logits (1, …) of the next token, and the replacement of the model's state of this one, (1, width).

        state: the model's of the token before, (1, width). place: of the last known token. cache: the model's, with all
        tokens before that one.
        """
        numbers, outside = self.model.network.hparams, self.network.global_tensors
        forward = ForwardContext(self.network, 1, 1, None, self.model.threads, self.model.precision)
        forward.positions = np.array([place - 1], np.int64)  # windows count from the last token that has keys
        forward.rotated_at = np.array([place + cache.shift], np.int64)
        forward.shared_keys = {
            own.kv_source_layer: cache.read(own.kv_source_layer)
            for own in self.network.hparams.layers
            if own.kv_source_layer is not None
        }
        table = self.model.network.global_tensors.need("token_embd.weight")
        embedded = gather(table, np.array([token])) * np.float32(numbers.embedding_scale)
        with one_thread():
            x = forward.project(outside, "nextn.pre_projection", np.concatenate([embedded, state], axis=1))
            x = forward.norm(outside, "output_norm", decoder.decode(forward, x))
            made = forward.project(outside, "nextn.post_projection", x)
        output = outside.need("token_embd.weight")
        return LazyLogits(x, output, None, self.model.threads, self.model.precision), made


def _sources(model: RunningModel) -> dict[bool, int]:
    """Return the model's last layers with keys of their own: the one with a window (True), and the one without."""
    layers = model.network.hparams.layers
    return {own.window is not None: i for i, own in enumerate(layers) if own.kv_source_layer is None}


class AssistantDrafter:
    """Drafter with an assistant; it has no cache, and reads the model's."""

    reads_states = True
    layers: tuple[int, ...] = ()

    def __init__(self, assistant: Assistant, drawing: Drawing) -> None:
        self.assistant, self.drawing = assistant, drawing
        self.cache: KVCache | None = None
        self._state: Floats | None = None  # of the last token in the model's cache

    def look(self, cache: KVCache) -> None:
        """Set the model's cache, before `propose`."""
        self.cache = cache

    def read(self, prompt: Sequence[int]) -> None:
        """Ignore the prompt."""

    def propose(self, text: Sequence[int], max_tokens: int, state: State) -> DraftTree:
        if self.cache is None or self._state is None:
            return DraftTree()
        places: list[list[Candidate]] = []
        token, made = text[-1], self._state
        while True:
            logits, made = self.assistant.read(token, made, len(text) - 1, self.cache)
            candidates = self.drawing.candidates(replace(logits, x=logits.x[-1:]).float32()[0], state)
            if not candidates:
                break
            places.append(candidates)
            if len(places) >= max_tokens:
                break
            state, token = self.drawing.after(state, candidates[0]), candidates[0].token
        return comb(places)

    def follow(self, states: Floats) -> None:
        self._state = states[-1:]
