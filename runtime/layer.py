"""Shared by all parts of a model: a layer's tensors, the model's hyperparameters, and the pass."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import HParams, LayerHParams
from archs.layer_types import LayerType, type_of_layer
from archs.spec import LayerSpec
from archs.transforms import take
from quants import Tensor
from quants.errors import ModelError

from . import ops
from .arrays import Floats, Ids
from .branches import Branches, TokenTree
from .images import EmbeddedImage, parts_of, rotated_at, seen_whole, together_at
from .importance import Observe, ObserveExperts, ObserveValues
from .kv_cache import CacheType, KVCache
from .products import integer_product
from .products.matmul import Inputs, matmul, matmul_experts
from .products.precision import Precision
from .products.rounding import ROUNDED, is_sensitive, up_to_last
from .profile import Profile
from .rope import RopeScaling, rope_table

IMAGE_WEIGHTS = {  # weights of CogVLM's text model → those for image tokens
    "attn_qkv": "vis_attn_qkv",
    "attn_output": "vis_attn_output",
    "ffn_gate": "vis_gate",
    "ffn_up": "vis_up",
    "ffn_down": "vis_down",
}
DAMAGED = "`gguftools validate` lists blocks that are no numbers; keys that scale may be wrong, too"


@dataclass(frozen=True)
class Layer:
    """The tensors of one layer (or of those outside the layers) by their names without the prefix."""

    prefix: str
    tensors: Mapping[str, Tensor]
    _small: dict[str, Floats] = field(default_factory=dict, compare=False)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    @property
    def index(self) -> int:
        return int(self.prefix.split(".")[-2])

    def array(self, name: str) -> Floats | None:
        """Return a small tensor (norm, bias) in float32, decoded once; None if there is none."""
        return self.need_array(name) if name in self.tensors else None

    def need(self, name: str) -> Tensor:
        """Return a tensor. Raises ModelError if the layer lacks it."""
        if name not in self.tensors:
            raise ModelError(f"the file has no tensor '{self.prefix}{name}', which its architecture needs")
        return self.tensors[name]

    def need_array(self, name: str) -> Floats:
        """Return `array` of a required tensor. Raises ModelError if it is missing."""
        if name not in self._small:
            self._small[name] = self.need(name).float32()
        return self._small[name]


@dataclass(frozen=True)
class Network:
    """A model as its parts see it; nothing changes while it runs.

    block: how a layer computes; keys, hyper: the metadata and the hyperparameters read from it; global_tensors: those
    outside of layers; scaling: of the rotary embedding.
    """

    block: LayerSpec
    keys: Keys
    hparams: HParams
    layers: tuple[Layer, ...]
    global_tensors: Layer
    scaling: RopeScaling | None
    graphs: dict[Any, Any] = field(default_factory=dict, init=False, compare=False)  # its graphs, as they are built

    def layer_type(self, layer: Layer) -> LayerType:
        """Return the layer's mixer, net and arrangement, as its family declares them."""
        stored = self.hparams.layers[layer.index].stored
        number = layer.index if stored is None else stored
        return type_of_layer(self.block, self.keys, number, layer.tensors, self.hparams.parallel)

    @property
    def deepstack(self) -> int | None:
        """Return how many layers get image features in addition to the embeddings; None: as many as the image has.

        Files lack the key for Qwen3-Omni, whose encoder has such features.
        """
        by_layer = self.keys.get("deepstack_mapping")
        if len(by_layer):
            return sum(int(number) > 0 for number in by_layer)
        count = self.keys.stored("n_deepstack_layers")
        return 0 if count is None else max(0, int(count)) or None

    @cached_property
    def rounded_layers(self) -> frozenset[str]:
        """Return prefixes of the layers whose products may be rounded (see `runtime.products.rounding`).

        Layers of encoder-decoder models (T5), whose scores are not scaled, are not among them.
        """
        return self._rounded_layers(False)

    @cached_property
    def rounded_predicted_layers(self) -> frozenset[str]:
        """Return `rounded_layers` if the file's predictor selects neurons."""
        return self._rounded_layers(True)

    def _rounded_layers(self, predicted: bool) -> frozenset[str]:
        numbers = [self.hparams.layers[layer.index] for layer in self.layers]
        sensitive = [
            is_sensitive(layer.tensors, own.attention_scale, own.key_width, predicted)
            for layer, own in zip(self.layers, numbers, strict=True)
        ]
        return frozenset(layer.prefix for layer in self.layers[up_to_last(sensitive) :])

    def deeper(self, layer: int) -> int | None:
        """Return which part of an image's embeddings is added to this layer's output, if any; the first is the image
        itself.
        """
        by_layer = self.keys.get("deepstack_mapping")  # by layer, which part is added to its input
        if len(by_layer):
            number = int(by_layer[layer + 1]) if layer + 1 < len(by_layer) else 0
            return number if number > 0 else None
        return layer + 1 if self.deepstack is None or layer < self.deepstack else None


