"""Readers of the target model's states, which predict the token after the next one.

For each position a reader gets the model's hidden state, and the next token; its output predicts the token after that,
and replaces the model's state if that is not known yet.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import read_hparams
from archs.layered import by_layer
from archs.mtp import check_beyond
from archs.registry import of_file
from archs.spec import Architecture
from archs.validation.draft_validators import check_draft
from quants import Tensor
from quants.errors import ModelError
from quants.tensor import all_readable

from ..arrays import Floats
from ..decoder import attention, feed_forward
from ..head import LazyLogits, output_of
from ..kernels.blas import one_thread
from ..kv_cache import KVCache
from ..layer import ForwardContext, Layer, Network
from ..model import Model
from ..mtp import mtp_forward, next_token_network
from ..products.matmul import gather
from ..rope import rope_scaling


class Reader(Protocol):
    """model: the target. layers: those of it whose inputs are read; none: the last norm's output."""

    model: Model
    layers: tuple[int, ...]

    def begin(self, states: Floats) -> Floats:
        """Return the input of `read`, (tokens, width), from the model's states."""

    def read(self, states: Floats, following: Sequence[int], cache: KVCache | None) -> tuple[LazyLogits, Floats]:
        """Return for each position logits of the token after the next one, and the replacement of its state.

        states: of `begin`, (tokens, width), or replacements. Positions follow those in the reader's own cache.
        """


class OwnLayer:
    """The model's own MTP layer."""

    layers: tuple[int, ...] = ()

    def __init__(self, model: Model) -> None:
        """Raise ModelError for a model without such a layer, or with an unsupported one."""
        model.next_tokens  # noqa: B018
        self.model = model

    def begin(self, states: Floats) -> Floats:
        return self.model.mtp_input(states)

    def read(self, states: Floats, following: Sequence[int], cache: KVCache | None) -> tuple[LazyLogits, Floats]:
        ahead = self.model.mtp_forward(states, following, cache)
        return ahead, ahead.states


