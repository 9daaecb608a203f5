"""A file's keys and tensors by layer, as validators read them, and the faults that they report."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from quants import Tensor

from .hparams.file_keys import Keys
from .hparams.model_hparams import stored_layers
from .spec import Architecture, Tensors

LAYER = re.compile(r"((?:enc\.|dec\.)?blk\.|posnet\.|convnext\.)([0-9]+)\.(.+)")
Roles = dict[str, Tensor]
Grouped = dict[str, Roles]


@dataclass(frozen=True)
class Fault:
    """where: a key, a tensor or a layer ("model": the whole). problem: what was found there and what is expected."""

    where: str
    problem: str

    def __str__(self) -> str:
        return self.problem if self.where == "model" else f"{self.where!r} {self.problem}"


def by_layer(tensors: Tensors) -> Grouped:
    """Return tensors by prefix ("blk.0.", "enc.blk.3."; "" for all outside of layers), then by the rest of their
    names.
    """
    grouped: Grouped = {"": {}}
    for name, tensor in tensors.items():
        match = LAYER.fullmatch(name)
        prefix, role = (f"{match[1]}{match[2]}.", match[3]) if match else ("", name)
        grouped.setdefault(prefix, {})[role] = tensor
    return grouped


@dataclass(frozen=True)
class LayeredModel:
    """A model's keys and tensors before they are validated."""

    architecture: Architecture
    keys: Keys
    grouped: Grouped

    @property
    def outside(self) -> Roles:
        return self.grouped[""]

    @cached_property
    def encoder_decoder(self) -> bool:
        """Return encoder and decoder layers, or the first only. Clef's head is neither."""
        if self.keys.get("decision.type") == "clef":
            return False
        layers = any(prefix.startswith(("enc.", "dec.")) for prefix in self.grouped)
        return layers or "dec.output_norm.weight" in self.outside

    def layer_counts(self) -> Iterator[tuple[str, str, int]]:
        """Return for each layer type its prefix, the key that counts it, and how many are required."""
        count = self.keys.need("block_count")
        if self.architecture.block.convolutions:
            for name in ("posnet", "convnext"):
                yield f"{name}.", f"{name}.block_count", self.keys.get(f"{name}.block_count")
            return
        if not self.encoder_decoder:
            yield "blk.", "block_count", stored_layers(self.keys)
            return
        yield "enc.blk.", "block_count", count
        if not self.architecture.block.hidden_states:
            yield "dec.blk.", "decoder_block_count", self.keys.get("decoder_block_count")

    def fault(self, key: str, problem: str) -> Fault:
        return Fault(f"{self.keys.architecture}.{key}", problem)


def is_zero(data: Any) -> bool:
    """Return whether a key holds a number that is zero, or a list of such."""
    if isinstance(data, np.ndarray):
        return data.dtype.kind in "iu" and not data.any()
    if isinstance(data, (list, tuple)):
        return all(item == 0 for item in data)
    return isinstance(data, (int, float)) and data == 0


def missing(name: str) -> Fault:
    return Fault(name, "is missing; its architecture needs it")


def weighs(roles: Roles, names: str) -> bool:
    """Return whether there is a weight with any of these names: a bias alone does nothing."""
    return any(f"{name}.weight" in roles for name in names.split())
