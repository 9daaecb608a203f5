"""Base runs in llama.cpp's format: the text's tokens, and 16-bit log-probabilities of each scored prediction.

In the file: magic, int32 n_ctx, vocabulary, windows, tokens[windows * n_ctx]; then for each prediction a float32 scale,
a float32 minimum and one uint16 a token (an even number of them): log p = minimum + scale * value. Values more than 16
below the largest logit are all equal, and a step of the scale is up to 2.4e-4 nats.
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quants.errors import FileError, OptionError

from ..arrays import Doubles, Floats, Ids
from ..kernels.softmax import store_rows, stored_divergences
from ..kernels.threads import share_out
from .divergence import KL, LOG_P, Rows, row_figures
from .divergence import compare as compare_logits

MAGIC = b"_logits_"
HEADER = struct.Struct("<8siii")


@dataclass(frozen=True)
class StoredLayout:
    """The layout of such a file. windows: their number."""

    n_ctx: int
    vocabulary: int
    windows: int

    @property
    def predictions(self) -> int:
        """Return the number of predictions scored in each window."""
        return self.n_ctx - 1 - self.n_ctx // 2

    @property
    def row_bytes(self) -> int:
        return 2 * _words(self.vocabulary)

    @property
    def begin(self) -> int:
        """Return the offset of the first prediction."""
        return HEADER.size + 4 * self.n_ctx * self.windows

    @property
    def size(self) -> int:
        """Return the size of the file in bytes."""
        return self.offset(self.windows, 0)

    def offset(self, window: int, prediction: int) -> int:
        """Return the offset of a prediction of a window."""
        return self.begin + self.row_bytes * (self.predictions * window + prediction)

    def header(self, tokens: Ids) -> bytes:
        """Return the bytes before the predictions. tokens: of all windows, one after the other, as in the text."""
        if len(tokens) != self.n_ctx * self.windows:
            raise OptionError(f"{len(tokens)} tokens are no {self.windows} windows of {self.n_ctx}")
        head = HEADER.pack(MAGIC, self.n_ctx, self.vocabulary, self.windows)
        return head + np.asarray(tokens, "<i4").tobytes()


@dataclass(frozen=True)
class StoredLogits:
    """A base run written by llama.cpp, as a base of `runtime.evaluation.divergence`.

    tokens: int64 (windows * n_ctx,). words: uint16 (windows, predictions, 4 + values), as in the file.
    """

    tokens: Ids
    n_ctx: int
    vocabulary: int
    words: NDArray[np.uint16]
    lower_bound: bool = False

    @property
    def windows(self) -> int:
        return len(self.words)

    def logits(self, window: int, start: int, stop: int) -> Floats:
        """Return log-probabilities of predictions start … stop - 1 of a window: float32 (stop - start, vocabulary)."""
        words = self.words[window, start:stop]
        scale, minimum = np.ascontiguousarray(words[:, :4]).view("<f4").T
        values = words[:, 4 : 4 + self.vocabulary].astype(np.float32)
        values *= scale[:, None]
        values += minimum[:, None]
        return values

    def rows(self, window: int, start: int, stop: int, targets: Ids, threads: int) -> Rows:
        """Return the stored rows' figures; the targets' log-probabilities are the file's."""
        logits = self.logits(window, start, stop)
        figures = row_figures(logits, targets, threads)
        figures.values[:, LOG_P] = logits[np.arange(len(logits)), targets]
        return figures

    def compare(self, base: Rows, other: Rows, threads: int) -> Doubles:
        """Return `divergence.compare`, but with KL summed as in llama.cpp: over base log-probabilities above -16, taken
        as stored, though they do not add up to 1 to the last digit.
        """
        out = compare_logits(base, other, threads)
        kl, z = np.empty(len(out)), other.z.astype(np.float32)
        share_out(
            lambda start, stop: stored_divergences(base.logits, other.logits, z, kl, start, stop), len(out), 16, threads
        )
        out[:, KL] = kl
        return out


def stored_logits(raw: NDArray[np.uint8]) -> StoredLogits:
    """Read the bytes (or file map) of such a file. Raises FileError for another file or a wrong size."""
    if bytes(raw[:8]) != MAGIC or len(raw) < HEADER.size:
        raise FileError(f"not a file of stored logits: it starts with {bytes(raw[:8])!r}, not {MAGIC!r}")
    n_ctx, vocabulary, count = (int(value) for value in raw[8:20].view("<i4"))
    if n_ctx < 4 or min(vocabulary, count) < 1:
        raise FileError(f"stored logits of {count} windows of {n_ctx} tokens over a vocabulary of {vocabulary}")
    layout = StoredLayout(n_ctx, vocabulary, count)
    if len(raw) != layout.size:
        size = f"{count} windows of {n_ctx} tokens over a vocabulary of {vocabulary}"
        what = f"stored logits of {size} take {layout.size} bytes; found {len(raw)}"
        raise FileError(what, "it was not written to its end")
    tokens = raw[HEADER.size : layout.begin].view("<i4").astype(np.int64)
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        raise FileError(f"stored logits: a token of the text is outside the vocabulary of {vocabulary}")
    words = raw[layout.begin :].view("<u2").reshape(count, layout.predictions, _words(vocabulary))
    return StoredLogits(tokens, n_ctx, vocabulary, words)


def encode_rows(logits: Floats, threads: int = 1) -> bytes:
    """Return predictions in the file's format: float32 (n, vocabulary)."""
    words = np.empty((len(logits), _words(logits.shape[1])), np.uint16)
    share_out(lambda start, stop: store_rows(logits, words, start, stop), len(logits), 16, threads)
    return words.astype("<u2", copy=False).tobytes()


def _words(vocabulary: int) -> int:
    return 4 + 2 * ((vocabulary + 1) // 2)
