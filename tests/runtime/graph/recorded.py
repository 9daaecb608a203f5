"""Recorded models (see `tests.absent_keys`), and their texts in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from quants.tensor import Tensor
from runtime.arrays import Floats, Ids
from runtime.graph.operations import Operation
from runtime.model import RunningModel
from tests import absent_keys

LENGTH = 17  # tokens of a text


def written(logits: Floats) -> Floats:
    """Zeros for tokens that are never written."""
    return np.where(logits == np.finfo(np.float32).min, np.float32(0), logits)


def models(name: str, change: Callable[[Tensor], Tensor] | None = None) -> Iterator[RunningModel]:
    """For a few tokens at a time, and for the text at once. change: of each tensor."""
    description, case = absent_keys.descriptions()[name], absent_keys.cases()[name][0]
    tensors: dict[str, Tensor] = absent_keys.tensors(description)
    if change is not None:
        tensors = {key: change(tensor) for key, tensor in tensors.items()}
    for threads, precision in ((2, "float32"), (1, "exact")):
        yield RunningModel(description.metadata(case), tensors, threads=threads, precision=precision)  # type: ignore[arg-type]


def text_of(name: str, model: RunningModel) -> Ids:
    """The recorded ids, control tokens among them, and others."""
    ids = list(absent_keys.descriptions()[name].ids)[:LENGTH]
    more = np.random.default_rng(3).integers(0, model.vocabulary_size, LENGTH)
    return np.array([*ids, *more][:LENGTH])


def in_pieces(model: RunningModel, ids: Ids, sizes: Sequence[int]) -> Floats:
    """The last size again and again."""
    cache, at, found, left = model.new_cache(), 0, [], list(sizes)
    while at < len(ids):
        size = left.pop(0) if len(left) > 1 else left[0]
        found.append(model.forward(ids[at : at + size], cache))
        at += size
        assert cache.length == min(at, len(ids))
    return written(np.concatenate(found))


def operation_types() -> Iterator[type[Operation]]:
    """Yield all operation types of graphs."""
    waiting: list[type[Any]] = [Operation]
    while waiting:
        each = waiting.pop()
        waiting += each.__subclasses__()
        if not each.__subclasses__():
            yield each