class Device(Protocol):
    """What computes passes elsewhere than in numpy: see `runtime.device`.

    name: "cuda", "mps", "xpu" or "cpu". title: its name for people. memory: bytes for weights; None for no limit.
    sharing: devices of other models, each with a part of the same memory.
    """

    name: str
    title: str
    memory: int | None
    sharing: list[Any]

    def products(self, precision: Precision) -> str:
        """Return in words how products of matrices are computed."""
        ...

    def release(self) -> None:
        """Drop all weights, which are moved there again when they are read."""
        ...

    def new_cache(self, cache_type: CacheType, expected: int) -> KVCache:
        """Return an empty cache there. Raises OptionError for an unknown type."""
        ...

    def run(self, graph: Any, forward: "ForwardContext", x: Floats, hooks: Any = None) -> Floats:
        """Return the graph's result for the input x (tokens, width)."""
        ...

    def bytes_of(self, tensors: Iterable[Tensor]) -> int:
        """Return the bytes that weights take there."""
        ...

    def streams(self, tensors: Iterable[Tensor], values: int = 0) -> bool:
        """Return whether these weights do not fit, so that texts go through the model layer by layer. values: bytes of
        a batch's values.
        """
        ...

    def stream(
        self, graph: Any, passes: "Sequence[tuple[ForwardContext, Floats]]", options: Any = None
    ) -> Iterator[Floats]:
        """Yield the graph's result for each pass and its input (tokens, width), reading each weight once. options:
        `runtime.ahead.AheadOptions`.
        """
        ...

    def tokens_at_once(self, graph: Any, length: int, weights: Sequence[Tensor] = ()) -> int:
        """Return how many tokens, of whole texts of this length, are best computed together. weights: that are needed
        besides the graph's.
        """
        ...

    def logits(self, logits: Any, output: Any) -> Any:
        """Return lazy logits that are computed there. output: `runtime.head.Output`."""
        ...

    def states(self, x: Floats, nbytes: int) -> Any:
        """Return hidden states as `through` takes them. nbytes: of all states that are kept at once."""
        ...

    def through(self, graph: Any, forward: "ForwardContext", x: Any) -> Any:
        """Return the graph's result for `states`, as states."""
        ...

    def drop(self, tensors: Iterable[Tensor]) -> None:
        """Release weights."""
        ...

    def for_another(self) -> "Device":
        """Return the same device for a model that shares some weights with this one."""
        ...

    def hessians(self, threads: int, columns: int) -> Any:
        """Return empty `runtime.hessians.Hessians` that are summed there."""
        ...


@dataclass
class Sparsity:
    """The score from which a neuron is computed, and how many of all neurons (of every token and layer) were so far."""

    threshold: float = 0.0
    marked: int = 0
    neurons: int = 0

    @property
    def skipped(self) -> float:
        """Return the share of neurons that were skipped."""
        return 1 - self.marked / self.neurons if self.neurons else 0.0