class MtpLayer:
    """The MTP layer of another file, which also has embedding and output."""

    layers: tuple[int, ...] = ()

    def __init__(self, model: Model, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Load the file, as `Eagle3`."""
        name, tensors = str(metadata["general.architecture"]), all_readable(tensors)
        architecture, own = of_file(name, metadata), Layer("", by_layer(tensors)[""])
        keys = Keys.of(architecture, metadata)
        check_beyond(architecture, metadata, tensors)
        scaling = rope_scaling(keys, two_lists="rope_factors_long.weight" in own)
        numbers = read_hparams(architecture, metadata)
        if numbers.width != model.network.hparams.width:
            problem = f"the draft was made for states {numbers.width} wide; the model's are"
            raise ModelError(f"{problem} {model.network.hparams.width} wide")
        streams, those = (int(each.get("hyper_connection.count") or 1) for each in (keys, model.network.keys))
        if streams != those and any(".hc_" in tensor for tensor in tensors):
            raise ModelError(f"the draft was made for states of {streams} streams; the model has {those}")
        network = Network(architecture.block, keys, numbers, (), own, scaling)
        self.model, self.network = model, next_token_network(network, architecture, metadata, tensors)

    def begin(self, states: Floats) -> Floats:
        return self.model.mtp_input(states, self.network)

    def read(self, states: Floats, following: Sequence[int], cache: KVCache | None) -> tuple[LazyLogits, Floats]:
        forward = ForwardContext(self.network, 1, len(following), cache, self.model.threads, self.model.precision)
        rows = self.network.global_tensors.need("token_embd.weight").rows
        with one_thread():
            ahead = mtp_forward(forward, states, np.array([token if token < rows else 0 for token in following]))
        return ahead, ahead.states


class Eagle3:
    """An EAGLE-3 draft model: its layer reads embeddings and states side by side.

    Source: llama.cpp's graph of `eagle3`, and SafeAILab's EAGLE (github.com/SafeAILab/EAGLE, model/cnets.py).
    """

    def __init__(
        self, model: Model, architecture: Architecture, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> None:
        """Load the file. model: the target. metadata, tensors: of the draft model's file.

        Raises ModelError if they don't belong together, or the file contradicts itself.
        """
        tensors = all_readable(tensors)
        check_draft(architecture, metadata, tensors)
        keys, grouped = Keys.of(architecture, metadata), by_layer(tensors)
        self.model, self.layers = model, tuple(int(layer) for layer in keys.need("target_layers"))
        self.network = Network(
            block=architecture.block,
            keys=keys,
            hparams=read_hparams(architecture, metadata),
            layers=(Layer("blk.0.", grouped["blk.0."]),),
            global_tensors=Layer("", grouped[""]),
            scaling=rope_scaling(keys, two_lists=False),
        )
        own, outside = self.network.global_tensors, model.network.global_tensors
        self.table = (own if "token_embd.weight" in own else outside).need("token_embd.weight")
        self.output = own.need("output.weight") if "output.weight" in own else output_of(model.network).weight
        self.drafted = own.need("d2t").elements().reshape(-1).astype(np.int64) if "d2t" in own else None
        self.words = model.vocabulary_size
        self._check(model, int(keys.need("target_hidden_size")))

    def _check(self, model: Model, width: int) -> None:
        if not model.gives_inputs:
            raise ModelError(f"such a draft model can't read the states of a model of {model.architecture.name}")
        count, wide = len(model.network.layers), model.network.hparams.width
        if max(self.layers) > count:
            listed = ", ".join(map(str, self.layers))
            raise ModelError(f"the draft reads layers {listed} of its target; this model has {count}")
        if width != wide:
            raise ModelError(f"the draft was made for states {width} wide; the model's are {wide} wide")
        for tensor in (self.table, self.output):
            if tensor.width != self.network.hparams.width:
                problem = f"the draft's states are {self.network.hparams.width} wide, {tensor.name!r} is {tensor.width}"
                raise ModelError(problem, "it has none of its own, and was made for another target")
        if self.drafted is not None and self.drafted.max(initial=0) >= self.words:
            raise ModelError(f"the draft model gives token {self.drafted.max()}; the model has {self.words}")

    def begin(self, states: Floats) -> Floats:
        forward, outside = self._pass(1, None), self.network.global_tensors
        if self.network.keys.get("norm_before_fc"):
            states = forward.norm(outside, "enc.output_norm", states)
        with one_thread():
            return forward.project(outside, "fc", states)

    def read(self, states: Floats, following: Sequence[int], cache: KVCache | None) -> tuple[LazyLogits, Floats]:
        forward, layer = self._pass(len(following), cache), self.network.layers[0]
        # 0: unknown to the draft model
        ids = np.array([token if token < self.table.rows else 0 for token in following])
        with one_thread():
            normed = forward.norm(layer, "attn_norm_2", states)
            both = np.concatenate([forward.norm(layer, "attn_norm", gather(self.table, ids)), normed], axis=1)
            x = normed if self.network.keys.get("norm_before_residual") else states
            x = x + attention(forward, layer, both)
            x = x + feed_forward(forward, layer, forward.norm(layer, "ffn_norm", x))
            normed = forward.norm(self.network.global_tensors, "output_norm", forward.finite("the draft's layer", x))
        return LazyLogits(normed, self.output, self._placed, self.model.threads, self.model.precision), x

    def _placed(self, logits: Floats, first: int) -> Floats:
        """Return logits (n, tokens drafted) in the places of the model's tokens."""
        if self.drafted is None:
            return logits
        placed = np.full((len(logits), self.words), -np.inf, np.float32)
        placed[:, self.drafted] = logits
        return placed

    def _pass(self, tokens: int, cache: KVCache | None) -> ForwardContext:
        return ForwardContext(self.network, 1, tokens, cache, self.model.threads, self.model.precision)
