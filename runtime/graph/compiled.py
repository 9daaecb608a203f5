"""The executor for a few tokens: a graph's machine operations, walked together by a team of threads.

Token by token a model is limited by how fast its weights are read; Python between hundreds of small products would take
longer than they do. Tokens of several texts run together, each text with a cache of its own.
Weights are kept in memory from the first token on, as they are stored: mapped, where the file is.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from archs.hyper import LayerHyper
from quants import Tensor
from quants.errors import ModelError

from ..arrays import Floats, Ids
from ..embedding import embed
from ..few_inputs import MOST_TOKENS, Vectors, aligned, product_fields
from ..head import output_of
from ..kernels import dots, pass_state
from ..kernels import token_parts as parts
from ..kernels.blas import one_thread
from ..kv_cache import KVCache
from ..layer import DAMAGED, Network, Pass
from ..rope import rope_table
from ..self_attention import alibi_slopes
from ..team import team_of, worth
from .builder import Graph
from .lowering import SLOTS, Call, Lowering
from .operations import Value
from .text import Read, computed

PLAIN = frozenset({"token_embd.weight", "output.weight", "output_norm.weight", "output_norm.bias", "output.bias",
                   "rope_freqs.weight"})  # fmt: skip


@dataclass(frozen=True)
class Text:
    """Tokens that follow those of a cache: ids (n,)."""

    ids: Ids
    cache: KVCache


@dataclass(frozen=True)
class BoundTo:
    """A cache whose addresses are in the rows: as long as it is this version, and has room for the tokens."""

    cache: "ref[KVCache]"
    version: int
    room: int

    @staticmethod
    def of(cache: KVCache, layers: Iterable[int]) -> "BoundTo":
        return BoundTo(ref(cache), cache.version, min((cache.room_of(layer) for layer in layers), default=1 << 62))

    def serves(self, cache: KVCache, tokens: int) -> bool:
        return self.cache() is cache and self.version == cache.version and tokens <= self.room


class CompiledGraph:
    """A network's machine operations and the memory they work in; one run at a time."""

    def __init__(self, network: Network, graph: Graph, threads: int) -> None:
        self.network, self.graph, self.threads, self.lock = network, graph, threads, Lock()
        lowering = self.lowering = Lowering(network, graph, threads)
        self.state = lowering.state
        output, head = output_of(network), len(lowering.list.rows)
        self.finish, self.logits = output.finish(threads), aligned((MOST_TOKENS, output.weight.rows))
        self.compiles_head = output.weight.format.name in dots.OF_FORMAT and "output_proj.weight" not in (
            network.global_tensors
        )
        self.normed = self._write_head() if self.compiles_head else None
        self.head = head
        self.rows = np.stack(lowering.list.rows) if lowering.list.rows else np.zeros((0, 32), np.int64)
        self.embeds_plainly = (
            set(network.global_tensors.tensors) <= PLAIN and not network.block.normed_embedding
            and network.keys.get("adapters.count") is None
        )  # fmt: skip
        self.is_whole = self.embeds_plainly and self.compiles_head and not lowering.calls  # all of it is compiled
        self.can_break_off = bool(lowering.calls)  # in the middle, when some states have been changed
        self.workers = worth(threads, self.rows, lowering.list.read)
        self.bound_to: list[BoundTo] = []
        self.tables: dict[tuple[Any, ...], tuple[Floats, Floats]] = {}

    def _write_head(self) -> Vectors:
        network, lowering = self.network, self.lowering
        outside, weight = network.global_tensors, output_of(network).weight
        x, width = lowering.vectors_of(self.graph.output), network.hyper.width
        role = network.block.output_norm
        gain, bias = outside.array(f"{role}.weight"), outside.array(f"{role}.bias")
        gain = outside.array(role) if gain is None else gain
        if gain is None and not network.block.norm.endswith("_without_weights"):
            self._write_product(lowering.packed(self.graph.output), weight)
            return x
        out = lowering.workspace.vectors("result_norm", width)
        rms = network.block.norm.startswith("rms")
        lowering.add(parts.rms_norm if rms else parts.layer_norm, {
            parts.X: x.floats, parts.X_WIDTH: x.room, parts.WIDTH: width, parts.EPS: float(network.hyper.eps),
            parts.WEIGHT: np.ones(width, np.float32) if gain is None else gain,
            parts.BIAS: np.zeros(width, np.float32) if bias is None else bias, parts.OUT: out.floats,
            parts.OUT_WIDTH: out.room, parts.SHORTS: out.shorts, parts.NUMBERS_AT: out.numbers,
        })  # fmt: skip
        self._write_product(out, weight)
        return out

    def _write_product(self, x: Vectors, weight: Tensor) -> None:
        bytes_ = self.lowering.bytes_of(weight)
        fields = product_fields(x, weight, bytes_, None, self.logits, False, self.state)
        self.lowering.list.add(dots.OF_FORMAT[weight.format.name], fields)

    def run(self, texts: Sequence[Text], layers: Sequence[int] = ()) -> tuple[Floats, Floats]:
        """Logits (n, vocabulary) of the tokens of texts, one text after the other, which are added to their caches; and
        what these layers are given, side by side, (n, layers * width), without any what the head reads.

        At most MOST_TOKENS tokens in all; caches are of one kind. Raises ModelError as operations do that are called in
        the middle, and for logits that are not finite. Where something is raised, caches do not have the tokens; but
        those with states do that compiled operations have changed in place.
        """
        with self.lock:
            run = Run(self, texts)
            try:
                with ExitStack() as stack:
                    if not self.is_whole:
                        stack.enter_context(one_thread())
                    for text in texts:
                        stack.enter_context(text.cache.restored_on_error(self.can_break_off))
                    return self._finished(run, layers)
            except BaseException:
                if run.has_changed_states:
                    run.count()
                raise

    def _finished(self, run: "Run", layers: Sequence[int]) -> tuple[Floats, Floats]:
        given = run.through(sorted({*layers}))
        logits = run.logits()
        if not np.isfinite(logits.max()):
            raise ModelError("logits are not finite: the file's weights are damaged", DAMAGED)
        states = np.concatenate([given[layer] for layer in layers], axis=1) if layers else run.normed()
        run.count()
        return logits, states

    def angles(self, own: LayerHyper, rows: int) -> tuple[Floats, Floats]:
        """cos and sin of so many positions, and some more."""
        scaled, width = own.rope_scaled, own.rope_width
        kind = own.rope_base, scaled, width
        if kind not in self.tables or len(self.tables[kind][0]) < rows:
            divisors = self.network.global_tensors.array("rope_freqs.weight") if scaled else None
            scaling, room = self.network.scaling if scaled else None, max(64, 1 << (rows - 1).bit_length())
            self.tables[kind] = rope_table(width, own.rope_base, scaling, divisors, np.arange(room))
        return self.tables[kind]


