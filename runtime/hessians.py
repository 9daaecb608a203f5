"""The input statistics of products: for each weight the mean of x x^T over its inputs x.

That matrix (half the Hessian of the squared error of the product) gives the cost of a change of the weight. Values are
different: attention mixes them over tokens, and a single token that all others attend to (an attention sink) may
dominate the mix. An error there reaches every token alike. So for the weight of the values, x is replaced by its
attention mix, the sum of a x over the tokens that a query attends to.
"""

from dataclasses import dataclass, field

import numpy as np

from .arrays import Floats
from .kernels.threads import parallel, spans
from .products.block_diagonal import BlockDiagonal, column_blocks

TILE = 128  # columns that one thread sums; independent of the number of threads, so that sums are the same


@dataclass
class Products:
    """The sum of x x^T over `count` inputs: of blocks of columns, float32 (columns, columns) each, of which the upper
    triangle is kept up to date.

    drifts: the sum of (y - x) x^T, float32 likewise, where y is x in a reference model, over `compared` of them.
    """

    uppers: tuple[Floats, ...]
    count: int = 0
    drifts: tuple[Floats, ...] = ()
    compared: int = 0

    @classmethod
    def of(cls, width: int, columns: int) -> "Products":
        """Return an empty sum; blocks have at most `columns` columns."""
        blocks = column_blocks(width, columns)
        return cls(tuple(np.zeros((here.stop - here.start,) * 2, np.float32) for here in blocks))

    @property
    def width(self) -> int:
        return sum(map(len, self.uppers))

    def add(self, x: Floats, threads: int) -> None:
        """Add inputs x (n, width)."""
        x, begin = np.ascontiguousarray(x, np.float32), 0
        for upper in self.uppers:
            mine = x[:, begin : begin + len(upper)]

            def add(start: int, stop: int, upper: Floats = upper, mine: Floats = mine) -> None:
                upper[start:stop, start:] += mine[:, start:stop].T @ mine[:, start:]

            parallel(add, spans(len(upper), TILE), threads)
            begin += len(upper)
        self.count += len(x)

    def compare(self, x: Floats, y: Floats, threads: int) -> None:
        """Add the differences of inputs x (n, width) from the reference inputs y."""
        x = np.ascontiguousarray(x, np.float32)
        self.drifts, begin, away = self.drifts or tuple(map(np.zeros_like, self.uppers)), 0, y - x
        for drift in self.drifts:
            here = slice(begin, begin + len(drift))

            def add(start: int, stop: int, drift: Floats = drift, here: slice = here) -> None:
                drift[start:stop] += away[:, here][:, start:stop].T @ x[:, here]

            parallel(add, spans(len(drift), TILE), threads)
            begin = here.stop
        self.compared += len(x)

    def drift(self) -> BlockDiagonal | None:
        """Return the mean of (y - x) x^T; None unless all inputs were compared."""
        if not self.drifts or self.compared != self.count:
            return None
        return BlockDiagonal(tuple(drift / np.float32(self.count) for drift in self.drifts))

    def matrix(self) -> BlockDiagonal:
        """Return the mean."""
        blocks = []
        for upper in self.uppers:
            whole = np.triu(upper)
            whole += np.triu(upper, 1).T  # exact: one of both is 0
            blocks.append(whole / np.float64(max(1, self.count)))
        return BlockDiagonal(tuple(blocks))


@dataclass
class Inputs:
    """The inputs of products in a reference run, in their order, without those of experts, which get other tokens
    there. By name of the weight and first row of the value rows, -1 for all of it.
    """

    of: dict[tuple[str, int], list[Floats]] = field(default_factory=dict)
    _last: tuple[Floats, Floats] | None = None

    def observe(self, name: str, x: Floats, expert: int = 0, experts: int = 1) -> None:
        """Keep the inputs x (n, width) of the weight `name`."""
        if experts > 1:
            return
        if self._last is None or self._last[0] is not x:
            self._last = x, np.array(x, np.float32)
        self.of.setdefault((name, -1), []).append(self._last[1])

    def observe_values(self, name: str, first_row: int, mixed: Floats) -> None:
        """Keep inputs (n, width) as mixed by attention."""
        self.of.setdefault((name, first_row), []).append(mixed.copy())

    def following(self, name: str, first_row: int, like: Floats) -> Floats | None:
        """Return the reference input that corresponds to `like`; None if its shape differs."""
        kept = self.of.get((name, first_row))
        values = kept.pop(0) if kept else None
        return values if values is not None and values.shape == like.shape else None


@dataclass
class Hessians:
    """Collector of input statistics while layers run; `observe` and `observe_values` are hooks of a pass.

    of: by name of the weight and expert. values: by name of the weight and first value row, which replace those in `of`
    for these rows. Weights with the same input share its statistics. columns: maximum block size. aims: inputs of the
    same tokens in a reference model.
    """

    threads: int = 1
    columns: int = 1 << 30
    aims: Inputs | None = None
    of: dict[tuple[str, int], Products] = field(default_factory=dict)
    experts: dict[str, int] = field(default_factory=dict)
    values: dict[tuple[str, int], Products] = field(default_factory=dict)
    _last: tuple[Floats, Products] | None = None

    def observe(self, name: str, x: Floats, expert: int = 0, experts: int = 1) -> None:
        """Add the inputs x (n, width) of the weight `name`, or of one of its experts."""
        self.experts[name] = experts
        mine = self.of.get((name, expert))
        if self._last is not None and self.are_same(self._last[0], x):
            shared = self._last[1]
            if self.of.setdefault((name, expert), shared) is shared:
                return
        if mine is None:
            mine = self.of[name, expert] = self.products(x.shape[1])
        self._add(mine, x, name, -1)
        self._last = x, mine

    def products(self, width: int) -> Products:
        """Return an empty sum for inputs of this width."""
        return Products.of(width, self.columns)

    def reference(self) -> "Inputs":
        """Return a collector of the inputs in a reference model."""
        return Inputs()

    def are_same(self, x: Floats, y: Floats) -> bool:
        """Return whether two weights have the same input."""
        return x is y

    def observe_values(self, name: str, first_row: int, mixed: Floats) -> None:
        """Add inputs (n, width) as mixed by attention, of the rows of `name` from first_row on."""
        key = name, first_row
        if key not in self.values:
            self.values[key] = self.products(mixed.shape[1])
        self._add(self.values[key], mixed, name, first_row)

    def _add(self, products: Products, x: Floats, name: str, first_row: int) -> None:
        products.add(x, self.threads)
        y = self.aims.following(name, first_row, x) if self.aims is not None else None
        if y is not None:
            products.compare(x, y, self.threads)

    def pieces(self, name: str, rows: int) -> list[tuple[int, int, Products]]:
        """Return (first row, end row, input statistics) for all of a weight's rows; empty for one without inputs."""
        experts = self.experts.get(name, 0)
        share = rows // max(1, experts)
        parts = [
            (expert * share, (expert + 1) * share, self.of[name, expert])
            for expert in range(experts)
            if (name, expert) in self.of
        ]
        for (other, first), products in self.values.items():
            if other == name and experts == 1 and parts:
                parts = [(0, first, parts[0][2])] * (first > 0) + [(first, rows, products)]
        return parts
