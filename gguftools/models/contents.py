"""What a model consists of: typed metadata and named tensors, with the files that they come from."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from archs.metadata import Metadata
from quants import Tensor, from_array
from quants.arguments import wrong
from quants.errors import FileError, OptionError
from quants.tensor import all_readable

from ..io.gguf.reader import GgufFile
from ..metadata.chat_templates import CHAT_TEMPLATE
from ..metadata.checks import check_types
from ..writing.origin import Origin
from ..writing.remote_tasks import Source
from .sources import pread_tensors

if TYPE_CHECKING:
    from runtime.tokenizer import Tokenizer

T = TypeVar("T")
NO_MODELS = {  # by general.type: what such a file is, and what to do with it
    "imatrix": ("an importance matrix", "it is used by `gguftools quantize MODEL RECIPE --imatrix MATRIX`"),
    "mmproj": ("an encoder for images or audio", "`gguftools generate MODEL --mmproj ENCODER --image IMAGE` reads it"),
    "delta": ("a delta between two files", "`gguftools patch apply OLD DELTA -o NEW` makes the new one"),
    "logits-base": ("a base of logits", "`gguftools divergence BASE MODEL` measures a model from it"),
    "adapter": ("an adapter", "`gguftools convert BASE --lora ADAPTER --outtype q8_0` writes a smaller one"),
}


class Tensors(UserDict[str, Tensor]):
    """Tensors by name, in order. What is set may be an array; a Tensor takes the name that it is set under."""

    def __setitem__(self, name: str, tensor: Tensor | ArrayLike) -> None:
        """Raises FormatError for an array of a type that GGUF has no tensors of."""
        if not isinstance(name, str):
            raise wrong("a tensor's name", name, "a text")
        made = tensor if isinstance(tensor, Tensor) else from_array(name, np.asarray(tensor))
        super().__setitem__(name, made if made.name == name else made.renamed(name))

    def __repr__(self) -> str:
        return f"<{len(self)} tensors, {sum(tensor.nbytes for tensor in self.values()):,} bytes>"


class Contents:
    """Metadata and tensors of a model. See `gguftools.Model`."""

    def __init__(
        self,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, Tensor | ArrayLike],
        *,
        origin: Origin | None = None,
        file: GgufFile | None = None,
    ) -> None:
        """metadata: plain data or Values. tensors: arrays (floats or signed integers) or Tensors, rows first.

        Raises OptionError for what are no mappings, FormatError for arrays that GGUF has no tensors of.
        """
        self.metadata = metadata
        self.tensors = tensors
        self.origin = origin or Origin()
        self.file = file
        self._closed = False
        self._opened = None if origin is None else dict(self.tensors)
        self._kept: dict[str, tuple[list[Any], Any]] = {}

    @property
    def metadata(self) -> Metadata:
        """Return values by key; setting takes any mapping of plain data or Values."""
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata if isinstance(metadata, Metadata) else Metadata(_mapping("metadata", metadata))

    @property
    def tensors(self) -> Tensors:
        """Return tensors by name, in order; setting takes a mapping of Tensors or arrays, and gives them its names."""
        return self._tensors

    @tensors.setter
    def tensors(self, tensors: Mapping[str, Tensor | ArrayLike]) -> None:
        self._tensors = Tensors()
        self._tensors.update(_mapping("tensors", tensors))

    @property
    def path(self) -> Path:
        """Return the file or folder, as it was named; for a model made of arrays, a name."""
        return self.origin.path

    @property
    def files(self) -> tuple[Path, ...]:
        """Return all files that its tensors are read from; none for a model made of arrays."""
        return self.origin.files

    @property
    def is_as_opened(self) -> bool:
        """Return whether its tensors are those of the files that it was opened from, unchanged."""
        opened = self._opened if self.file is None else self.file.tensors
        tensors = self.tensors.data
        return opened is not None and list(opened) == list(tensors) and all(tensors[n] is opened[n] for n in opened)

    @property
    def architecture(self) -> str:
        """Return `general.architecture`; empty where the metadata does not say."""
        name = self.metadata.get("general.architecture", "")
        return name if isinstance(name, str) else ""

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors, as they are stored."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def chat_template(self) -> str | None:
        """Return the template that conversations are rendered with; setting None removes it."""
        return self.metadata.get(CHAT_TEMPLATE)

    @chat_template.setter
    def chat_template(self, template: str | None) -> None:
        if template is None:
            self.metadata.pop(CHAT_TEMPLATE, None)
        else:
            self.metadata[CHAT_TEMPLATE] = template

    @property
    def context_length(self) -> int | None:
        """Return the number of tokens that the model was made for, if the file says it."""
        length = self.metadata.get(f"{self.architecture}.context_length")
        return int(length) if isinstance(length, (int, np.integer)) and length > 0 else None

    @property
    def tokenizer(self) -> Tokenizer:
        """Make the tokenizer, from the metadata alone: `encode(text)` → ids, `decode(ids)` → text.

        Raises VocabularyError where there is no vocabulary, or one we can't run.
        """

        def make() -> Tokenizer:
            from archs.diffusion.image_file import check_text_model
            from runtime.tokenizer import tokenizer_from_metadata

            check_text_model(self.metadata.get("general.architecture"))
            check_types(self.metadata, "tokenizer.")
            return tokenizer_from_metadata(self.metadata)

        values = [self.metadata.value(key) for key in self.metadata if key.startswith("tokenizer.")]
        return self._made("tokenizer", values, make)

    def _made(self, name: str, parts: list[Any], make: Callable[[], T]) -> T:
        """Make something of some parts, and keep it as long as they are the same objects."""
        kept = self._kept.get(name)
        if kept is None or list(map(id, kept[0])) != list(map(id, parts)):
            kept = self._kept[name] = parts, make()
        made: T = kept[1]
        return made


def _mapping(name: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise OptionError(f"{name} is {type(given).__name__}; a mapping by name was expected")
    return given


def check_is_model(contents: Contents, *others: str) -> None:
    """Raise FileError for a file that holds no model but something else. others: types that are taken, too."""
    general_type = contents.metadata.get("general.type")
    if isinstance(general_type, str) and general_type in NO_MODELS and general_type not in others:
        what, hint = NO_MODELS[general_type]
        raise FileError(f"{contents.path} is {what}, not a model", hint)


def check_runs(contents: Contents) -> None:
    """Raise FileError for a file that holds no model, ModelError for an image or video model."""
    from archs.diffusion.image_file import check_text_model

    check_is_model(contents)
    check_text_model(contents.metadata.get("general.architecture"))


def streamed_tensors(contents: Contents) -> dict[str, Tensor]:
    """Return the tensors for reading them all: those of a GGUF file by system calls, which read ahead, not its map."""
    if contents.file is None:
        return dict(contents.tensors)
    read = pread_tensors(contents.file)
    mapped, tensors = contents.file.tensors, contents.tensors.data
    return {name: read[name] if mapped.get(name) is each else each for name, each in tensors.items()}


def readable_tensors(contents: Contents) -> Mapping[str, Tensor]:
    """Return the same for whoever needs values: tensors of dialects in ggml's own formats, or in float32."""
    return all_readable(streamed_tensors(contents))


def process_source(contents: Contents, tensors: Mapping[str, Tensor]) -> Source | None:
    """Return how other processes read streamed tensors that are as they were opened; None if they cannot."""
    reopen = contents.origin.reopen
    opened = contents._opened if contents.file is None else contents.file.tensors
    if reopen is None or opened is None:
        return None
    same = [name for name, tensor in contents.tensors.data.items() if opened.get(name) is tensor]
    states = tuple((str(path.absolute()), *state[2:]) for path, state in contents.origin.states.items())
    return Source(reopen, states, {id(tensors[name].read): name for name in same})
