"""Images and audio in a text: the places of their embeddings."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from quants.errors import OptionError

from ..arrays import Floats
from ..images import EmbeddedImage


class Embedded(NamedTuple):
    """An image, a tile of one, or audio, as its encoder returns it; see `runtime.images.EmbeddedImage` for the
    fields.
    """

    embeddings: Floats
    grid: tuple[int, int] | None = None
    whole: bool = False
    layout: str = "grid"


def places(tokens: ArrayLike, token: int, embedded: Sequence[Embedded]) -> list[EmbeddedImage]:
    """Return images or audio with their places, for `runtime.model.RunningModel.forward`.

    tokens: ids (n,) with `token` in their places, as many as they have embeddings, in order; other tokens may be
    between the rows of an image. Raises OptionError if numbers differ.
    """
    where = np.flatnonzero(np.asarray(tokens).reshape(-1) == token)
    given = sum(len(each.embeddings) for each in embedded)
    if len(where) != given:
        raise OptionError(f"{len(where)} tokens {token} stand for images or audio that have {given} embeddings")
    images, place = [], 0
    for number, each in enumerate(embedded):
        own = where[place : place + len(each.embeddings)]
        place += len(own)
        cuts = np.flatnonzero(np.diff(own) != 1) + 1
        for run, embeddings in zip(np.split(own, cuts), np.split(each.embeddings, cuts), strict=True):
            grid = None if len(cuts) else each.grid
            images.append(EmbeddedImage(int(run[0]), embeddings, grid, each.whole, each.layout, number))
    return images
