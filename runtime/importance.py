"""The importance matrix: how large the inputs of each weight are, summed while a model reads a text.

A weight's columns matter as much as the values they are multiplied with, so the sums of squared inputs tell the
quantizer where its errors would hurt.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .arrays import Doubles, Floats, Ids

# (name of the weight, inputs (n, width), expert of a stacked weight, how many experts it has)
Observe = Callable[[str, Floats, int, int], None]


@dataclass
class Sums:
    """Of one weight: squares (experts, width), float64; counts (experts,): rows of input each expert has seen."""

    squares: Doubles
    counts: Ids


@dataclass
class Importance:
    """Collects while a model runs; `observe` is handed to it as the hook of its products."""

    sums: dict[str, Sums] = field(default_factory=dict)

    def observe(self, name: str, x: Floats, expert: int = 0, experts: int = 1) -> None:
        """Add the inputs x (n, width) of the weight `name`, or of one of its experts."""
        if name not in self.sums:
            self.sums[name] = Sums(np.zeros((experts, x.shape[1])), np.zeros(experts, np.int64))
        mine = self.sums[name]
        mine.squares[expert] += np.einsum("ij,ij->j", x, x, dtype=np.float64)
        mine.counts[expert] += len(x)

    def weights(self, name: str) -> Floats:
        """Mean squared inputs, float32 (experts, width); ones for an expert that has seen nothing."""
        mine = self.sums[name]
        means = mine.squares / np.maximum(mine.counts, 1)[:, None]
        means[mine.counts == 0] = 1
        return means.astype(np.float32)
