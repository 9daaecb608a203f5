"""Images and sounds in a text: which embeddings stand where."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from quants.errors import OptionError

from ..arrays import Floats
from ..images import EmbeddedImage


class Embedded(NamedTuple):
    """An image, a tile of one, or a sound, as its encoder gives it; see `runtime.images.Picture` for the parts."""

    embeddings: Floats
    grid: tuple[int, int] | None = None
    whole: bool = False
    layout: str = "grid"


def places(tokens: ArrayLike, token: int, embedded: Sequence[Embedded]) -> list[EmbeddedImage]:
    """Where images or sounds stand, for `runtime.model.Model.forward`.

    tokens: ids (n,) with `token` where they are, as many as they have embeddings, in order; other tokens may stand
    between the rows of an image. Raises OptionError where numbers differ.
    """
    where = np.flatnonzero(np.asarray(tokens).reshape(-1) == token)
    given = sum(len(each.embeddings) for each in embedded)
    if len(where) != given:
        raise OptionError(f"{len(where)} tokens {token} stand for images or sounds that have {given} embeddings")
    found, place = [], 0
    for number, each in enumerate(embedded):
        own = where[place : place + len(each.embeddings)]
        place += len(own)
        cuts = np.flatnonzero(np.diff(own) != 1) + 1
        for run, embeddings in zip(np.split(own, cuts), np.split(each.embeddings, cuts), strict=True):
            grid = None if len(cuts) else each.grid
            found.append(EmbeddedImage(int(run[0]), embeddings, grid, each.whole, each.layout, number))
    return found
