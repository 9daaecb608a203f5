"""Read headers of GGUF files in stores by ranges that grow until the header is complete."""

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
    """Ask for more bytes of the header. size: how many are needed from the start."""

    def __init__(self, size: int) -> None:
        self.size = size


@dataclass
class LateBytes:
    """Read bytes by a function that is replaced later: one by one for the header, then in blocks along the tensors."""

    read: ReadBytes

    def __call__(self, begin: int, end: int) -> NDArray[np.uint8]:
        return self.read(begin, end)


def parse_growing(path: StorePath, stored: "StoredObject", parse: Callable[[NDArray[np.uint8]], T]) -> T:
    """Return what `parse` makes of an object's first bytes; read more of them when it raises MoreNeededError.

    Raises FileError.
    """
    if not stored.size:
        raise FileError(f"{path} is empty, not a GGUF file")
    buffer = stored.fetch(0, min(FIRST_READ, stored.size))
    while True:
        try:
            return parse(buffer)
        except MoreNeededError as needed:
            if needed.size > MAX_HEADER:
                raise FileError(f"{path} has a header of more than {MAX_HEADER >> 20} MB; no model needs it") from None
            wanted = min(max(needed.size, int(len(buffer) * GROWTH)), stored.size, MAX_HEADER)
        buffer = np.concatenate([buffer, stored.fetch(len(buffer), wanted)])
