"""Compact base runs: final states, from which the same logits are recomputed; or only the likeliest tokens.

The last norm's output has a number for each of its width, where logits have one for each token: 24 to 42 times as many.
Nothing is lost, since the product with the output matrix is that of the run itself.

If that matrix will not be available, the log-probabilities of the k likeliest tokens are stored, and the probability of
all others together. Merged distributions cannot be farther apart than whole ones (the data processing inequality), so
that the result is a lower bound of the divergence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quants import Tensor

from ..arrays import Doubles, Floats, Ids
from ..head import LazyLogits, Output
from ..kernels.softmax import merged_divergences
from ..kernels.threads import share_out
from ..layer import Device
from ..products.precision import Precision
from .divergence import ENTROPY, LOG_P, TOP, TOP_LOGIT, Rows, Z, compare, rows_of
from .windows import Window

OF_TARGET, OF_ENTROPY, OF_OTHERS = range(3)  # columns of Likeliest.figures


class _Places:
    """The places of each window's predictions among all."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self.windows = windows

    @cached_property
    def begins(self) -> Ids:
        return np.cumsum([0, *(len(window.scored) for window in self.windows)])

    def span(self, window: int, start: int, stop: int) -> tuple[int, int]:
        return int(self.begins[window]) + start, int(self.begins[window]) + stop


class StoredStates(_Places):
    """Final states as a base of `runtime.evaluation.divergence`, with all figures those of their model.

    states: float32 (predictions of all windows, width), as `LazyLogits.x`. output, precision: of the model. device: set
    to compute logits there.
    """

    lower_bound = False

    def __init__(
        self, windows: Sequence[Window], states: Tensor, output: Output, precision: Precision, threads: int = 1
    ) -> None:
        super().__init__(windows)
        self.stored, self.output, self.precision, self.threads = states, output, precision, threads
        self.device: Device | None = None

    @property
    def vocabulary(self) -> int:
        return self.output.weight.rows

    def states(self, window: int, start: int, stop: int) -> LazyLogits:
        """Return the final states of predictions start … stop - 1 of a window, and the output layer for them."""
        x = self.stored.float32(*self.span(window, start, stop))
        finish = self.output.finish(self.threads)
        logits = LazyLogits(x, self.output.weight, finish, self.threads, self.precision)
        return logits if self.device is None else self.device.logits(logits, self.output)

    def logits(self, window: int, start: int, stop: int) -> Floats:
        return self.states(window, start, stop).float32()

    def rows(self, window: int, start: int, stop: int, targets: Ids, threads: int) -> Rows:
        return rows_of(self.states(window, start, stop), targets, threads)

    def compare(self, base: Rows, other: Rows, threads: int) -> Doubles:
        return compare(base, other, threads)


class Likeliest(NamedTuple):
    """The likeliest tokens of rows: ids int32 (n, k), the first one first, and log_p float32 (n, k).

    figures: float32 (n, 3): log-probability of the right token, entropy in nats, log-probability of all other tokens
    together (-inf if there are none).
    """

    ids: NDArray[np.int32]
    log_p: Floats
    figures: Floats


def likeliest(rows: Rows, k: int) -> Likeliest:
    """Return the k likeliest tokens of each row, or as many as there are; of equal ones the first come first."""
    logits, count = rows.logits, len(rows.logits)
    k = min(k, logits.shape[1])
    ids = np.empty((count, k), np.int32)
    log_p, figures = np.empty((count, k), np.float32), np.empty((count, 3), np.float32)
    for i, row in enumerate(logits):
        edge = np.partition(row, len(row) - k)[len(row) - k]
        above = np.flatnonzero(row > edge)
        chosen = np.concatenate([above, np.flatnonzero(row == edge)[: k - len(above)]])
        chosen = chosen[np.lexsort((chosen, -row[chosen]))]
        ids[i], z = chosen, rows.values[i, Z]
        log_p[i] = row[chosen].astype(np.float64) - z
        rest = np.delete(row, chosen).astype(np.float64) - z
        with np.errstate(divide="ignore"):
            figures[i] = rows.values[i, LOG_P], rows.values[i, ENTROPY], np.log(np.exp(rest).sum())
    return Likeliest(ids, log_p, figures)


@dataclass(frozen=True)
class MergedRows(Rows):
    """Rows of which only the likeliest tokens are known. logits: (n, 0)."""

    likeliest: Likeliest


class StoredTops(_Places):
    """The likeliest tokens as a base: lower bounds of the divergence; log-probabilities of right tokens, entropies and
    first choices are exact.
    """

    lower_bound = True

    def __init__(self, windows: Sequence[Window], ids: Tensor, log_p: Tensor, figures: Tensor, vocabulary: int) -> None:
        """Read tensors as in `Likeliest`, of the predictions of all windows."""
        super().__init__(windows)
        self.ids, self.log_p, self.figures, self.vocabulary = ids, log_p, figures, vocabulary

    def rows(self, window: int, start: int, stop: int, targets: Ids, threads: int) -> Rows:
        begin, end = self.span(window, start, stop)
        known = Likeliest(
            self.ids.elements(begin, end),  # type: ignore[arg-type]  # int32, as it is stored
            self.log_p.float32(begin, end),
            self.figures.float32(begin, end),
        )
        values = np.zeros((end - begin, 5))
        values[:, ENTROPY], values[:, TOP] = known.figures[:, OF_ENTROPY], known.ids[:, 0]
        values[:, TOP_LOGIT], values[:, LOG_P] = known.log_p[:, 0], known.figures[:, OF_TARGET]
        return MergedRows(np.empty((end - begin, 0), np.float32), values, known)

    def compare(self, base: Rows, other: Rows, threads: int) -> Doubles:
        """Return KL of the merged distributions; NaN where there is no such bound, or a useless one."""
        assert isinstance(base, MergedRows)
        out, known, z = np.full((len(other.logits), 3), np.nan), base.likeliest, other.z

        def share(start: int, stop: int) -> None:
            merged_divergences(known.ids, known.log_p, known.figures[:, OF_OTHERS], other.logits, z, out, start, stop)

        share_out(share, len(out), 16, threads)
        return out
