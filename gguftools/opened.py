"""A GGUF file opened for reading, and loaded for running."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from archs.metadata import Metadata
from quants import Tensor

from .files.gguf.reader import GgufFile, open_gguf

if TYPE_CHECKING:
    from runtime.model import Model
    from runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class OpenFile:
    """What a GGUF file (or a split set, any shard named) holds; nothing is decoded until asked for."""

    file: GgufFile

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def metadata(self) -> Metadata:
        return self.file.metadata

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return self.file.tensors

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Built from the metadata alone. Raises VocabularyError where there is no vocabulary, or one we can't run."""
        from runtime.tokenizer import tokenizer_from_metadata

        from .metadata.typed import check_types

        check_types(self.metadata, "tokenizer.")
        return tokenizer_from_metadata(self.metadata)


def open(path: str | os.PathLike[str]) -> OpenFile:
    """Open a GGUF file: its header is read and checked, its tensors are mapped. Raises FileError."""
    return OpenFile(open_gguf(Path(path)))


def load(path: str | os.PathLike[str], *, threads: int | None = None) -> Model:
    """Open a GGUF file ready to run: `load(path).logits([1, 2, 3])` is float32 (tokens, vocabulary).

    threads: of this model; None for all processors. Raises FileError, OptionError for fewer threads than one, and
    ModelError for an architecture the runtime does not know.
    """
    from runtime.model import Model

    opened = open(path)
    return Model(opened.metadata, opened.tensors, threads=threads)
