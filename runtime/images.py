"""Images among the tokens of a text: their embeddings, attention and rotary positions.

Sources: transformers `models/{qwen2_5_vl,qwen3_vl,gemma3,hunyuan_vl}/modeling_*.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from quants.errors import ModelError, OptionError

from .arrays import Floats, Ids


@dataclass(frozen=True)
class EmbeddedImage:
    """Consecutive tokens that stand for an image, a part of one, or audio.

    start: the place of the first of them among the tokens of a text. embeddings: float32 (tokens, width); with features
    for the first layers' outputs ("deepstack"), (tokens, (1 + those layers) * width). grid: rows and columns of its
    tokens, which text models may rotate by; None for a sequence, as audio's. whole: all its tokens attend to each
    other. layout: "grid"; "framed" if one more token comes before and one after the grid, and positions count on as a
    text's; those of the grid are rotated by place, column, row and number, the one of the image; "together" if all but
    the first token and the last one share one position (CogVLM).
    """

    start: int
    embeddings: Floats
    grid: tuple[int, int] | None = None
    whole: bool = False
    layout: str = "grid"
    number: int = 0

    @property
    def stop(self) -> int:
        return self.start + len(self.embeddings)

    @property
    def positions(self) -> int:
        """Return how many positions it takes in a text model that rotates by rows and columns."""
        if self.layout == "together":
            return min(3, len(self.embeddings))
        return max(self.grid) if self.grid and self.layout == "grid" else len(self.embeddings)


def check_images(images: Sequence[EmbeddedImage], tokens: int, width: int, deepstack: int | None) -> None:
    """Raise OptionError for images outside of the text, or overlapping, ModelError for another model's.

    deepstack: layers that get more features; None for as many as an image has.
    """
    before = 0
    for image in sorted(images, key=lambda each: each.start):
        if image.start < before or image.stop > tokens:
            raise OptionError(
                f"an image stands at tokens {image.start} to {image.stop - 1}; {before} to {tokens - 1} are free"
            )
        given = image.embeddings.shape[1]
        wanted = width * (max(1, given // width) if deepstack is None else 1 + deepstack)
        if given != wanted:
            raise ModelError(
                f"the image's embeddings are {given} wide, those of the model {wanted}",
                hint="the encoder is another model's",
            )
        rows, columns = image.grid or (1, len(image.embeddings))
        if rows * columns + 2 * (image.layout == "framed") != len(image.embeddings):
            raise OptionError(f"an image of {len(image.embeddings)} tokens has no {rows} rows of {columns}")
        before = image.stop


def rotated_at(tokens: int, first: int, images: Sequence[EmbeddedImage]) -> tuple[Ids, int]:
    """Return time, row and column by which tokens are rotated, int64 (3, tokens); and the next token's position.

    Tokens of a text count on from `first`; those of an image are at rows and columns after the text before it. With
    framed images: place, column, row and number, (4, tokens).
    """
    if any(image.layout == "framed" for image in images):
        return _framed(tokens, first, images)
    at, place, position = np.empty((3, tokens), np.int64), 0, first
    for image in sorted(images, key=lambda each: each.start):
        count = image.start - place
        at[:, place : image.start] = position + np.arange(count)
        position += count
        order = np.arange(len(image.embeddings))
        parts = (0 * order, *np.divmod(order, image.grid[1])) if image.grid else (order, order, order)
        at[:, image.start : image.stop] = position + np.stack(parts)
        position, place = position + image.positions, image.stop
    at[:, place:] = position + np.arange(tokens - place)
    return at, position + tokens - place


def _framed(tokens: int, first: int, images: Sequence[EmbeddedImage]) -> tuple[Ids, int]:
    at = np.tile(first + np.arange(tokens), (4, 1))
    for image in images:
        if image.layout == "framed" and image.grid:
            row, column = np.divmod(np.arange(len(image.embeddings) - 2), image.grid[1])
            at[1:, image.start + 1 : image.stop - 1] = column, row, np.full_like(row, image.number)
    return at, first + tokens


def together_at(tokens: int, first: int, images: Sequence[EmbeddedImage]) -> tuple[Ids, int]:
    """Return the position of each token, int64 (tokens,), and that of the next one, for images at one position."""
    steps = np.ones(tokens, np.int64)
    for image in images:
        if image.layout == "together":
            steps[image.start + 2 : image.stop - 1] = 0
    return first - 1 + np.cumsum(steps), first + int(steps.sum())


def seen_whole(tokens: int, images: Sequence[EmbeddedImage]) -> Ids | None:
    """Return for each of these tokens how many keys after it belong to its image, int64 (tokens,); None if there are
    none.
    """
    if not any(image.whole for image in images):
        return None
    after = np.zeros(tokens, np.int64)
    for image in images:
        if image.whole:
            after[image.start : image.stop] = np.arange(len(image.embeddings))[::-1]
    return after


def parts_of(sections: Sequence[int], pairs: int, interleaved: bool, parts: int = 3) -> Ids:
    """Return which section of a position (time, row, column) rotates each of so many pairs, int64 (pairs,).

    sections: pairs of each section. interleaved: they alternate, and the rest at the end is the time's.
    """
    if interleaved:
        part = np.arange(pairs) % 3
        return np.where(np.arange(pairs) < 3 * np.asarray(sections)[part], part, 0)
    order = np.repeat(np.arange(len(sections)), sections)
    return np.minimum(np.resize(order, pairs), parts - 1)


def within(images: Sequence[EmbeddedImage], start: int, stop: int) -> list[EmbeddedImage]:
    """Return the images among the tokens from start to stop, with starts counted from there."""
    return [replace(each, start=each.start - start) for each in images if start <= each.start and each.stop <= stop]


def pieces(tokens: int, size: int, images: Sequence[EmbeddedImage]) -> list[tuple[int, int]]:
    """Return a text split into pieces of about `size` tokens, (start, stop), without splitting an image."""
    cuts, start = [], 0
    while start < tokens:
        stop = min(start + size, tokens)
        for image in images:
            if image.start < stop < image.stop:
                stop = image.start if image.start > start else image.stop
        cuts.append((start, stop))
        start = stop
    return cuts
