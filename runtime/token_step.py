"""A few tokens through a plain decoder as one list of compiled operations (`kernels.team`).

Token by token a model is limited by how fast its weights are read; Python between hundreds of small products would take
longer than they do. Models whose layers are attention and a dense feed-forward net are written down as operations
once; others (experts, state spaces, latents, …) go through `decoder` as texts do (see `step_support`).

Weights are kept in memory from the first token on, as they are stored: mapped, where the file is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archs.hyper import LayerHyper
from quants import Tensor

from .arrays import Floats
from .compiled_attention import Bound, Workspace, Writer, attention_spec, write_attention
from .few_inputs import MOST_TOKENS, Vectors, aligned, product_fields, stored_rows, vectors
from .head import output_of
from .kernels import dots, pass_state, team
from .kernels import token_parts as parts
from .kv_cache import KVCache
from .layer import Layer, Network
from .rope import rope_table
from .team import team_of

Room = tuple[float, bool, int]  # which rotation table: see `LayerHyper`


@dataclass
class Operations:
    """A list of operations as it is written.

    kept: arrays whose addresses are in it.
    """

    rows: list[NDArray[np.int64]] = field(default_factory=list)
    kept: list[NDArray[Any]] = field(default_factory=list)

    def add(self, operation: Callable[[], int], fields: dict[int, Any], wait: bool = True) -> None:
        """An operation, after which threads wait for one another. In fields arrays become addresses."""
        self.kept += [value for value in fields.values() if isinstance(value, np.ndarray)]
        self.rows.append(team.operation_row(operation(), fields, wait))


class TokenSteps:
    """A network's operations and the memory they work in; one step runs at a time."""

    def __init__(self, network: Network, threads: int) -> None:
        self.network, self.threads, self.lock = network, threads, Lock()
        self.state = np.zeros(pass_state.SIZE, np.int64)
        self.workspace, self.bound = Workspace(threads), list[Bound]()
        self.operations = Operations()
        layers = (network.global_tensors, *network.layers)
        matrices = [tensor for layer in layers for tensor in layer.tensors.values() if len(tensor.shape) == 2]
        self.weights = {tensor.name: stored_rows(tensor) for tensor in matrices}
        self.x = vectors(network.hyper.width)
        self.before: list[int] = []  # of each layer, and of what is behind the last: how many operations
        for layer in network.layers:
            self.before.append(len(self.operations.rows))
            (self._parallel if network.hyper.parallel else self._sequential)(layer)
        self.before.append(len(self.operations.rows))
        output = output_of(network)
        self.output, self.finish = output.weight, output.finish(threads)
        self.logits = aligned((MOST_TOKENS, self.output.rows))
        self.normed = self._normed(network.global_tensors, "output_norm", self.x)
        self._product(self.normed, self.output, None, self.logits)
        self.rows = np.stack(self.operations.rows)
        self.cache: tuple[KVCache, int] | None = None  # whose addresses are in the rows, and its version
        self.tables: dict[Room, tuple[int, tuple[Floats, Floats]]] = {}  # and the shift of their positions

    def __call__(self, ids: NDArray[np.int64], cache: KVCache) -> Floats:
        """Logits of at most MOST_TOKENS tokens after those in the cache, to which they are added: (n, vocabulary)."""
        return self.with_states(ids, cache, ())[0]

    def with_states(self, ids: NDArray[np.int64], cache: KVCache, layers: Sequence[int]) -> tuple[Floats, Floats]:
        """The same, and what these layers are given, side by side: float32 (n, layers * width); without any what stands
        behind the last norm. The layer behind the last one is given what that gives.
        """
        prepare: Callable[[], None] = partial(self._prepare, ids, cache)
        start, given = 0, dict[int, Floats]()
        with self.lock:
            for layer in sorted({*layers}):  # the list is run up to each of them
                team_of(self.threads).run(self.rows[start : self.before[layer]], prepare, self._empty)
                given[layer] = self._rows_of(self.x, len(ids))
                prepare, start = _nothing, self.before[layer]
            team_of(self.threads).run(self.rows[start:], prepare, self._empty)
            cache.advance(range(len(self.network.layers)), len(ids))
            logits = self.finish(self.logits[: len(ids)].copy(), 0)
            if not layers:
                return logits, self._rows_of(self.normed, len(ids))
            return logits, np.concatenate([given[layer] for layer in layers], axis=1)

    def _rows_of(self, x: Vectors, tokens: int) -> Floats:
        rows: Floats = x.floats[:tokens, : x.width].copy()
        return rows

    def _prepare(self, ids: NDArray[np.int64], cache: KVCache) -> None:
        """Where tokens go, and their embeddings."""
        count, width = len(ids), self.x.width
        self._find_room(cache, cache.length + count)
        table = self.network.global_tensors.need("token_embd.weight")
        x = table.format.decode(self.weights[table.name][ids])
        self.x.floats[:count, :width] = x[:, :width] * np.float32(self.network.hyper.embedding_scale)
        self.state[: pass_state.POSITIONS] = count, cache.length
        for first in (pass_state.POSITIONS, pass_state.ANGLES):
            self.state[first : first + count] = cache.length + np.arange(count)

    def _empty(self) -> None:
        """Let operations find no tokens."""
        self.state[0] = 0

    def _find_room(self, cache: KVCache, tokens: int) -> None:
        """Let the operations know where keys and values are, and the angles of so many positions."""
        for layer, own in enumerate(self.network.hyper.layers):
            cache.reserve(layer, tokens, (own.kv_heads, own.key_width), (own.kv_heads, own.value_width))
        if self.cache == (cache, cache.version):
            return
        for layer, (own, bound) in enumerate(zip(self.network.hyper.layers, self.bound, strict=True)):
            bound.keys[0], bound.values[0] = (array.ctypes.data for array in cache.arrays(layer))
            bound.put_kind(self.rows, cache.kind)
            if bound.rotating:
                bound.put_angles(self.rows, *self._angles(own, cache.room, cache.shift))
        self.cache = cache, cache.version

    def _angles(self, own: LayerHyper, tokens: int, shift: int) -> tuple[Floats, Floats]:
        """shift: what positions are more than the number of tokens before."""
        base, scaled, width = kind = own.rope_base, own.rope_scaled, own.rope_width
        if kind not in self.tables or self.tables[kind][0] != shift or len(self.tables[kind][1][0]) < tokens:
            divisors = self.network.global_tensors.array("rope_freqs.weight") if scaled else None
            scaling = self.network.scaling if scaled else None
            self.tables[kind] = shift, rope_table(width, base, scaling, divisors, shift + np.arange(tokens))
        return self.tables[kind][1]

    def _sequential(self, layer: Layer) -> None:
        block = self.network.block
        mixed = self._attention(layer, self._normed(layer, "attn_norm", self.x))
        after = "" if block.ffn_norm == "post_attention_norm" else "post_attention_norm"
        scale = float(self.network.hyper.residual_scale)
        self._add_product(layer, "attn_output", mixed, after, scale)
        hidden = self._hidden(layer, self._normed(layer, block.ffn_norm, self.x))
        self._add_product(layer, "ffn_down", hidden, "post_ffw_norm", scale)

    def _parallel(self, layer: Layer) -> None:
        first = self._normed(layer, "attn_norm", self.x)
        second = self._normed(layer, "attn_norm_2", self.x) if "attn_norm_2.weight" in layer else first
        third = self._normed(layer, "ffn_norm", self.x) if "ffn_norm.weight" in layer else first
        self._add_product(layer, "attn_output", self._attention(layer, second))
        self._add_product(layer, "ffn_down", self._hidden(layer, third))

    def _normed(self, layer: Layer, name: str, x: Vectors) -> Vectors:
        out = vectors(x.width)
        rms = self.network.block.norm == "rms"
        bias = layer.array(f"{name}.bias")
        self.operations.add(parts.rms_norm if rms else parts.layer_norm, {
            parts.STATE: self.state, parts.X: x.floats, parts.X_WIDTH: x.room, parts.WIDTH: x.width,
            parts.WEIGHT: layer.need_array(f"{name}.weight"), parts.EPS: float(self.network.hyper.eps),
            parts.BIAS: np.zeros(x.width, np.float32) if bias is None else bias, **_output(out),
        })  # fmt: skip
        return out

    def _product(
        self, x: Vectors, weight: Tensor, bias: Floats | None, out: Floats, adds: bool = False, wait: bool = True
    ) -> None:
        stored = self.weights[weight.name]
        fields = product_fields(x, weight, stored, bias, out, adds, self.state)
        self.operations.add(dots.OF_FORMAT[weight.format.name], fields, wait)

    def _projected(self, layer: Layer, name: str, x: Vectors, wait: bool = True) -> Vectors:
        weight = layer.need(f"{name}.weight")
        out = vectors(weight.rows)
        self._product(x, weight, layer.array(f"{name}.bias"), out.floats, wait=wait)
        return out

    def _add_product(self, layer: Layer, name: str, x: Vectors, norm: str = "", scale: float = 1.0) -> None:
        """Add to the residual stream what a projection gives times scale, after its norm where the layer has one."""
        if f"{norm}.weight" not in layer and scale == 1.0:
            weight = layer.need(f"{name}.weight")
            return self._product(x, weight, layer.array(f"{name}.bias"), self.x.floats, adds=True)
        given = self._projected(layer, name, x)
        if f"{norm}.weight" in layer:
            given = self._normed(layer, norm, given)
        self.operations.add(parts.add_scaled, {
            parts.STATE: self.state, parts.X: given.floats, parts.X_WIDTH: given.room, parts.WIDTH: given.width,
            parts.OUT: self.x.floats, parts.OUT_WIDTH: self.x.room, parts.SCALE: scale,
        })  # fmt: skip
        return None

    def _attention(self, layer: Layer, x: Vectors) -> Vectors:
        bound = Bound(np.zeros(1, np.int64), np.zeros(1, np.int64))
        self.bound.append(bound)
        writer = Writer(self.operations, layer, self.weights, self.state, self.workspace, bound)
        return write_attention(writer, attention_spec(self.network, layer.index), x)

    def _hidden(self, layer: Layer, x: Vectors) -> Vectors:
        gated, activation = self.network.block.gated, self.network.hyper.activation
        out = self._projected(layer, "ffn_gate" if gated else "ffn_up", x, wait=not gated)
        up = self._projected(layer, "ffn_up", x) if gated else out
        fields = {parts.STATE: self.state, parts.WIDTH: out.width, **_output(out)}
        if gated:
            fields |= {parts.Y: up.floats, parts.Y_WIDTH: up.room}
        self.operations.add(parts.ACTIVATIONS[activation], fields)
        return out


def _nothing() -> None:
    """What operations find is there already."""


def _output(out: Vectors) -> dict[int, Any]:
    return {parts.OUT: out.floats, parts.OUT_WIDTH: out.room, parts.SHORTS: out.shorts, parts.NUMBERS_AT: out.numbers}
