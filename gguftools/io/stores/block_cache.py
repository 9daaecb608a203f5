"""Cache blocks of files that are slow to reach: each is fetched once for all threads, and ahead of use.

Blocks follow the tensors. A large tensor has blocks of its own. So neighbours that are used much later, such as the
gates of experts between up and down projections, are not fetched with it. Small tensors share blocks.

None of fsspec's caches does this (as of 2026.9). Each belongs to one open file with one reader. Where four threads read
the same 16 MB, `BlockCache`, `BackgroundBlockCache` and `ReadAheadCache` fetch 64 MB or more, as none waits for a block
that is under way. They fetch one block ahead at most, in blocks of one size.
"""

import operator
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants.errors import GgufToolsError
from quants.threads import started_pool

BLOCK = 8 << 20  # bytes at most
OWN_BLOCKS = 1 << 20  # bytes from which a tensor has blocks of its own
KEPT = 32  # blocks
AHEAD = 4  # blocks of the same tensor that are fetched before they are needed
CONNECTIONS = 8

Bytes = NDArray[np.uint8]


class BlockCache:
    """Cache blocks of several files.

    fetch(file, begin, end): returns these bytes, read-only; called from several threads. After an error of it, all
    reads raise that error.
    """

    def __init__(self, fetch: Callable[[str, int, int], Bytes], kept: int = KEPT) -> None:
        self._fetch = fetch
        self._kept = kept
        self._pool = started_pool(CONNECTIONS)
        self._lock = threading.Lock()
        self._error: GgufToolsError | None = None
        self._blocks: OrderedDict[tuple[str, int, int], Future[Bytes]] = OrderedDict()

    def reader(self, file: str, starts: Sequence[int]) -> Callable[[int, int], Bytes]:
        """Return the function read(begin, end) of a file.

        starts: ascending offsets at which its tensors start; the last one is the end of the file.
        """
        edges, borders = cut(starts), frozenset(starts)

        def read(begin: int, end: int) -> Bytes:
            if begin >= end:
                return np.empty(0, np.uint8)
            pieces = [
                self._block(file, edges, borders, i)[max(begin - edges[i], 0) : end - edges[i]]
                for i in range(bisect_right(edges, begin) - 1, bisect_right(edges, end - 1))
            ]
            return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

        return read

    def _block(self, file: str, edges: Sequence[int], borders: frozenset[int], i: int) -> Bytes:
        """Return block i, after waiting for it if needed; request the next blocks of the same tensor."""
        with self._lock:
            block = self._request(file, edges[i], edges[i + 1])
            for j in range(i + 1, min(i + 1 + AHEAD, len(edges) - 1)):
                if edges[j] in borders:
                    break
                self._request(file, edges[j], edges[j + 1])
            while len(self._blocks) > self._kept:
                self._blocks.popitem(last=False)
        return block.result()

    def _request(self, file: str, begin: int, end: int) -> Future[Bytes]:
        key = file, begin, end
        if key not in self._blocks:
            self._blocks[key] = self._pool.submit(self._fetch_unless_lost, file, begin, end)
        self._blocks.move_to_end(key)
        return self._blocks[key]

    def _fetch_unless_lost(self, file: str, begin: int, end: int) -> Bytes:
        if self._error is not None:
            raise self._error
        try:
            return self._fetch(file, begin, end)
        except GgufToolsError as error:
            self._error = error  # retries are used up: queued fetches fail at once
            raise


class Edges(Sequence[int]):
    """Hold ascending offsets as ranges: a file may claim more bytes than memory could hold an offset per block for."""

    def __init__(self, first: int) -> None:
        self._ranges, self._numbers, self._count = [range(first, first + 1)], [0], 1

    def add(self, more: range) -> None:
        if more:
            self._ranges.append(more)
            self._numbers.append(self._count)
            self._count += len(more)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        place = place + self._count if place < 0 else place
        if not 0 <= place < self._count:
            raise IndexError(place)
        at = bisect_right(self._numbers, place) - 1
        return self._ranges[at][place - self._numbers[at]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]


def cut(starts: Sequence[int]) -> Edges:
    """Return where blocks begin, and the end.

    starts: ascending offsets at which tensors start; the last one is the end.
    """
    edges = Edges(starts[0])
    for begin, end in pairwise(starts):
        is_large = end - begin >= OWN_BLOCKS
        if begin > edges[-1] and (is_large or end - edges[-1] > BLOCK):
            edges.add(range(begin, begin + 1))
        if is_large:
            edges.add(range(begin + BLOCK, end, BLOCK))
            edges.add(range(end, end + 1))
    if edges[-1] < starts[-1]:
        edges.add(range(starts[-1], starts[-1] + 1))
    return edges
