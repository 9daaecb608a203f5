"""What the inputs of products are like: for each weight the mean of x x^T over its inputs x.

That matrix (half the Hessian of the squared error of what the product gives) says what a change of the weight costs.
Values are different: what attention makes of them is a mixture over tokens, and a single token that all others look at
(an attention sink) may be most of it. An error there reaches every token alike. So what counts for the weight of the
values is x as attention mixes it, sum of a x over the tokens that a query sees, instead of x itself.
"""

from dataclasses import dataclass, field

import numpy as np

from .arrays import Floats
from .block_diagonal import BlockDiagonal, column_blocks
from .kernels.threads import parallel, spans

TILE = 128  # columns that one thread sums; the same however many threads there are, as the sums then are


@dataclass
class Products:
    """The sum of x x^T over `count` inputs: of columns that stand together, float32 (columns, columns) each, of which
    the upper right is kept up.
    """

    uppers: tuple[Floats, ...]
    count: int = 0

    @classmethod
    def of(cls, width: int, columns: int) -> "Products":
        """None yet; up to so many columns stand together."""
        blocks = column_blocks(width, columns)
        return cls(tuple(np.zeros((here.stop - here.start,) * 2, np.float32) for here in blocks))

    @property
    def width(self) -> int:
        return sum(map(len, self.uppers))

    def add(self, x: Floats, threads: int) -> None:
        """Add inputs x (n, width)."""

        begin = 0
        for upper in self.uppers:
            mine = x[:, begin : begin + len(upper)]

            def add(start: int, stop: int, upper: Floats = upper, mine: Floats = mine) -> None:
                upper[start:stop, start:] += mine[:, start:stop].T @ mine[:, start:]

            parallel(add, spans(len(upper), TILE), threads)
            begin += len(upper)
        self.count += len(x)

    def matrix(self) -> BlockDiagonal:
        """The mean."""
        blocks = []
        for upper in self.uppers:
            whole = np.triu(upper)
            whole += np.triu(upper, 1).T  # exact: one of both is 0
            blocks.append(whole / np.float64(max(1, self.count)))
        return BlockDiagonal(tuple(blocks))


@dataclass
class Hessians:
    """Collects while layers run; `observe` and `observe_values` are handed to their passes.

    of: by name of the weight and expert. values: by name of the weight and first row of those that make values, which
    count instead of what `of` has for these rows. Weights of one input share what is collected of it. columns: that are
    seen together at most.
    """

    threads: int = 1
    columns: int = 1 << 30
    of: dict[tuple[str, int], Products] = field(default_factory=dict)
    experts: dict[str, int] = field(default_factory=dict)
    values: dict[tuple[str, int], Products] = field(default_factory=dict)
    _last: tuple[Floats, Products] | None = None

    def observe(self, name: str, x: Floats, expert: int = 0, experts: int = 1) -> None:
        """Add the inputs x (n, width) of the weight `name`, or of one of its experts."""
        self.experts[name] = experts
        mine = self.of.get((name, expert))
        if self._last is not None and self._last[0] is x:
            shared = self._last[1]
            if self.of.setdefault((name, expert), shared) is shared:
                return
        if mine is None:
            mine = self.of[name, expert] = Products.of(x.shape[1], self.columns)
        mine.add(np.ascontiguousarray(x, np.float32), self.threads)
        self._last = x, mine

    def observe_values(self, name: str, first_row: int, mixed: Floats) -> None:
        """Add inputs (n, width) as attention mixes them, of the rows of `name` from first_row on."""
        key = name, first_row
        if key not in self.values:
            self.values[key] = Products.of(mixed.shape[1], self.columns)
        self.values[key].add(mixed, self.threads)

    def pieces(self, name: str, rows: int) -> list[tuple[int, int, Products]]:
        """(first row, end row, what their inputs are like) for all of a weight's rows; empty for one never seen."""
        experts = self.experts.get(name, 0)
        share = rows // max(1, experts)
        found = [
            (expert * share, (expert + 1) * share, self.of[name, expert])
            for expert in range(experts) if (name, expert) in self.of
        ]  # fmt: skip
        for (other, first), products in self.values.items():
            if other == name and experts == 1 and found:
                found = [(0, first, found[0][2])] * (first > 0) + [(first, rows, products)]
        return found
