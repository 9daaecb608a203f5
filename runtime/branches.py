"""Texts with a common beginning in one pass, which computes the beginning once.

A trunk and its branches are consecutive in one row of tokens, many such trees in a row. Everything but attention
processes tokens one by one; attention gives each branch the keys of its trunk and its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .arrays import Floats, Ids

Rows = NDArray[np.intp]
# (queries, keys, values, positions of a text's queries, how many texts) → float32 (queries, heads * width)
Attend = Callable[[Floats, Floats, Floats, Ids, int], Floats]


@dataclass(frozen=True)
class Tree:
    """trunk: token ids; branches: the ids of each text after the trunk, none for a text that is not evaluated."""

    trunk: Sequence[int]
    branches: tuple[Sequence[int], ...]

    @property
    def tokens(self) -> int:
        return len(self.trunk) + sum(map(len, self.branches))

    def offset(self, branch: int, position: int) -> int:
        """Return the index within the tree's tokens of a branch's token at a position."""
        if position < len(self.trunk):
            return position
        return position + sum(map(len, self.branches[:branch]))


@dataclass(frozen=True)
class Branches:
    """Trees in one row of tokens."""

    trees: tuple[Tree, ...]

    @cached_property
    def starts(self) -> list[int]:
        """Return where each tree begins."""
        return [0, *np.cumsum([tree.tokens for tree in self.trees])[:-1].tolist()]

    @cached_property
    def tokens(self) -> Ids:
        parts = (part for tree in self.trees for part in (tree.trunk, *tree.branches))
        return np.concatenate([np.asarray(part, np.int64) for part in parts])

    @cached_property
    def positions(self) -> Ids:
        """Return the position of each token in its text."""
        return np.concatenate(
            [
                part
                for tree in self.trees
                for part in (
                    np.arange(len(tree.trunk)),
                    *(len(tree.trunk) + np.arange(len(branch)) for branch in tree.branches),
                )
            ]
        ).astype(np.int64)

    @cached_property
    def parts(self) -> list[tuple[slice, Rows, Rows]]:
        """Return for each tree: the trunk's rows; its branches' (branches, longest), padded with their last; which are
        not padding.
        """
        parts = []
        for start, tree in zip(self.starts, self.trees, strict=True):
            lengths = [len(branch) for branch in tree.branches if len(branch)]
            ends = start + len(tree.trunk) + np.cumsum(lengths)
            columns = np.arange(max(lengths, default=0))
            rows = [np.minimum(end - length + columns, end - 1) for end, length in zip(ends, lengths, strict=True)]
            own = np.array(rows, np.intp).reshape(len(lengths), len(columns))
            real = np.flatnonzero(columns < np.array(lengths, np.intp)[:, None])
            parts.append((slice(start, start + len(tree.trunk)), own, real))
        return parts

    def attend(self, attend: Attend, q: Floats, k: Floats, v: Floats) -> Floats:
        """Return attention within every text: float32 (tokens, heads * width)."""
        out = np.empty((len(q), q.shape[1] * v.shape[2]), np.float32)
        for trunk, rows, real in self.parts:
            count = trunk.stop - trunk.start
            if count:
                out[trunk] = attend(q[trunk], k[trunk], v[trunk], np.arange(count), 1)
            if rows.size:
                before = np.broadcast_to(np.arange(trunk.start, trunk.stop), (len(rows), count))
                seen = np.concatenate([before, rows], axis=1).reshape(-1)
                own = rows.reshape(-1)
                at = np.arange(count, count + rows.shape[1])
                out[own[real]] = attend(q[own], k[seen], v[seen], at, len(rows))[real]
        return out


@dataclass(frozen=True)
class TokenTree:
    """Tokens after a cached text, each of which attends to the text and its own ancestors (speculative trees).

    parents: the number of each token's parent, which comes before it; -1 for the text.
    """

    parents: tuple[int, ...]

    @cached_property
    def depths(self) -> Ids:
        """Return each token's number of ancestors."""
        depths = np.zeros(len(self.parents), np.int64)
        for place, parent in enumerate(self.parents):
            depths[place] = 0 if parent < 0 else depths[parent] + 1
        return depths

    @cached_property
    def _ancestors(self) -> NDArray[np.bool_]:
        """Return each token's ancestors, itself included: (tokens, tokens)."""
        sees = np.eye(len(self.parents), dtype=bool)
        for place, parent in enumerate(self.parents):
            if parent >= 0:
                sees[place] |= sees[parent]
        return sees

    def positions(self, seen: int) -> Ids:
        """Return the position of each token in its text, after `seen` cached ones."""
        return seen + self.depths

    def bias(self, seen: int, window: int | None, chunk: int | None) -> Floats:
        """Return the mask added to scores: float32 (tokens, seen + tokens), minus infinity where a key is hidden."""
        queries = self.positions(seen)[:, None]
        keys = np.concatenate([np.arange(seen), queries[:, 0]])
        sees = np.concatenate([np.ones((len(queries), seen), bool), self._ancestors], axis=1)
        if window is not None:
            sees &= queries - keys < window
        if chunk is not None:
            sees &= queries // chunk == keys // chunk
        hidden: Floats = np.where(sees, np.float32(0), np.float32(-np.inf))
        return hidden
