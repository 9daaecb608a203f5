"""Choose how to encode one weight, by its inputs on texts that were held back.

The candidates are the format's own encoder, the same weighted by the inputs' mean squares, and error feedback with
little, usual and much damping. The one that changes the product's output least on held-back inputs is taken. Where the
matrices are, on the processor or on a device, is a matter of `Computed` alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quants import Format

from .computed import SPAN, Computed, Floats, Raw

if TYPE_CHECKING:
    from runtime.hessians import Products
    from runtime.products.block_diagonal import BlockDiagonal

Encode = Callable[[Floats], Raw]
EncodeAll = Callable[["Method", "BlockDiagonal | None", Floats], Raw | None]  # method, correction, rows

DAMPINGS = (0.03, 0.1, 0.5)  # of the median of the Hessian's diagonal
TRIED_ROWS = 192  # encoded with every method
AIM = 0.25  # the share of what inputs lost that rows make up for: each layer does, so that all would do too much
FEW = 2.0  # inputs for each column, below which an expert's matrix is drawn towards that of all


class Piece(NamedTuple):
    """Hold rows of a weight that share inputs.

    inputs, held: mean of x x^T over the inputs, and over those held back. drift, held_drift: mean of (y - x) x^T over
    both, y the original model's inputs; None if unknown.
    """

    start: int
    stop: int
    inputs: "BlockDiagonal"
    held: "BlockDiagonal"
    drift: "BlockDiagonal | None" = None
    held_drift: "BlockDiagonal | None" = None


@dataclass(frozen=True)
class Method:
    """Describe an encoder of rows.

    damping, factors, weights: of error feedback, factors for blocks of columns; none without it (see
    `encode_by_columns`).
    """

    name: str
    encode: Encode
    damping: float | None = None
    factors: Sequence[Floats] = ()
    weights: Floats | None = None


@dataclass(frozen=True)
class Chosen:
    """Hold an encoded weight.

    error, error_before: squared error of the output on held-back inputs, relative to the output; before: of the encoder
    without texts, with importance weights if given. aimed: rows also compensate part of the errors that their inputs
    got in earlier layers, which `error` does not count.
    """

    raw: Raw
    method: str
    damping: float | None
    error: float
    error_before: float
    aimed: bool = False

    def as_dict(self) -> dict[str, Any]:
        errors = {"error": self.error, "error_before": self.error_before}
        return {"method": self.method, "damping": self.damping, "aimed": self.aimed, **errors}


def pieces_of(
    fitted: Sequence[tuple[int, int, "Products"]], held: Sequence[tuple[int, int, "Products"]]
) -> Iterator[Piece]:
    """Yield a weight's rows with their inputs' matrices.

    Matrices of experts with few inputs are drawn towards the mean of all. An expert without held-back inputs is judged
    by its own inputs. Yields one at a time: matrices are large.
    """
    from runtime.products.block_diagonal import weighted_sum

    if not fitted:
        return
    width, several = fitted[0][2].width, len({id(products) for _, _, products in fitted}) > 2
    total = max(1, sum(products.count for _, _, products in fitted))
    parts = ((products.matrix(), products.count / total) for _, _, products in fitted)
    everyone = weighted_sum(parts) if several else None
    judged = {(start, stop): products for start, stop, products in held}
    for start, stop, products in fitted:
        own, count = products.matrix(), products.count
        if everyone is not None:
            few = FEW * width
            own = weighted_sum([(own, count / (count + few)), (everyone, few / (count + few))])
        other = judged.get((start, stop))
        if other is None or not other.count:
            yield Piece(start, stop, own, own)
        else:
            yield Piece(start, stop, own, other.matrix(), products.drift(), other.drift())


def loss(difference: Floats, matrix: "BlockDiagonal") -> float:
    """Return the squared error of outputs: sum of D H D^T over the rows of difference (rows, width)."""
    return matrix.along(difference, difference)


def methods(
    form: Format, inputs: "BlockDiagonal", before: Encode, before_name: str, computed: Computed
) -> list[Method]:
    """Return the candidates for rows with such inputs; the first is the encoder without texts."""
    weights = np.maximum(inputs.diagonal(), 0).astype(np.float32)
    tried = [Method(before_name, before)]
    if not weights.any():
        return tried
    if form.uses_importance:
        tried.append(Method("weighted", lambda rows: form.encode(rows, weights)))
    for damping, own in zip(DAMPINGS, computed.triangles(inputs, DAMPINGS), strict=True):
        encode = partial(computed.encode_by_columns, form, own, weights)
        tried.append(Method("feedback", encode, damping, own, weights))
    return tried


def choose(
    values: Floats,
    piece: Piece,
    form: Format,
    before: Encode,
    before_name: str,
    computed: Computed,
    elsewhere: EncodeAll | None = None,
) -> Chosen:
    """Encode values (rows, width) of a piece with the method that is best on held-back inputs.

    elsewhere: encodes all rows with the chosen method on workers, or returns None if that is not worth it.
    """
    from runtime.kernels.threads import parallel, spans

    sample = values[np.unique(np.linspace(0, len(values) - 1, min(TRIED_ROWS, len(values))).astype(np.intp))]
    candidates = methods(form, piece.inputs, before, before_name, computed)
    held, parts = piece.held.single(), spans(len(sample), computed.rows_at_once(sample.shape[1]))

    def errors(encoders: Sequence[Encode | None], pull: Floats | None = None) -> list[float]:
        """Of the output, for each encoder; None loses all. pull: what rows are drawn towards, (rows, width)."""
        table = np.zeros((len(encoders), len(parts)))

        def attempt(start: int, stop: int) -> None:
            for i in range(start, stop):
                method, part = divmod(i, len(parts))
                here, encode = slice(*parts[part]), encoders[method]
                lost = (np.float32(0) if encode is None else form.decode(encode(sample[here]))) - sample[here]
                table[method, part] = loss(lost, held)
                if pull is not None:
                    table[method, part] -= 2 * float(np.einsum("ij,ij->", pull[here], lost, dtype=np.float64))

        parallel(attempt, spans(table.size, 1), computed.calls_at_once)
        sums: list[float] = table.sum(axis=1).tolist()
        return sums

    *losses, whole = errors([*(method.encode for method in candidates), None])
    best = candidates[losses.index(min(losses))]
    encode, change = best.encode, None
    if best.factors and piece.drift is not None and piece.held_drift is not None:
        wanted = computed.correction(piece.drift, best.factors, AIM)
        encode_corrected = partial(encode_aimed, best.encode, wanted)
        corrected_loss, plain_loss = errors([encode_corrected, best.encode], AIM * piece.held_drift.times(sample))
        if corrected_loss < plain_loss:
            encode, change = encode_corrected, wanted
    raw = None if elsewhere is None else elsewhere(best, change, values)
    if raw is None:
        raw = encode_spans(encode, values, form, computed, bool(best.factors))
    whole = whole or 1.0
    return Chosen(raw, best.name, best.damping, min(losses) / whole, losses[0] / whole, change is not None)


def encode_aimed(encode: Encode, change: "BlockDiagonal", rows: Floats) -> Raw:
    """Encode rows after adding a correction, see `correction`."""
    return encode(rows + change.times(rows))


def encode_spans(encode: Encode, values: Floats, form: Format, computed: Computed, by_columns: bool = True) -> Raw:
    """Encode rows (n, width), some at a time from the first: bytes may depend on which rows are encoded together.

    by_columns: `encode` is a method of `computed`, which may have threads of its own.
    """
    from runtime.kernels.threads import parallel, spans

    raw = np.empty((len(values), form.row_bytes(values.shape[1])), np.uint8)

    def one(start: int, stop: int) -> None:
        raw[start:stop] = encode(np.ascontiguousarray(values[start:stop]))

    rows, calls = SPAN, computed.threads
    if by_columns:
        rows, calls = computed.rows_at_once(values.shape[1]), computed.calls_at_once
    parallel(one, spans(len(values), rows), calls)
    return raw


def combined(parts: Sequence[tuple[int, Chosen]]) -> Chosen:
    """Join the results of a weight's pieces, given with their numbers of rows."""
    rows = [count for count, _ in parts]
    names = [chosen.method for _, chosen in parts]
    errors = [(chosen.error, chosen.error_before) for _, chosen in parts]
    usual = max(set(names), key=names.count)
    dampings = [chosen.damping for _, chosen in parts if chosen.method == usual]
    raw = np.concatenate([chosen.raw for _, chosen in parts])
    error, before = np.average(errors, axis=0, weights=rows)
    aimed = any(chosen.aimed for _, chosen in parts)
    return Chosen(raw, usual, dampings[0], float(error), float(before), aimed)
