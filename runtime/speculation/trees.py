"""What is drafted: tokens that may follow on a text, and on one another."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .acceptance import Candidate

TEXT = -1  # as a parent: the text itself


@dataclass(frozen=True)
class DraftTree:
    """candidates: tokens, each with what it was drawn from given its elder siblings. parents: of each the number of the
    token that it follows on, which comes before it; TEXT for the text.
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
        """Return whether each token follows on the one before it."""
        return all(parent == place - 1 for place, parent in enumerate(self.parents))

    @property
    def depths(self) -> list[int]:
        """Of each token how many drafted ones come before it."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == TEXT else depths[parent] + 1)
        return depths

    def children(self, parent: int) -> list[int]:
        """Return the numbers of the tokens that follow on one, or on TEXT."""
        return [place for place, each in enumerate(self.parents) if each == parent]


def chain(candidates: Iterable[Candidate]) -> DraftTree:
    """Return tokens that follow on one another."""
    found = tuple(candidates)
    return DraftTree(found, tuple(range(-1, len(found) - 1)))


def comb(places: Sequence[Sequence[Candidate]]) -> DraftTree:
    """Return several candidates for each place, the next place's following on the first of them."""
    candidates: list[Candidate] = []
    parents: list[int] = []
    parent = TEXT
    for place in places:
        first = len(candidates)
        candidates += place
        parents += [parent] * len(place)
        parent = first
    return DraftTree(tuple(candidates), tuple(parents))
