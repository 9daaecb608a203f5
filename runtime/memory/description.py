"""Describe what decides about a model's memory: its layers, tensors and hyperparameters, and how it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import HParams, LayerHParams, read_hparams
from archs.layer_types import LayerType, type_of_layer
from archs.layered import Grouped, Roles, by_layer
from archs.metadata import Metadata
from archs.registry import of_file
from archs.spec import Architecture
from quants import Tensor

CELLS = 256  # caches are a multiple of so many tokens
WHOLE_WINDOWS = ("phi3", "phimoe")  # llama.cpp has no windows for them
WITHOUT_CACHES = (
    *("bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert", "modern-bert"),
    *("gemma-embedding", "dream", "llada", "llada-moe", "rnd1", "clef", "wavtokenizer-dec"),
)
WINDOWED_WITH = {"exaone4": 64}  # it has windows in models with so many layers
TABLE = "token_embd.weight"


@dataclass(frozen=True)
class Settings:
    """How llama.cpp runs a model, by the names and defaults of llama-server with one slot.

    context: tokens of all sequences together. all_logits: a step computes logits of all its tokens, as those of
    llama-perplexity do, instead of one row for each sequence. unified: sequences share one cache instead of having
    parts of it. whole_windows: layers with a window have cells for the whole context.
    """

    context: int = 4096
    sequences: int = 1
    cache_type_k: str = "F16"
    cache_type_v: str = "F16"
    batch: int = 2048
    ubatch: int = 512
    all_logits: bool = False
    unified: bool = False
    whole_windows: bool = False

    @property
    def streams(self) -> int:
        """Return how many parts the caches have."""
        return 1 if self.unified else self.sequences

    @property
    def cells(self) -> int:
        """Return the tokens that each part of a cache has room for."""
        total = padded(self.context)
        return total if self.unified else max(padded(total // self.sequences), CELLS)

    @property
    def tokens(self) -> int:
        """Return how many tokens a step computes: as many for each sequence."""
        count = min(self.cells * self.streams, self.batch, self.ubatch)
        return -(-count // self.sequences) * self.sequences

    @property
    def rows(self) -> int:
        """Return how many logits a step computes."""
        limit = self.batch if self.all_logits else self.sequences
        return min(self.cells * self.streams, self.batch, self.ubatch, limit)


def padded(count: int) -> int:
    """Return a number of cells that caches have."""
    return -(-count // CELLS) * CELLS


@dataclass(frozen=True)
class Described:
    """A model by its keys and tensors. count: of the layers that run."""

    architecture: Architecture
    keys: Keys
    hparams: HParams
    grouped: Grouped

    @property
    def outside(self) -> Roles:
        return self.grouped[""]

    @property
    def count(self) -> int:
        return len(self.hparams.layers)

    @cached_property
    def layers(self) -> tuple[LayerType, ...]:
        """Return what each layer consists of."""
        block, parallel = self.architecture.block, self.hparams.parallel
        return tuple(type_of_layer(block, self.keys, i, self.roles(i), parallel) for i in range(self.count))

    def roles(self, layer: int) -> Roles:
        """Return a layer's tensors."""
        stored = self.hparams.layers[layer].stored
        return self.grouped.get(f"blk.{layer if stored is None else stored}.", {})

    def number(self, key: str) -> int:
        """Return an integer of the file; 0 if it has none."""
        return int(self.keys.get(key) or 0)

    @cached_property
    def vocabulary(self) -> int:
        """Return the number of rows of logits."""
        for name in ("output.weight", TABLE):
            if name in self.outside:
                return self.outside[name].rows
        return 0

    @cached_property
    def latent(self) -> bool:
        """Return whether caches hold latent keys alone."""
        return bool(self.number("attention.key_length_mla") and self.number("attention.value_length_mla"))

    def windowed(self, layer: LayerHParams) -> bool:
        """Return whether a layer's cache has room for its window alone."""
        whole = self.architecture.name in WHOLE_WINDOWS
        whole = whole or WINDOWED_WITH.get(self.architecture.name, self.count) != self.count
        return not whole and (layer.window is not None or layer.chunk is not None)

    @cached_property
    def cached(self) -> bool:
        """Return whether llama.cpp keeps keys and values: encoders and diffusion models see all tokens at once."""
        return self.architecture.name not in WITHOUT_CACHES

    @cached_property
    def windows(self) -> bool:
        """Return whether any layer has a window."""
        return any(self.windowed(layer) for layer in self.hparams.layers)


def described(metadata: Metadata, tensors: Mapping[str, Tensor]) -> Described:
    """Read a model's keys once. Raises ModelError where the architecture is unknown or a key is missing."""
    architecture = of_file(str(metadata["general.architecture"]), metadata)
    keys = Keys.of(architecture, metadata)
    return Described(architecture, keys, read_hparams(architecture, metadata, tensors), by_layer(tensors))
