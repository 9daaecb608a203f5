"""The importance matrix: mean squared inputs of each weight, summed while a model reads a text.

A weight's columns matter as much as the values they are multiplied by, so the sums of squared inputs tell the quantizer
where its errors would hurt. The sums of the inputs themselves tell how far they are from being centred.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .arrays import Doubles, Floats, Ids
from .kernels.sums import add_columns
from .kernels.threads import share_out

# (name of the weight, inputs (n, width), expert of a stacked weight, how many experts it has)
Observe = Callable[[str, Floats, int, int], None]
# (name of the weight, first row of those that make values, inputs (n, width) as mixed by attention)
ObserveValues = Callable[[str, int, Floats], None]
# (layer, expert, its weighted output for the tokens routed to it: (tokens, width))
ObserveExperts = Callable[[int, int, Floats], None]
MIN_COLUMNS = 256  # worth a thread


@dataclass
class Sums:
    """The sums of one weight: squares and inputs (experts, width), float64; counts (experts,): rows of each expert."""

    squares: Doubles
    inputs: Doubles
    counts: Ids


def add_sums(total: dict[str, Sums], more: Mapping[str, Sums]) -> None:
    """Add the sums of other windows to a total.

    Sums of batches of windows that each began at zero, added in one order, are the same to the last bit whoever made
    them.
    """
    for name, sums in more.items():
        if name not in total:
            total[name] = Sums(sums.squares.copy(), sums.inputs.copy(), sums.counts.copy())
            continue
        mine = total[name]
        mine.squares += sums.squares
        mine.inputs += sums.inputs
        mine.counts += sums.counts


@dataclass
class Importance:
    """Collector of the importance matrix while a model runs; `observe` is the hook of its products.

    Rows are added in their order, so sums depend neither on threads nor on the batches. wanted: whether the inputs of
    the weight of this name are summed. threads: for the sums.
    """

    sums: dict[str, Sums] = field(default_factory=dict)
    wanted: Callable[[str], bool] = lambda name: True
    threads: int = 1

    def observe(self, name: str, x: Floats, expert: int = 0, experts: int = 1) -> None:
        """Add the inputs x (n, width) of the weight `name`, or of one of its experts."""
        if not self.wanted(name):
            return
        if name not in self.sums:
            shape = experts, x.shape[1]
            self.sums[name] = Sums(np.zeros(shape), np.zeros(shape), np.zeros(experts, np.int64))
        mine = self.sums[name]
        rows = np.ascontiguousarray(x, np.float32)
        squares, inputs = mine.squares[expert], mine.inputs[expert]

        def add(start: int, stop: int) -> None:
            add_columns(rows, start, stop, squares, inputs)

        share_out(add, rows.shape[1], MIN_COLUMNS, self.threads)
        mine.counts[expert] += len(rows)

    def weights(self, name: str) -> Floats:
        """Return mean squared inputs, float32 (experts, width); ones for an expert without inputs."""
        mine = self.sums[name]
        means = mine.squares / np.maximum(mine.counts, 1)[:, None]
        means[mine.counts == 0] = 1
        return means.astype(np.float32)
