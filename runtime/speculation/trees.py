"""Trees of drafted tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .acceptance import Candidate

TEXT = -1  # the text itself as a parent


@dataclass(frozen=True)
class DraftTree:
    """candidates: tokens, each with its distribution given its earlier siblings. parents: the number of each one's
    parent, which comes before it; TEXT for the text.
    """

    candidates: tuple[Candidate, ...] = ()
    parents: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.candidates)

    @property
    def tokens(self) -> list[int]:
        return [each.token for each in self.candidates]

    @property
    def is_chain(self) -> bool:
        """Return whether each token's parent is the one before it."""
        return all(parent == place - 1 for place, parent in enumerate(self.parents))

    @property
    def depths(self) -> list[int]:
        """Return each token's number of drafted ancestors."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == TEXT else depths[parent] + 1)
        return depths

    def children(self, parent: int) -> list[int]:
        """Return the numbers of the children of a token, or of TEXT."""
        return [place for place, each in enumerate(self.parents) if each == parent]


def chain(candidates: Iterable[Candidate]) -> DraftTree:
    """Return a chain of tokens."""
    tokens = tuple(candidates)
    return DraftTree(tokens, tuple(range(-1, len(tokens) - 1)))


def comb(places: Sequence[Sequence[Candidate]]) -> DraftTree:
    """Return several candidates for each place, the next place's being children of the first of them."""
    candidates: list[Candidate] = []
    parents: list[int] = []
    parent = TEXT
    for place in places:
        first = len(candidates)
        candidates += place
        parents += [parent] * len(place)
        parent = first
    return DraftTree(tuple(candidates), tuple(parents))
