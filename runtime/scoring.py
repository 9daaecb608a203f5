"""Logits that need not exist: losses of target tokens straight from the input of the last product.

The logits of one window over a large vocabulary take hundreds of MB, of which perplexity wants one number a row. Here a
tile of the vocabulary is multiplied, folded into each row's sum of exponentials, and forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quants import Tensor

from .kernels.softmax import fold_tile
from .kernels.threads import run, shares, threads
from .matmul import decoded_tiles, matmul
from .rounding import as_multiplied

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
Finish = Callable[[Floats, int], Floats]

TILE = 1 << 19  # weights of a tile


@dataclass(frozen=True)
class Logits:
    """finish(x @ weight.T), computed as far as it is asked for.

    x: float32 (positions, width) or (windows, positions, width), the output of the model's last norm. finish: what the
    model does to its logits (a bias, a scale, a cap): called with float32 (rows, k) and the number of the first of
    these k columns, it may work in place and returns the result.
    """

    x: Floats
    weight: Tensor
    finish: Finish | None = None

    def float32(self) -> Floats:
        """All of them: float32, the last axis of x replaced by the vocabulary."""
        product = matmul(self.x.reshape(-1, self.x.shape[-1]), self.weight)
        finished = product if self.finish is None else self.finish(product, 0)
        return finished.reshape(*self.x.shape[:-1], -1)

    def losses(self, targets: Ids) -> NDArray[np.float64]:
        """-log(probability) of targets (…, k) at the first k positions of each window: float64 (…, k)."""
        rows = np.ascontiguousarray(self.x[..., : targets.shape[-1], :]).reshape(-1, self.x.shape[-1])
        rows = as_multiplied(rows, self.weight.format.name)
        wanted = np.ascontiguousarray(targets, np.int64).reshape(-1)
        # of each row: the largest logit so far, the sum of e^(logit - largest), the logit of its target
        state = np.array([[-np.inf, 0.0, 0.0]]).repeat(len(rows), axis=0)
        pieces = shares(len(rows), max(1, len(rows) // (2 * threads())))

        for first, tile in decoded_tiles(self.weight, 0, self.weight.rows, TILE):

            def fold(start: int, stop: int, first: int = first, tile: Floats = tile) -> None:
                logits = rows[start:stop] @ tile.T
                finished = logits if self.finish is None else self.finish(logits, first)
                fold_tile(finished, wanted[start:stop], first, state[start:stop])

            run(fold, pieces)
        losses: NDArray[np.float64] = state[:, 0] + np.log(state[:, 1]) - state[:, 2]
        return losses.reshape(targets.shape)
