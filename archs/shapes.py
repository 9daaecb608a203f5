"""Shapes that follow from the metadata: a checkpoint whose tensors contradict its config is refused before any work."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from quants import Tensor
from quants.errors import ModelError

from .spec import Architecture


def check_shapes(architecture: Architecture, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Compare what can be known. Raises ModelError naming the tensor, its shape and the expected one."""
    for name, expected in wrong_shapes(architecture, metadata, tensors):
        tensor = tensors[name]
        raise ModelError(
            f"{tensor.origin or name} has shape {list(tensor.shape)}; config.json means {expected} ({name})",
            hint="config.json and weights belong to different models, or a shard is damaged",
        )


def wrong_shapes(
    architecture: Architecture, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, str]]:
    """Tensors whose shape contradicts the metadata, each with what is expected ("256 in columns")."""
    expected = _expected(architecture, metadata)
    for name, tensor in tensors.items():
        role = re.sub(r"^blk\.\d+\.", "", name)
        for axis, size in expected.get(role, {}).items():
            if size is not None and (len(tensor.shape) < abs(axis) or tensor.shape[axis] != size):
                yield name, f"{size} in {'columns' if axis == -1 else 'rows'}"


def _expected(architecture: Architecture, metadata: Mapping[str, Any]) -> dict[str, dict[int, int | None]]:
    """Role → {axis: size}; -1 counts columns, 0 rows."""

    def number(key: str) -> int | None:
        """A value, or what all layers that have one agree on."""
        value = metadata.get(f"{architecture.name}.{key}")
        items = value if isinstance(value, list) else value.tolist() if isinstance(value, np.ndarray) else [value]
        found = {each for each in items if isinstance(each, int) and each}
        return found.pop() if len(found) == 1 else None

    width, heads = number("embedding_length"), number("attention.head_count")
    if width is None:
        return {}
    grouped = f"{architecture.name}.attention.head_count_kv" in metadata
    kv_heads = number("attention.head_count_kv") if grouped else heads
    head = number("attention.key_length") or (width // heads if heads else None)
    value = number("attention.value_length") or head
    if number("attention.key_length_swa") not in (None, head):
        head = value = None  # differs by layer
    gates = architecture.block.query_gates
    latent = number("attention.kv_lora_rank") is not None

    def rows(count: int | None, each: int | None) -> int | None:
        return None if latent or count is None or each is None else count * each

    return {
        "token_embd.weight": {},
        "output_norm.weight": {-1: width},
        "attn_norm.weight": {-1: width},
        "ffn_norm.weight": {-1: width},
        "attn_q.weight": {-1: width, 0: rows(heads, 2 * head if head and gates else head)},
        "attn_k.weight": {-1: width, 0: rows(kv_heads, head)},
        "attn_v.weight": {-1: width, 0: rows(kv_heads, value)},
        "attn_output.weight": {-1: rows(heads, value), 0: width},
        "ffn_gate.weight": {-1: width},
        "ffn_up.weight": {-1: width},
        "ffn_down.weight": {0: width},
    }
