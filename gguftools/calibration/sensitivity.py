"""Measure what each weight costs in each format: how much the model's predictions change, in nats of KL divergence.

The error D of a weight changes its product by tr(D H D^T), H the mean of x x^T over the inputs x. That is known for
every format after one pass through the layers. Its effect on the predictions is measured once for each weight: all
weights of a layer are rounded to one coarse format, and the result is carried on to the logits of a few windows. Each
weight's share of the effect is its share of the change in the layer's output when it is rounded alone. Small errors add
up, so a unit of a weight's error costs the same in every format: its gain.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quants import Format, Tensor, format_named
from quants.errors import ModelError

from ..quantization.imatrix import ImportanceMatrix
from ..quantization.imatrix_entry import Entry
from .bounds import DEFAULT_MEMORY, columns_on
from .choosing import Piece, loss, pieces_of
from .computed import computed_for
from .encoded import Encoded
from .feedback import EMBEDDING, HEAD, readers_of
from .texts import Windows, split_evenly

if TYPE_CHECKING:
    from runtime.hessians import Hessians
    from runtime.layer import Layer
    from runtime.layerwise import Batch
    from runtime.model import RunningModel
    from runtime.products.block_diagonal import BlockDiagonal

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Tell = Callable[[str], None]

COARSE = "Q4_0"  # in which gains are measured: fits all rows that fit any candidate, and is quickly encoded
SAMPLED_ROWS = 192  # of each piece, by which errors are estimated
SPAN = 64  # rows that a thread encodes at once
READ_AT_ONCE = 1 << 22  # values of a weight
ENDS = "ends"  # what stands around the layers
LOGITS = 1 << 25  # of the base that are kept at most: every so-manieth position is looked at
WHOLE = ("Q8_0", "Q6_K", "Q5_K", "Q4_K", "IQ4_XS", "Q3_K", "IQ3_S", "IQ3_XXS", "Q2_K", "IQ2_S", "IQ2_XS")
LEGACY = ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "IQ4_NL", "Q4_0")
ROLES = {
    "attn_q.": "attention scores",
    "attn_k.": "attention scores",
    "attn_": "attention values",
    "ffn_down": "feed-forward down",
    "ffn_": "feed-forward up",
}


def candidates_for(width: int) -> list[Format]:
    """Return the formats that rows of this width may get."""
    names = LEGACY if width % 256 else WHOLE
    return [form for form in map(format_named, names) if width % form.block_size == 0]


def role_of(name: str) -> str:
    """Return the group of weights whose gains are corrected together."""
    return next((role for part, role in ROLES.items() if part in name), "others")


@dataclass(frozen=True)
class Part:
    """Hold the effect of a weight on the predictions in one of its uses; a tied embedding has two.

    errors: by format, of the output of its products. gain: nats per unit of error.
    """

    weight: str
    group: str
    gain: float
    errors: Mapping[str, float]


@dataclass
class Sensitivities:
    """Hold the parts of all weights, and the mean squares of their inputs, by which they are encoded."""

    parts: list[Part] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)

    def as_dict(self, first: int = 0) -> dict[str, Any]:
        """Return parts from the first-th on with their weights' entries, as plain data, for `take`."""
        parts = self.parts[first:]
        entries = {part.weight: self.entries[part.weight].sums for part in parts}
        return {
            "parts": [[part.weight, part.group, part.gain, dict(part.errors)] for part in parts],
            "entries": {name: b64encode(sums.astype("<f4").tobytes()).decode() for name, sums in entries.items()},
        }

    def take(self, data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Add the result of `as_dict`."""
        self.parts += [Part(*values) for values in data["parts"]]
        for name, text in data["entries"].items():
            squares = np.frombuffer(b64decode(text), "<f4").astype(np.float32).reshape(-1, tensors[name].width)
            self.entries[name] = Entry(squares, np.ones(len(squares), np.float32))

    def costs(self, corrections: Mapping[str, float]) -> dict[str, dict[str, float]]:
        """Return weight → format → nats. corrections: factors of groups' gains."""
        costs: dict[str, dict[str, float]] = {}
        for part in self.parts:
            own, factor = costs.setdefault(part.weight, {}), part.gain * corrections.get(part.group, 1.0)
            for form, error in part.errors.items():
                own[form] = own.get(form, 0.0) + factor * error
        return costs

    def by_group(self, formats: Mapping[str, str]) -> dict[str, float]:
        """Return group → predicted nats of a choice of formats, uncorrected."""
        costs: dict[str, float] = {}
        for part in self.parts:
            costs[part.group] = costs.get(part.group, 0.0) + part.gain * part.errors[formats[part.weight]]
        return costs

    def matrix(self, texts: Sequence[str], windows: int, n_ctx: int) -> ImportanceMatrix:
        """Return the mean squares as an importance matrix."""
        return ImportanceMatrix(Path("calibration"), self.entries, tuple(texts), windows, n_ctx)


class Judge:
    """Measure KL divergence from the model's own predictions on some windows, in nats per token.

    The second half of each window counts, where there is enough context: every position, or as many as keep the base
    within LOGITS numbers.
    """

    def __init__(self, net: "RunningModel", ids: NDArray[np.int64], at_once: int) -> None:
        self.net, self.ids, self.at_once = net, ids, at_once
        windows, n_ctx = ids.shape
        positions = windows * (n_ctx - n_ctx // 2)
        vocabulary = net.tensors[HEAD if HEAD in net.tensors else EMBEDDING].shape[0]
        self.step = max(1, -(-positions * vocabulary // LOGITS))

    @cached_property
    def base(self) -> list[Floats]:
        """Return the model's own log probabilities, one array per batch; computed on first use."""
        batches = self.begin(self.net)
        self.carry(batches, self.net.network.layers)
        return [_log_probabilities(logits) for logits in self._logits(batches)]

    def begin(self, net: "RunningModel") -> list["Batch"]:
        from runtime import layerwise

        return layerwise.begin(net, split_evenly(self.ids, self.at_once))

    def carry(self, batches: Sequence["Batch"], layers: Sequence["Layer"]) -> None:
        from runtime import layerwise

        for layer in layers:
            layerwise.advance(batches, layer)
            self.release(layer)

    def release(self, layer: "Layer") -> None:
        """Release a layer's weights on a device that has no memory for those of all layers."""
        from runtime import layerwise

        device = self.net.device
        if device is not None and device.streams(self.net.tensors.values()):
            layerwise.drop(self.net, layer)

    def of_model(self, net: "RunningModel") -> float:
        """Return the divergence of another model with the same tokens, such as one with rounded weights."""
        batches = self.begin(net)
        self.carry(batches, net.network.layers)
        divergence = self.of(batches)
        if net.device is not None:
            own = set(map(id, self.net.tensors.values()))
            net.device.drop(tensor for tensor in net.tensors.values() if id(tensor) not in own)
        return divergence

    def of(self, batches: Sequence["Batch"]) -> float:
        """Return the divergence of batches after the last layer."""
        return _mean(
            _divergence(base, _log_probabilities(logits))
            for base, logits in zip(self.base, self._logits(batches), strict=True)
        )

    def _logits(self, batches: Iterable["Batch"]) -> Iterator[Floats]:
        from runtime import layerwise
        from runtime.head import LazyLogits, head
        from runtime.kernels.blas import one_thread

        for batch in batches:
            with one_thread():
                logits = head(batch.forward, layerwise.head_input(batch))
                if not isinstance(logits, LazyLogits):
                    raise ModelError("a model that predicts no tokens has no divergence to search by")
                x = logits.x.reshape(batch.forward.texts, batch.forward.length, -1)
                some = x[:, batch.forward.length // 2 :: self.step].reshape(-1, x.shape[-1])
                sampled = replace(logits, x=np.ascontiguousarray(some)).float32()
            yield sampled


def _log_probabilities(logits: Floats) -> Floats:
    for rows in np.array_split(logits, max(1, logits.size >> 22)):  # views: in place, a few rows at a time
        rows -= rows.max(axis=1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return logits


def _divergence(base: Floats, other: Floats) -> Doubles:
    pieces = max(1, base.size >> 22)
    pairs = zip(np.array_split(base, pieces), np.array_split(other, pieces), strict=True)
    return np.concatenate([np.einsum("ij,ij->i", np.exp(p), p - q, dtype=np.float64) for p, q in pairs])


def _mean(parts: Iterable[Doubles]) -> float:
    return max(float(np.concatenate(list(parts)).mean()), 0.0)


def encoded_bytes(tensor: Tensor, form: Format, weights: Floats | None, threads: int) -> NDArray[np.uint8]:
    """Encode a tensor: returns (rows, bytes of a row). weights: (experts, width), None for a plain encoder."""
    from runtime.kernels.threads import parallel, spans

    raw = np.empty((tensor.rows, form.row_bytes(tensor.width)), np.uint8)
    share = tensor.rows // (1 if weights is None else len(weights))

    def encode(start: int, stop: int) -> None:
        for first in range(start - start % share, stop, share):  # of one expert at a time
            here, end = max(start, first), min(stop, first + share)
            own = None if weights is None else weights[first // share]
            raw[here:end] = form.encode(tensor.float32(here, end), own)

    parallel(encode, spans(tensor.rows, SPAN), threads)
    return raw


def measure(
    net: "RunningModel",
    candidates: Mapping[str, Sequence[Format]],
    windows: Windows,
    judge: Judge,
    kept: Encoded,
    tell: Tell,
) -> Sensitivities:
    """Measure a model layer by layer. candidates: formats of each weight. tell(step): called at each layer.

    kept: has figures of an earlier run, and gets new ones. Weights that no product used get no part. Raises ModelError
    for a model that cannot be run layer by layer, FileError.
    """
    return _Measurement(net, candidates, judge, kept, tell).run(windows.fitted)


@dataclass
class _Measurement:
    """Measure a model's layers in order."""

    net: "RunningModel"
    candidates: Mapping[str, Sequence[Format]]
    judge: Judge
    kept: Encoded
    tell: Tell
    sensitivities: Sensitivities = field(default_factory=Sensitivities)

    def run(self, ids: NDArray[np.int64]) -> Sensitivities:
        from runtime import layerwise

        layers = self.net.network.layers
        places = [layer.prefix.rstrip(".") for layer in layers]
        if all(place in self.kept.figures for place in (*places, ENDS)):
            for place in (*places, ENDS):
                self.sensitivities.take(self.kept.figures[place], self.net.tensors)
            return self.sensitivities
        fitted = layerwise.begin(self.net, split_evenly(ids, self.judge.at_once))
        probe, readers = self.judge.begin(self.net), None
        for i, (layer, place) in enumerate(zip(layers, places, strict=True)):
            self.tell(place)
            names = (tensor for tensor in layer.tensors.values() if tensor.name in self.candidates)
            seen = layerwise.hessians(self.net, columns_on(self.net.device, DEFAULT_MEMORY, names))
            known = self.kept.figures.get(place)
            reads = i == 0 and EMBEDDING in self.candidates
            layerwise.advance(fitted, layer, seen if known is None or reads else None)
            if reads:
                readers = readers_of(self.net, layer, seen)
            if known is None:
                before = len(self.sensitivities.parts)
                self._measure_layer(i, layer, probe, seen)
                self.kept.note(place, self.sensitivities.as_dict(before))
            else:
                self.sensitivities.take(known, self.net.tensors)
            layerwise.advance(probe, layer)
            self.judge.release(layer)
        self.tell("output")
        tied, before = HEAD not in self.net.tensors, len(self.sensitivities.parts)
        name = EMBEDDING if tied else HEAD
        seen = layerwise.hessians(self.net, self.net.tensors[name].width)
        layerwise.watch_head(fitted, name, seen)
        self._measure_ends(name, probe, seen, readers)
        self.kept.note(ENDS, self.sensitivities.as_dict(before))
        return self.sensitivities

    def _measure_layer(self, i: int, layer: "Layer", probe: Sequence["Batch"], seen: "Hessians") -> None:
        """Measure the parts of a layer's weights."""
        from runtime import layerwise

        errors, coarse = {}, {}
        for tensor in layer.tensors.values():
            pieces = self._pieces(tensor.name, seen)
            if pieces:
                self.sensitivities.entries[tensor.name] = entry_of(pieces, tensor)
                errors[tensor.name] = self._errors(tensor, pieces)
                coarse[tensor.name] = self._coarse(tensor)
        if not errors:
            return
        before = list(map(replace, probe))
        after = self._through(layer, before)
        moved = {
            name: self._moved(layerwise.with_tensors(layer, [made]), before, after) for name, made in coarse.items()
        }
        carried, layers = list(map(replace, probe)), self.net.network.layers
        self.judge.carry(carried, [layerwise.with_tensors(layer, coarse.values()), *layers[i + 1 :]])
        lost, whole = self.judge.of(carried), sum(moved.values()) or 1.0
        self._forget(coarse.values())
        for name, own in errors.items():
            gain = lost * moved[name] / whole / (own[COARSE] or 1.0)
            self.sensitivities.parts.append(Part(name, role_of(name), gain, own))

    def _forget(self, tensors: Iterable[Tensor]) -> None:
        """Release rounded weights on the device."""
        if self.net.device is not None:
            self.net.device.drop(tensors)

    def _through(self, layer: "Layer", before: Sequence["Batch"]) -> list[Floats]:
        from runtime import layerwise

        batches = list(map(replace, before))
        layerwise.advance(batches, layer)
        return [batch.states() for batch in batches]

    def _moved(self, layer: "Layer", before: Sequence["Batch"], after: Sequence[Floats]) -> float:
        """Return how far the layer's output is from `after`, squared, relative to each token's own size."""
        distances = []
        for made, wanted in zip(self._through(layer, before), after, strict=True):
            x, truth = (each.reshape(-1, each.shape[-1]) for each in (made, wanted))
            size = np.einsum("ij,ij->i", truth, truth)
            distances.append(np.einsum("ij,ij->i", x - truth, x - truth) / np.maximum(size, 1e-30))
        return float(np.concatenate(distances).mean())

    def _measure_ends(
        self, head: str, probe: Sequence["Batch"], seen: "Hessians", readers: "BlockDiagonal | None"
    ) -> None:
        """Measure the parts of the embedding and the output.

        head: the weight that makes logits, the embedding if tied.
        """
        from runtime import layerwise
        from runtime.products.block_diagonal import weighted_sum

        by_name: dict[str, list[tuple[Part, BlockDiagonal]]] = {}
        pieces = self._pieces(head, seen)
        if pieces:
            self.sensitivities.entries[head] = entry_of(pieces, self.net.tensors[head])
            errors, coarse = self._errors(self.net.tensors[head], pieces), self._coarse(self.net.tensors[head])
            other = layerwise.changed_model(self.net, {**self.net.tensors, head: coarse})
            batches = [
                replace(batch, forward=replace(batch.forward, network=other.network, device=other.device))
                for batch in probe
            ]
            gain = self.judge.of(batches) / (errors[COARSE] or 1.0)
            self._forget([coarse])
            group = "output" if head == HEAD else "embedding"  # a tied one is corrected as a whole
            by_name.setdefault(head, []).append((Part(head, group, gain, errors), pieces[0].inputs))
        if readers is not None and self.net.tensors[EMBEDDING].width == len(readers):
            tensor, readers = self.net.tensors[EMBEDDING], computed_for(self.net).moved(readers)
            pieces = [Piece(0, tensor.rows, readers, readers)]
            self.sensitivities.entries.setdefault(EMBEDDING, entry_of(pieces, tensor))
            errors, coarse = self._errors(tensor, pieces), self._coarse(tensor)
            other = layerwise.changed_model(self.net, {**self.net.tensors, EMBEDDING: coarse})
            batches = [
                replace(after, forward=before.forward)
                for after, before in zip(self.judge.begin(other), self.judge.begin(self.net), strict=True)
            ]
            self.judge.carry(batches, self.net.network.layers)
            gain = self.judge.of(batches) / (errors[COARSE] or 1.0)
            by_name.setdefault(EMBEDDING, []).append((Part(EMBEDDING, "embedding", gain, errors), readers))
        for parts in by_name.values():
            self.sensitivities.parts += [part for part, _ in parts]
            if len(parts) > 1:  # columns weigh by both
                name, matrix = parts[0][0].weight, weighted_sum([(matrix, part.gain) for part, matrix in parts])
                self.sensitivities.entries[name] = entry_of([Piece(0, 0, matrix, matrix)], self.net.tensors[name])

    def _pieces(self, name: str, seen: "Hessians") -> list[Piece]:
        """Return the pieces of a weight that is searched for; none if some of its rows saw no input."""
        if name not in self.candidates:
            return []
        rows = self.net.tensors[name].rows
        products = seen.pieces(name, rows)
        pieces = list(pieces_of(products, products))
        return pieces if sum(piece.stop - piece.start for piece in pieces) == rows else []

    def _coarse(self, tensor: Tensor) -> Tensor:
        form, weights = format_named(COARSE), self.sensitivities.entries[tensor.name].mean()
        raw = encoded_bytes(tensor, form, weights, self.net.threads)
        return replace(tensor, format=form, read=lambda start, stop: raw[start:stop])

    def _errors(self, tensor: Tensor, pieces: Sequence[Piece]) -> dict[str, float]:
        """Return the whole weight's error by format, estimated from a sample of its rows."""
        from runtime.kernels.threads import parallel, spans

        forms = list(dict.fromkeys([*self.candidates[tensor.name], format_named(COARSE)]))
        sums = [0.0] * len(forms)
        for piece in pieces:
            count = piece.stop - piece.start
            picked = np.unique(np.linspace(0, count - 1, min(SAMPLED_ROWS, count)).astype(np.intp))
            values = _rows_of(tensor, piece.start + picked)
            weights = np.maximum(piece.inputs.diagonal(), 0).astype(np.float32)
            lost: list[Floats] = [values] * len(forms)

            def attempt(
                start: int, stop: int, values: Floats = values, weights: Floats = weights, lost: list[Floats] = lost
            ) -> None:
                for i in range(start, stop):
                    lost[i] = forms[i].decode(forms[i].encode(values, weights)) - values

            parallel(attempt, spans(len(forms), 1), self.net.threads)
            losses = self._losses(lost, piece.inputs)
            sums = [total + each * count / len(values) for total, each in zip(sums, losses, strict=True)]
        return {form.name: total for form, total in zip(forms, sums, strict=True)}

    def _losses(self, lost: Sequence[Floats], inputs: "BlockDiagonal") -> list[float]:
        """Return `loss` of each: on several threads, or one after another on the device."""
        from runtime.kernels.threads import parallel, spans

        single, losses = inputs.single(), [0.0] * len(lost)

        def judge(start: int, stop: int) -> None:
            for i in range(start, stop):
                losses[i] = loss(lost[i], single)

        parallel(judge, spans(len(lost), 1), computed_for(self.net).calls_at_once)
        return losses


def _rows_of(tensor: Tensor, rows: NDArray[np.intp]) -> Floats:
    """Return these rows, in order; at most READ_AT_ONCE values are read at a time."""
    step = max(1, READ_AT_ONCE // tensor.width)
    blocks = []
    for start in range(int(rows[0]), int(rows[-1]) + 1, step):
        stop = min(start + step, int(rows[-1]) + 1)
        some = rows[(rows >= start) & (rows < stop)]
        if len(some):
            blocks.append(tensor.float32(start, stop)[some - start])
    return np.concatenate(blocks)


def entry_of(pieces: Sequence[Piece], tensor: Tensor) -> Entry:
    """Return the mean squares of a weight's inputs, for each expert, or of the weight's last rows (the values')."""
    experts = tensor.shape[0] if len(tensor.shape) == 3 and len(pieces) == tensor.shape[0] else 1
    of = pieces if experts > 1 else pieces[-1:]
    squares = np.stack([np.maximum(piece.inputs.diagonal(), 0) for piece in of]).astype(np.float32)
    return Entry(squares, np.ones(len(of), np.float32))