@dataclass
class ForwardContext:
    """One pass through a model: how many texts of how many tokens, their caches, and how it is computed.

    threads, precision: of this pass only. observe: called with the inputs of every product. sparsity: set if only the
    neurons that the file's predictor selects are computed. layer_inputs: per-layer inputs of each token, float32
    (tokens, layers, width). embedded: the first layer's input, if others add it, too. profile: gets the time of each
    category of operations. branches: how the tokens are texts with common beginnings, if they are not one text. tree:
    each token's parent, if not the one before it. observe_values: called with attention's mix of the inputs of values.
    observe_experts: called with each expert's output. images: those among the tokens of a single text. keys_after: by
    token, how many keys after it are visible, too, int64 (tokens,). adapters: the number of the active adapter inside
    the model at each token, 0 for none (see `runtime.switch`). noted: filled with the inputs (tokens, width) of the
    layers that it has the numbers of; the one after the last layer is the last one's output. streams: set to the last
    layer's output, (tokens, streams * width), if the model has several.
    """

    network: Network
    texts: int
    length: int
    cache: KVCache | None = None
    threads: int = 1
    precision: Precision = "float32"
    observe: Observe | None = None
    sparsity: Sparsity | None = None
    profile: Profile | None = None
    layer_inputs: Floats | None = None
    embedded: Floats | None = None
    branches: Branches | None = None
    tree: TokenTree | None = None
    observe_values: ObserveValues | None = None
    observe_experts: ObserveExperts | None = None
    images: Sequence[EmbeddedImage] = ()
    noted: dict[int, Floats] = field(default_factory=dict)
    streams: Floats | None = None
    tokens: Ids | None = None  # their ids, (texts * length,), if anything depends on them
    adapters: Ids | None = None
    first: int = 0  # position of each text from which the head needs rows
    hidden_keys: Floats | None = None  # from the last indexer (see `runtime.mixers.indexer`)
    device: "Device | None" = None  # computes the graph; None for this processor
    first_values: Floats | None = None  # values of RWKV 7's first layer, which are mixed into those of later ones
    shared_keys: dict[int, tuple[Floats, Floats]] = field(default_factory=dict)  # and values, that later layers reuse
    positions: Ids = field(init=False)
    _tables: dict[tuple[float, bool, int], tuple[Floats, Floats]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Compute positions of each token of one text; now, because layers lengthen the cache as they run."""
        seen = self.cache.length if self.cache else 0
        self.positions = np.arange(seen, seen + self.length, dtype=np.int64)
        if self.branches is not None:
            self.positions = self.branches.positions
        if self.tree is not None:
            self.positions = self.tree.positions(seen)
        self.rotated_at = self.positions + (self.cache.shift if self.cache else 0)
        self.next_position: int | None = None  # set where images make it differ from the number of tokens
        if self.images and self.network.hparams.rope_sections:
            first = self.cache.next_position if self.cache else 0
            self.rotated_at, self.next_position = rotated_at(self.length, first, self.images)
        elif any(image.layout == "together" for image in self.images):
            first = self.cache.next_position if self.cache else 0
            self.rotated_at, self.next_position = together_at(self.length, first, self.images)
        # in Gemma 4, models with per-layer inputs are strictly causal
        causal = "per_layer_token_embd.weight" in self.network.global_tensors
        self.keys_after = None if causal else seen_whole(self.length, self.images)
        self.block, self.keys, self.hparams = self.network.block, self.network.keys, self.network.hparams
        self.global_tensors = self.network.global_tensors

    def timed(self, category: str) -> AbstractContextManager[None]:
        """Count the time of the block in this category, if profiled."""
        return self.profile.timed(category) if self.profile else nullcontext()

    def numbers(self, layer: Layer) -> LayerHParams:
        """Return the hyperparameters of one layer."""
        return self.hparams.layers[layer.index]

    def may_round(self, layer: Layer, name: str) -> bool:
        """Return whether the product with a weight of the layer may be rounded to 16-bit integers."""
        if name not in ROUNDED:
            return False
        network = self.network
        layers = network.rounded_layers if self.sparsity is None else network.rounded_predicted_layers
        *_, rows, width = layer.need(f"{name}.weight").shape
        return layer.prefix in layers and integer_product.saves(self.length, rows, width)

    def project(self, layer: Layer, name: str, x: Floats | Inputs, rows: NDArray[np.intp] | None = None) -> Floats:
        """Return x (n, width) @ W.T (* scale + bias) for the weight `name`.weight, or some of its rows: float32 (n,
        rows).
        """
        weight, bias = layer.need(f"{name}.weight"), layer.array(f"{name}.bias")
        if self.observe:
            self.observe(weight.name, x.x if isinstance(x, Inputs) else x, 0, 1)
        if rows is not None:
            weight, bias = take(weight, rows), None if bias is None else bias[rows]
        may_round = self.may_round(layer, name)
        with self.timed("products"):
            y = matmul(x, weight, threads=self.threads, precision=self.precision, may_round=may_round)
            if f"{name}.scale" in layer:
                y *= layer.need_array(f"{name}.scale")
            y = y if bias is None else np.add(y, bias, out=y)
        if self.images and f"{IMAGE_WEIGHTS.get(name)}.weight" in layer:
            self._put_images(layer.need(f"{IMAGE_WEIGHTS[name]}.weight"), x, y, may_round)
        return self.adapted(layer, name, x, y)

    def _put_images(self, weight: Tensor, x: Floats | Inputs, y: Floats, may_round: bool) -> None:
        """Replace in y, of the last rows, the product for image tokens, except the last one of each image."""
        x, before = x.x if isinstance(x, Inputs) else x, self.length - len(y)
        for image in self.images:
            rows = slice(max(0, image.start - before), max(0, image.stop - 1 - before))
            if rows.start < rows.stop:
                y[rows] = matmul(x[rows], weight, threads=self.threads, precision=self.precision, may_round=may_round)

    def adapted(self, layer: Layer, name: str, x: Floats | Inputs, y: Floats) -> Floats:
        """Return y (n, rows) = x (n, width) @ W.T, plus the active adapters of W; of texts the last n."""
        if f"{name}.lora_a" not in layer or self.adapters is None:
            return y
        a, b = (layer.need(f"{name}.lora_{each}") for each in "ab")
        x = x.x if isinstance(x, Inputs) else x
        on = self.adapters.reshape(self.texts, self.length)[:, self.length - len(y) // self.texts :].reshape(-1)
        for number in np.unique(on[on > 0]):
            rows = np.flatnonzero(on == number)
            low = matmul_experts(x[rows], a, int(number), threads=self.threads, precision=self.precision)
            y[rows] += matmul_experts(low, b, int(number), threads=self.threads, precision=self.precision)
        return y

    def inputs(self, x: Floats) -> Inputs:
        """Return x (n, width), prepared for products with several weights of a layer."""
        return Inputs(x, self.threads)

    def project_expert(self, layer: Layer, name: str, x: Floats | Inputs, expert: int) -> Floats:
        """Return `project` for one expert (head, copy) of a stacked weight (experts, rows, width)."""
        weight, bias = layer.need(f"{name}.weight"), layer.array(f"{name}.bias")
        if self.observe:
            self.observe(weight.name, x.x if isinstance(x, Inputs) else x, expert, weight.shape[0])
        may_round = self.may_round(layer, name)
        with self.timed("products"):
            y = matmul_experts(x, weight, expert, threads=self.threads, precision=self.precision, may_round=may_round)
            return y if bias is None else np.add(y, bias[expert], out=y)

    def norm(self, layer: Layer, name: str, x: Floats, eps: float = 0.0) -> Floats:
        """Return the norm `name` over the last axis; x itself if the layer has no such norm. eps: 0 for the model's."""
        weight = layer.array(f"{name}.weight")
        if weight is None:
            weight = layer.array(name)  # Falcon-H1's and PLaMo's files have norms without ".weight"
        if weight is None and not self.block.norm.endswith("_without_weights"):
            return x
        with self.timed("norms"):
            if self.block.norm.startswith("rms"):
                return ops.rms_norm(x, weight, eps or self.hparams.eps, self.threads)
            return ops.layer_norm(x, weight, layer.array(f"{name}.bias"), eps or self.hparams.eps, self.threads)

    def norm_if_there(self, layer: Layer, name: str, x: Floats, eps: float = 0.0) -> Floats:
        """Return `norm`, but x itself also if the model's norms have no weights and may be implied."""
        there = f"{name}.weight" in layer or name in layer
        return self.norm(layer, name, x, eps) if there else x

    def from_position(self, first: int, x: Floats) -> Floats:
        """Return rows of x (tokens, width) from position `first` of each text on."""
        return np.ascontiguousarray(x.reshape(self.texts, self.length, -1)[:, first:]).reshape(-1, x.shape[-1])

    def note(self, layer: int, x: Floats) -> None:
        """Keep x, a layer's input, if requested."""
        if layer in self.noted:
            self.noted[layer] = x

    def finite(self, where: str, x: Floats) -> Floats:
        """Return x, the output of a layer or the embedding. Raises ModelError if it is not finite."""
        if not np.isfinite(x).all():
            raise ModelError(f"values are no longer finite from '{where.rstrip('.')}' on", hint=DAMAGED)
        return x

    def rope(self, own: LayerHParams) -> tuple[Floats, Floats]:
        """Return cos and sin of each token's position, (tokens, rope_width / 2), computed once for all layers with the
        same rotation.
        """
        alike = own.rope_base, own.rope_scaled, own.rope_width
        if alike not in self._tables:
            table = self.rope_at(own, self.rotated_at.reshape(-1))
            if self.rotated_at.ndim > 1:  # times, rows and columns, each of which rotates some of the pairs
                pairs = np.arange(table[0].shape[1])
                parts = len(self.rotated_at)
                part = parts_of(self.hparams.rope_sections, len(pairs), self.block.interleaved_sections, parts)
                cos, sin = (each.reshape(parts, self.length, -1)[part, :, pairs].T.copy() for each in table)
                table = cos, sin
            self._tables[alike] = np.tile(table[0], (self.texts, 1)), np.tile(table[1], (self.texts, 1))
        return self._tables[alike]

    def rope_at(self, own: LayerHParams, positions: Ids) -> tuple[Floats, Floats]:
        """Return cos and sin of these positions, (positions, rope_width / 2)."""
        scaling, factors = (self.network.scaling, self._frequency_factors()) if own.rope_scaled else (None, None)
        return rope_table(own.rope_width, own.rope_base, scaling, factors, positions)

    def _frequency_factors(self) -> Floats | None:
        """Return divisors of the rotary frequencies; longrope has two lists, for short texts and for long ones."""
        scaling = self.network.scaling
        if scaling is None or scaling.type != "longrope":
            return self.global_tensors.array("rope_freqs.weight")
        long = self.positions[-1] >= scaling.original_context
        return self.global_tensors.array(f"rope_factors_{'long' if long else 'short'}.weight")
