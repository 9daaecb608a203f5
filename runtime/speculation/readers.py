"""Readers of the target model's states, which predict the token after the next one.

For each position a reader gets the model's hidden state, and the next token; its output predicts the token after that,
and replaces the model's state if that is not known yet.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from archs.families.deepseek4 import DEEPSEEK4
from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import read_hparams
from archs.layered import by_layer
from archs.mtp import check_beyond
from archs.registry import of_file
from archs.spec import Architecture
from archs.validation.draft_validators import as_deepseek4, check_draft
from quants import Tensor
from quants.errors import ModelError
from quants.tensor import all_readable

from ..arrays import Floats, Ids
from ..decoder import attention, feed_forward
from ..head import LazyLogits, output_of
from ..kernels.blas import one_thread
from ..kv_cache import KVCache
from ..layer import ForwardContext, Layer, Network
from ..model import RunningModel
from ..mtp import mtp_forward, next_token_network
from ..products.matmul import gather
from ..rope import rope_scaling


class Reader(Protocol):
    """model: the target. layers: those of it whose inputs are read; none: the last norm's output."""

    model: RunningModel
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

    def __init__(self, model: RunningModel) -> None:
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

    def __init__(self, model: RunningModel, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
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


def draft_network(architecture: Architecture, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Network:
    """Return the network of a draft model's file. Raises ModelError if keys and tensors contradict each other."""
    tensors = all_readable(tensors)
    check_draft(architecture, metadata, tensors)
    if metadata.get(f"{architecture.name}.hyper_connection.count") is not None:
        architecture, metadata = DEEPSEEK4, as_deepseek4(architecture.name, metadata)
    keys, grouped, numbers = Keys.of(architecture, metadata), by_layer(tensors), read_hparams(architecture, metadata)
    return Network(
        block=architecture.block,
        keys=keys,
        hparams=numbers,
        layers=tuple(Layer(at, grouped[at]) for i in range(len(numbers.layers)) if (at := f"blk.{i}.") in grouped),
        global_tensors=Layer("", grouped[""]),
        scaling=rope_scaling(keys, two_lists=False),
    )


def check_layers(model: RunningModel, layers: Sequence[int]) -> None:
    """Raise ModelError if a target cannot give the inputs of these layers."""
    if not model.gives_inputs:
        raise ModelError(f"such a draft model can't read the states of a model of {model.architecture.name}")
    if max(layers) > (count := len(model.network.layers)):
        listed = ", ".join(map(str, layers))
        raise ModelError(f"the draft reads layers {listed} of its target; this model has {count}")


class Tables(NamedTuple):
    """A draft model's embedding and output, or its target's. drafted: the target's ids of its tokens, None for all."""

    table: Tensor
    output: Tensor
    drafted: Ids | None

    @classmethod
    def of(cls, network: Network, model: RunningModel) -> "Tables":
        own, outside = network.global_tensors, model.network.global_tensors
        table = (own if "token_embd.weight" in own else outside).need("token_embd.weight")
        output = own.need("output.weight") if "output.weight" in own else output_of(model.network).weight
        return cls(table, output, own.need("d2t").elements().reshape(-1).astype(np.int64) if "d2t" in own else None)

    def check(self, network: Network) -> None:
        """Raise ModelError if they do not fit the draft model's width."""
        for tensor in (self.table, self.output):
            if tensor.width != network.hparams.width:
                problem = f"the draft's states are {network.hparams.width} wide, {tensor.name!r} is {tensor.width}"
                raise ModelError(problem, "it has none of its own, and was made for another target")


class Eagle3:
    """An EAGLE-3 draft model: its layer reads embeddings and states side by side.

    Source: llama.cpp's graph of `eagle3`, and SafeAILab's EAGLE (github.com/SafeAILab/EAGLE, model/cnets.py).
    """

    def __init__(
        self,
        model: RunningModel,
        architecture: Architecture,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
    ) -> None:
        """Load the file. model: the target. metadata, tensors: of the draft model's file.

        Raises ModelError if they don't belong together, or the file contradicts itself.
        """
        self.network = draft_network(architecture, metadata, tensors)
        keys = self.network.keys
        self.model, self.layers = model, tuple(int(layer) for layer in keys.need("target_layers"))
        self.tables = Tables.of(self.network, model)
        self.words = model.vocabulary_size
        self._check(model, int(keys.need("target_hidden_size")))

    def _check(self, model: RunningModel, width: int) -> None:
        wide = model.network.hparams.width
        check_layers(model, self.layers)
        if width != wide:
            raise ModelError(f"the draft was made for states {width} wide; the model's are {wide} wide")
        self.tables.check(self.network)
        if self.tables.drafted is not None and self.tables.drafted.max(initial=0) >= self.words:
            raise ModelError(f"the draft model gives token {self.tables.drafted.max()}; the model has {self.words}")

    def begin(self, states: Floats) -> Floats:
        forward, outside = self._pass(1, None), self.network.global_tensors
        if self.network.keys.get("norm_before_fc"):
            states = forward.norm(outside, "enc.output_norm", states)
        with one_thread():
            return forward.project(outside, "fc", states)

    def read(self, states: Floats, following: Sequence[int], cache: KVCache | None) -> tuple[LazyLogits, Floats]:
        forward, layer = self._pass(len(following), cache), self.network.layers[0]
        # 0: unknown to the draft model
        ids = np.array([token if token < self.tables.table.rows else 0 for token in following])
        with one_thread():
            normed = forward.norm(layer, "attn_norm_2", states)
            both = np.concatenate([forward.norm(layer, "attn_norm", gather(self.tables.table, ids)), normed], axis=1)
            x = normed if self.network.keys.get("norm_before_residual") else states
            x = x + attention(forward, layer, both)
            x = x + feed_forward(forward, layer, forward.norm(layer, "ffn_norm", x))
            normed = forward.norm(self.network.global_tensors, "output_norm", forward.finite("the draft's layer", x))
        return LazyLogits(normed, self.tables.output, self._placed, self.model.threads, self.model.precision), x

    def _placed(self, logits: Floats, first: int) -> Floats:
        """Return logits (n, tokens drafted) in the places of the model's tokens."""
        if self.tables.drafted is None:
            return logits
        placed = np.full((len(logits), self.words), -np.inf, np.float32)
        placed[:, self.tables.drafted] = logits
        return placed

    def _pass(self, tokens: int, cache: KVCache | None) -> ForwardContext:
        return ForwardContext(self.network, 1, tokens, cache, self.model.threads, self.model.precision)
