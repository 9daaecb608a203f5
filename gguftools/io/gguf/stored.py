"""Headers of GGUF files in stores: read by ranges that grow until the header is whole."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from quants.errors import FileError

from ..positioned import ReadBytes
from ..stores.path import StorePath

if TYPE_CHECKING:
    from ..stores.store import StoredObject

FIRST_READ = 1 << 20  # bytes: the header of most files without a vocabulary
GROWTH = 4
MAX_HEADER = 1 << 30  # bytes; vocabularies have a few ten million

T = TypeVar("T")


class MoreNeededError(Exception):
    """The header goes on behind what was read of it. least: bytes that are needed."""

    def __init__(self, least: int) -> None:
        self.least = least


@dataclass
class LateBytes:
    """How bytes are read: while the header is read one by one, later in blocks, whose borders are known then."""

    read: ReadBytes

    def __call__(self, begin: int, end: int) -> NDArray[np.uint8]:
        return self.read(begin, end)


def grown(path: StorePath, found: "StoredObject", parse: Callable[[NDArray[np.uint8]], T]) -> T:
    """What `parse` returns of an object's first bytes, of as many as it asks for by MoreNeededError.

    Raises FileError.
    """
    if not found.size:
        raise FileError(f"{path} is empty, not a GGUF file")
    buffer = found.fetch(0, min(FIRST_READ, found.size))
    while True:
        try:
            return parse(buffer)
        except MoreNeededError as needed:
            if needed.least > MAX_HEADER:
                raise FileError(f"{path} has a header of more than {MAX_HEADER >> 20} MB; no model needs it") from None
            wanted = min(max(needed.least, int(len(buffer) * GROWTH)), found.size, MAX_HEADER)
        buffer = np.concatenate([buffer, found.fetch(len(buffer), wanted)])
