"""Base runs in files of our own format: a divergence is measured from them without running the model again.

A base is a GGUF file of general.type "logits-base". It has the windows' tokens, their scored positions, and for each of
these the model's final state (`runtime.evaluation.stored_states`), 24 to 42 times smaller than the logits. Logits are
computed from the model's output matrix, which is identified by its digest: it is in the model that the base was made
from, in any other file with the same matrix, or in the base itself. A top-k base needs no matrix.

    windows    I32 (windows, 4): number of the text, where in its tokens it begins, tokens, scored positions
    tokens     I32: what the model is given, of all windows, one after the other
    positions  I32: the scored positions in their windows, one after the other
    states     F32 (scored, width), or else
    top.ids    I32 (scored, k), top.log_p F32 (scored, k), top.figures F32 (scored, 3)
    output.bias, output.weight: where the output has a bias; where the matrix was asked for
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archs.metadata import Metadata
from quants import Tensor
from quants.errors import OptionError
from runtime.arrays import Ids
from runtime.evaluation.divergence import Rows
from runtime.evaluation.stored_states import StoredStates, StoredTops
from runtime.evaluation.windows import Window
from runtime.head import Output
from runtime.products.precision import Precision

from ...io.gguf.writer import encode_header

GENERAL_TYPE, VERSION = "logits-base", 1
PREFIX = "logits_base."
HASHED_AT_ONCE = 1 << 24  # bytes
INPUTS = ("tokenizer.ggml.model", "tokenizer.ggml.tokens")  # keys that must be equal for tokenizers to be equal


@dataclass(frozen=True)
class Run:
    """The run that a base stores, without its rows.

    texts: windows in the order of their rows, by name of the text. model: the path as given. vocabulary: see
    `vocabulary_digest`.
    """

    texts: Mapping[str, Sequence[Window]]
    n_ctx: int
    model: str
    vocabulary: str
    precision: Precision
    output: Output

    @property
    def windows(self) -> list[Window]:
        """Return the windows of all texts."""
        return [window for windows in self.texts.values() for window in windows]


@dataclass(frozen=True)
class SavedBase:
    """A base that was read; it serves as a base of `runtime.evaluation.divergence` with the rows of `source`.

    texts: windows by name of the text. vocabulary_digest, text_digest: see the functions of these names. picked: the
    numbers of these windows in `source`.
    """

    path: Path
    texts: dict[str, list[Window]]
    n_ctx: int
    model: str
    precision: Precision
    vocabulary_digest: str
    text_digest: str
    source: StoredStates | StoredTops = field(repr=False)
    picked: tuple[int, ...] = field(repr=False)

    @property
    def windows(self) -> list[Window]:
        """Return the windows of all texts."""
        return [window for windows in self.texts.values() for window in windows]

    @property
    def vocabulary(self) -> int:
        """Return the number of tokens."""
        return self.source.vocabulary

    @property
    def lower_bound(self) -> bool:
        return self.source.lower_bound

    def rows(self, window: int, start: int, stop: int, targets: Ids, threads: int) -> Rows:
        return self.source.rows(self.picked[window], start, stop, targets, threads)

    def first(self, chunks: int | None) -> "SavedBase":
        """Return the base on the first `chunks` windows of each text; None for all. Raises OptionError for less than
        one.
        """
        if chunks is None:
            return self
        if chunks < 1:
            raise OptionError(f"{chunks} chunks were asked for; at least 1 is needed")
        numbers, picked = iter(self.picked), list[int]()
        for windows in self.texts.values():
            picked += list(islice(numbers, len(windows)))[:chunks]
        texts = {name: windows[:chunks] for name, windows in self.texts.items()}
        return replace(self, texts=texts, picked=tuple(picked))

    def compare(self, base: Rows, other: Rows, threads: int) -> NDArray[np.float64]:
        return self.source.compare(base, other, threads)


def is_base(path: Path) -> bool:
    """Return whether a file is such a base, by its content."""
    try:
        with path.open("rb") as file:
            beginning = file.read(256)  # the type is the first key
    except OSError:
        return False
    return beginning[:4] == b"GGUF" and GENERAL_TYPE.encode() in beginning


def text_digest(windows: Iterable[Window]) -> str:
    """Return the SHA-256 of the windows' tokens and scored positions."""
    digest = hashlib.sha256()
    for window in windows:
        for each in (window.inputs, window.scored):
            digest.update(len(each).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(each, "<i8").tobytes())
    return digest.hexdigest()


def vocabulary_digest(metadata: Metadata) -> str:
    """Return the SHA-256 of the tokenizer's type and tokens, which must be equal for predictions to be comparable."""
    known = Metadata()
    for key in INPUTS:
        if key in metadata:
            known[key] = metadata.value(key)
    return hashlib.sha256(encode_header(known, [], [])).hexdigest()


def matrix_digest(tensor: Tensor) -> str:
    """Return the SHA-256 of a stored matrix: format, shape and bytes."""
    digest = hashlib.sha256(f"{tensor.format.name} {tensor.shape}".encode())
    step = max(1, HASHED_AT_ONCE // max(1, tensor.row_bytes))
    for start in range(0, tensor.rows, step):
        digest.update(np.ascontiguousarray(tensor.raw(start, min(start + step, tensor.rows))).data)
    return digest.hexdigest()