class Run:
    """One run of a compiled graph over some tokens."""

    def __init__(self, owner: CompiledGraph, texts: Sequence[Text]) -> None:
        self.owner, self.texts = owner, texts
        self.counts = [len(text.ids) for text in texts]
        self.seen = [text.cache.length for text in texts]  # now: embeddings may append to a cache
        self.tokens = sum(self.counts)
        self._passes: list[Pass] = []
        self._reads: list[Read] = []
        self._embedded: Floats = np.empty((0, 0), np.float32)
        self._prepared = False

    @property
    def passes(self) -> list[Pass]:
        """A pass of each text, for operations that are called."""
        if not self._passes:
            network, threads = self.owner.network, self.owner.threads
            self._passes = [Pass(network, 1, len(text.ids), text.cache, threads) for text in self.texts]
            for forward, text in zip(self._passes, self.texts, strict=True):
                forward.tokens = text.ids
        return self._passes

    def _embed(self) -> Floats:
        network = self.owner.network
        if self.owner.embeds_plainly:
            table, ids = network.global_tensors.need("token_embd.weight"), self.texts[0].ids
            ids = ids if len(self.texts) == 1 else np.concatenate([text.ids for text in self.texts])
            x = table.format.decode(self.owner.lowering.bytes_of(table)[ids])[:, : table.width]
            return x * np.float32(network.hyper.embedding_scale)
        return np.concatenate([embed(forward, text.ids) for forward, text in zip(self.passes, self.texts, strict=True)])

    def through(self, layers: Sequence[int]) -> dict[int, Floats]:
        """Through all operations; what these layers are given."""
        lowering, given, start = self.owner.lowering, dict[int, Floats](), 0
        self._embedded = self._embed()
        stops = sorted({*(call.row for call in lowering.calls), *(lowering.before[layer] for layer in layers)})
        calls = list(lowering.calls)
        if lowering.calls:
            assert self.passes  # positions are those before anything is appended
            self._reads = [Read(self.owner.graph) for _ in self.texts]
        for stop in (*stops, None):
            self._walk(start, stop)
            start = stop or 0
            while calls and calls[0].row == stop:
                self._call(calls.pop(0))
            for layer in layers:
                if lowering.before[layer] == stop:
                    value = self.owner.graph.layer_inputs.get(layer, self.owner.graph.output)
                    given[layer] = self._rows(lowering.vectors_of(value))
        return given

    def _walk(self, start: int, stop: int | None) -> None:
        rows = self.owner.rows[start:stop]
        if len(rows) or not self._prepared:
            team_of(self.owner.workers).run(rows, self._prepare, self._empty)

    def _prepare(self) -> None:
        """Write where tokens go, and their embeddings, before the first operation."""
        if self._prepared:
            return
        state, lowering = self.owner.state, self.owner.lowering
        self._bind()
        state[pass_state.TOKENS], state[pass_state.FIRST] = self.tokens, self.seen[0]
        at = 0
        for slot, (text, seen, count) in enumerate(zip(self.texts, self.seen, self.counts, strict=True)):
            shift = text.cache.shift
            for i in range(count):
                state[pass_state.POSITIONS + at] = seen + i
                state[pass_state.ANGLES + at] = seen + shift + i
                state[pass_state.SLOTS + at] = slot
                at += 1
        x = lowering.vectors_of(self.owner.graph.nodes[0].value)
        x.floats[: self.tokens, : x.width] = self._embedded
        self._prepared = True

    def _empty(self) -> None:
        """Let operations find no tokens."""
        self.owner.state[pass_state.TOKENS] = 0

    def _bind(self) -> None:
        """Let operations know where keys, values and states are, and tables of positions, where those have moved."""
        owner, ends = self.owner, [seen + count for seen, count in zip(self.seen, self.counts, strict=True)]
        if len(self.texts) == len(owner.bound_to) and all(
            known.serves(text.cache, end) for known, text, end in zip(owner.bound_to, self.texts, ends, strict=True)
        ):
            return
        lowering, owner.bound_to = owner.lowering, []
        for slot, (text, end) in enumerate(zip(self.texts, ends, strict=True)):
            for layer in lowering.states:
                self._bind_states(slot, layer, text.cache)
            for layer, shapes in lowering.keys.items():
                text.cache.reserve(layer, end, *shapes)
        room = max(max(end, text.cache.room_of(layer)) + max(0, text.cache.shift)
                   for text, end in zip(self.texts, ends, strict=True) for layer in (*lowering.keys, -1))  # fmt: skip
        for layer, bound in lowering.bound.items():
            for slot, text in enumerate(self.texts):
                if layer in lowering.keys:
                    bound.keys[slot], bound.values[slot] = (each.ctypes.data for each in text.cache.arrays(layer))
            bound.put_kind(owner.rows, self.texts[0].cache.kind)
            self._put_tables(layer, owner.network.hyper.layers[layer], room)
        owner.bound_to = [BoundTo.of(text.cache, lowering.keys) for text in self.texts]

    def _put_tables(self, layer: int, own: LayerHyper, room: int) -> None:
        owner, bound = self.owner, self.owner.lowering.bound[layer]
        network = owner.network
        if bound.rotating:
            bound.put_angles(owner.rows, *owner.angles(own, room))
        if bound.tempered and network.block.query_scale is not None:
            factors = network.block.query_scale(network.hyper, np.arange(room), own.rotates)
            factors = np.ones(room, np.float32) if factors is None else factors
            owner.tables["factors", layer] = factors, factors
            bound.put_factors(owner.rows, factors)
        slopes = alibi_slopes(network, own.heads) if bound.biased else None
        if slopes is not None and network.block.alibi_terms is not None:
            terms = np.ascontiguousarray(network.block.alibi_terms(slopes, room, own.attention_scale), np.float32)
            owner.tables["terms", layer] = terms, terms
            bound.put_terms(owner.rows, terms)

    def _bind_states(self, slot: int, layer: int, cache: KVCache) -> None:
        lowering = self.owner.lowering
        if not cache.states(layer):
            cache.keep(layer, 0, *(np.zeros((1, *shape), np.float32) for shape in lowering.states[layer]))
        for table, state in zip(lowering.tables[layer], cache.states(layer), strict=True):
            table[slot] = state.ctypes.data

    @property
    def has_changed_states(self) -> bool:
        """Whether layers' states have been changed in place by all operations, and no copy is left."""
        lowering = self.owner.lowering
        return self._prepared and bool(lowering.states) and not lowering.calls

    def count(self) -> None:
        """Count the tokens in the caches."""
        for text, count in zip(self.texts, self.counts, strict=True):
            text.cache.advance(self.owner.lowering.keys, count)
            text.cache.advance_states(self.owner.lowering.states, count)

    def _call(self, call: Call) -> None:
        """Compute operations for each text, as texts do."""
        lowering, at, results = self.owner.lowering, 0, list[Any]()
        number = call.nodes[-1].value.number
        for forward, read, count in zip(self.passes, self._reads, self.counts, strict=True):
            for value in (value for node in call.nodes for value in node.operation.inputs()):
                if lowering.has_rows(value):
                    rows = lowering.vectors_of(value).floats[at : at + count, : value.width]
                    read.values[value.number] = rows.reshape(count, *value.shape).copy()
            for node in call.nodes:
                read.number = node.value.number
                read.values[read.number] = computed(forward, node, read)
            read.forget_inputs()
            if call.to is not None:
                results.append(read.values.pop(number).reshape(count, -1))
            at += count
        if call.to is not None:
            call.to.floats[: self.tokens, : call.to.width] = np.concatenate(results)

    def _rows(self, x: Vectors) -> Floats:
        rows: Floats = x.floats[: self.tokens, : x.width].copy()
        return rows

    def normed(self) -> Floats:
        """What the head reads."""
        if self.owner.normed is not None:
            return self._rows(self.owner.normed)
        return self._head_inputs()

    def _head_inputs(self) -> Floats:
        forward, network = Pass(self.owner.network, 1, self.tokens, None, self.owner.threads), self.owner.network
        x = self._rows(self.owner.lowering.vectors_of(self.owner.graph.output))
        x = forward.norm(network.global_tensors, network.block.output_norm, x)
        if "output_proj.weight" in network.global_tensors:
            x = forward.project(network.global_tensors, "output_proj", x)
        return x

    def logits(self) -> Floats:
        """Of all tokens, (n, vocabulary)."""
        owner = self.owner
        if owner.normed is not None:
            return owner.finish(owner.logits[: self.tokens].copy(), 0)
        from ..head import LazyLogits

        output = output_of(owner.network)
        return LazyLogits(self._head_inputs(), output.weight, owner.finish, owner.threads).float32()


Compiled = Callable[[Sequence[Text]], Floats]
Numbers = NDArray[np.int64]
__all__ = ["SLOTS", "CompiledGraph", "Text", "Value"]
