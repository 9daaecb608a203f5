"""`general.*` metadata of a checkpoint: name, size label, licence, base models, by the rules of `gguf.Metadata`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from quants import Tensor

from .metadata import Metadata


def general(
    folder: Path, architecture: str, tensors: Iterable[Tensor], kind: str = "model", name: str | None = None
) -> Metadata:
    """`general.architecture`, `general.type` and what model card, config and folder name say.

    tensors: as they will be in the file; they give the size label. name: where nothing else tells, instead of the
    folder's.
    """
    import gguf  # here, because it imports much

    counts = _parameters(tensors)
    if kind == "adapter":
        counts = (-counts[0], *counts[1:])  # marks it as that of the weights adapted, not of what is stored
    found = gguf.Metadata.load(None, folder, None, counts[0])
    if found.size_label is None and counts[0] > 0:
        found.size_label = gguf.size_label(*counts)
    if found.name is None:
        found.name = name or folder.resolve().name
    writer = gguf.GGUFWriter(None, architecture)  # never written: it only collects keys and types
    writer.add_type(kind)
    found.set_gguf_meta_model(writer)
    metadata = Metadata()
    for key, value in writer.kv_data[0].items():
        metadata.set(key, value.value, value.type, value.sub_type or _element(value.value))
    return metadata


def _element(value: object) -> object:
    import gguf

    return gguf.GGUFValueType.get_type(value[0]) if isinstance(value, (list, tuple)) and value else None


def _parameters(tensors: Iterable[Tensor]) -> tuple[int, int, int, int]:
    """All parameters, those outside experts, those of one expert, experts: what a label such as 8x7B is made of."""
    total = shared = of_one_expert = experts = stacks = 0
    for tensor in tensors:
        total += tensor.size
        if "_exps." not in tensor.name or len(tensor.shape) < 3:
            shared += tensor.size
            continue
        count = tensor.shape[0]
        of_one_expert += math.prod(tensor.shape[1:])
        experts += count
        stacks += 1
    return total, shared, of_one_expert, experts // stacks if stacks else 0
