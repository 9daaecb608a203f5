"""Batches of texts that are computed ahead, layer by layer, in groups whose values fit in the host's memory."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from .arrays import Floats, Ids
from .layer import ForwardContext

HOST_MEMORY = 4 << 30
Progress = Callable[[int, int], None]  # layers done, of how many
Key = tuple[bytes, int, bool]
Result = tuple[ForwardContext, Floats]


class Store(Protocol):
    """A file that keeps an unfinished pass. name: of the file, for messages."""

    @property
    def name(self) -> str: ...

    def load(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
        """Return what was saved last, JSON's types and arrays; None for nothing."""
        ...

    def save(self, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Save these in place of what was saved before."""
        ...


@dataclass(frozen=True)
class AheadOptions:
    """How batches are computed ahead.

    progress: called after each layer with (layers done, of how many, of all groups). store: keeps the group that is
    being computed, so that it goes on where it was killed; store_every: seconds between two writes. host_memory: bytes
    for values that wait between two layers; they decide how many batches are a group.
    """

    progress: Progress | None = None
    store: Store | None = None
    store_every: float = 60.0
    host_memory: int = HOST_MEMORY


@dataclass(frozen=True)
class AheadBatch:
    """Texts that are computed together. ids (texts, length). first: the first position needed. exact: of
    `RunningModel.lazy_logits`.
    """

    ids: Ids
    first: int
    exact: bool = False

    @property
    def key(self) -> Key:
        return self.ids.tobytes(), self.first, self.exact


Compute = Callable[[Sequence[AheadBatch], Progress | None], Iterator[Result]]


class Ahead:
    """Results of batches, each for the one who asks for it next; a group is computed when its first one is asked for.

    compute(batches, progress): yields their results. What nobody asked for is dropped when the next group is computed,
    and by `close`, which the end of a `with` block calls.
    """

    def __init__(self, groups: Sequence[Sequence[AheadBatch]], compute: Compute, options: AheadOptions) -> None:
        self._groups, self._compute, self._options = deque(groups), compute, options
        self._count, self._done = len(groups), 0
        self._results: dict[Key, deque[Result]] = {}

    def take(self, batch: AheadBatch) -> Result | None:
        """Return the result of a batch; None if it is not among those that are left."""
        key = batch.key
        while key not in self._results:
            if not any(each.key == key for group in self._groups for each in group):
                return None
            self._compute_group()
        results = self._results[key]
        result = results.popleft()
        if not results:
            del self._results[key]
        return result

    def _compute_group(self) -> None:
        self._results.clear()
        group = self._groups.popleft()
        for batch, result in zip(group, self._compute(group, self._progress()), strict=True):
            self._results.setdefault(batch.key, deque()).append(result)
        self._done += 1

    def _progress(self) -> Progress | None:
        report, done, count = self._options.progress, self._done, self._count
        if report is None:
            return None
        return lambda layers, of: report(done * of + layers, count * of)

    def close(self) -> None:
        """Drop results, and batches that were not asked for."""
        self._results.clear()
        self._groups.clear()

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


def groups_of(batches: Sequence[AheadBatch], bytes_of: Callable[[int], int], memory: int) -> list[list[AheadBatch]]:
    """Return batches in groups, in their order, whose values take at most `memory` bytes; at least one batch each.

    bytes_of: the bytes of so many tokens' values.
    """
    groups, tokens = list[list[AheadBatch]](), 0
    for batch in batches:
        tokens += batch.ids.size
        if not groups or bytes_of(tokens) > memory:
            groups.append([])
            tokens = batch.ids.size
        groups[-1].append(batch)
    return groups
