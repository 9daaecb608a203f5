"""Merge experts: a dropped one is averaged into the most similar remaining one, weighted by their use.

Similar are experts whose rows of the router point the same way, as they get the same tokens. Values are averaged neuron
by neuron, the router's rows too; neurons are not reordered first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quants import Tensor
from quants.errors import FormatError, ModelError

from ...io.gguf.assembly import Stored
from .experts import STACKED, Dropped, Mixture, Scores

Partners = Mapping[int, Mapping[int, Sequence[int]]]  # by layer and expert that stays: those that are merged into it


def partners(mixture: Mixture, tensors: Mapping[str, Stored], dropped: Dropped) -> dict[int, dict[int, list[int]]]:
    """Return for each remaining expert the dropped ones whose router rows are most similar to its own."""
    partners_by_layer: dict[int, dict[int, list[int]]] = {}
    for layer in mixture.layers:
        lost = sorted(set(dropped[layer]))
        kept = [i for i in range(mixture.count) if i not in lost]
        router = tensors.get(f"blk.{layer}.ffn_gate_inp.weight")
        if router is None or router.tensor.shape[:1] != (mixture.count,):
            raise ModelError(f"layer {layer} has no router with a row for each of {mixture.count} experts")
        rows = np.asarray(router.tensor.float32(), np.float64).reshape(mixture.count, -1)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
        nearest = (rows[lost] @ rows[kept].T).argmax(axis=1)
        partners_by_layer[layer] = {}
        for expert, place in zip(lost, nearest, strict=True):
            partners_by_layer[layer].setdefault(kept[place], []).append(expert)
    return partners_by_layer


def merged(
    before: Mapping[str, Stored],
    after: Mapping[str, Stored],
    mixture: Mixture,
    dropped: Dropped,
    counts: Scores,
    requantize: bool = False,
) -> tuple[dict[str, Stored], dict[int, dict[int, list[int]]]]:
    """Return the tensors `after` experts were dropped, with the remaining experts averaged with their partners.

    before: with all experts. counts: how often each was used, by layer. requantize: encode blocks again. Raises
    FormatError for blocks that must not be encoded again, ModelError for experts that cannot be averaged.
    """
    tensors, into = dict(after), partners(mixture, before, dropped)
    for name, each in before.items():
        layer, role = _place(name)
        if layer not in into or not STACKED.fullmatch(role):
            continue
        tensor = each.tensor
        if role.endswith("scale"):
            raise ModelError(f"{tensor.where} scales each expert by itself: they cannot be averaged", "drop them only")
        if tensor.format.is_quantized and not requantize:
            problem = f"{tensor.where} is {tensor.format.name}: experts are averaged by encoding them again"
            raise FormatError(problem, hint="merge in a file of floats, or pass `allow_requantize`")
        if not tensor.format.has_codec or tensor.format.dialect:
            raise FormatError(f"{tensor.where} is {tensor.format.name}, which is not encoded here")
        kept = sorted(set(range(mixture.count)).difference(dropped[layer]))
        weights = np.zeros((len(kept), mixture.count))
        for row, expert in enumerate(kept):
            members = [expert, *into[layer].get(expert, ())]
            used = np.asarray([counts[layer][member] for member in members], np.float64)
            weights[row, members] = used / used.sum() if used.sum() > 0 else 1 / len(members)
        tensors[name] = Stored(_averaged(tensor, weights), None)
    return tensors, into


def _place(name: str) -> tuple[int, str]:
    """Return layer and role of a tensor; -1 for one outside layers."""
    parts = name.split(".", 2)
    return (int(parts[1]), parts[2]) if len(parts) == 3 and parts[0] == "blk" and parts[1].isdecimal() else (-1, name)


def _averaged(tensor: Tensor, weights: NDArray[np.float64]) -> Tensor:
    """Return the averaged tensor. weights: (kept, experts), shares of each expert. An expert without partners keeps its
    bytes.
    """
    flat = len(tensor.shape) == 1 or tensor.shape[0] == 1  # one value for each
    count, form = len(weights), tensor.format
    shape = (*tensor.shape[:-1], count) if flat else (count, *tensor.shape[1:])
    if flat:
        values = (weights @ tensor.float32().reshape(-1).astype(np.float64)).astype(np.float32).reshape(1, -1)
        raw = form.encode(values)
        return replace(tensor, shape=shape, read=lambda start, stop: raw[start:stop])
    rows_each = tensor.rows // tensor.shape[0]

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        pieces = []
        while start < stop:
            expert, row = divmod(start, rows_each)
            end = min(rows_each, row + stop - start)
            pieces.append(_rows(tensor, weights[expert], rows_each, row, end))
            start += end - row
        return np.concatenate(pieces) if pieces else tensor.raw(0, 0)

    return replace(tensor, shape=shape, read=read)


def _rows(tensor: Tensor, weights: NDArray[np.float64], rows_each: int, first: int, last: int) -> NDArray[np.uint8]:
    members = np.flatnonzero(weights)
    if len(members) == 1:
        begin = int(members[0]) * rows_each
        return tensor.raw(begin + first, begin + last)
    total = np.zeros((last - first, tensor.width))
    for member in members:
        begin = int(member) * rows_each
        total += weights[member] * tensor.float32(begin + first, begin + last)
    return tensor.format.encode(total.astype(np.float32))
