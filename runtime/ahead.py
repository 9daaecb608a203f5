"""Batches of texts that are computed ahead, layer by layer, in groups whose values fit in the host's memory."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .arrays import Floats, Ids
from .layer import ForwardContext

HOST_MEMORY = 4 << 30
Key = tuple[bytes, int, bool]
Result = tuple[ForwardContext, Floats]


class Checkpoint(Protocol):
    """A file that keeps an unfinished pass: see `runtime.device.checkpoint`."""

    def begin(self, texts: Sequence[Ids], later: Sequence[Sequence[Ids]]) -> None:
        """Say which texts are next, and which come in later passes."""
        ...

    def remove(self) -> None:
        """Remove the file: its pass is done and used."""
        ...


@dataclass(frozen=True)
class AheadOptions:
    """How batches are computed ahead.

    progress: called after each layer with (layers done, of how many, of all groups). checkpoint: keeps the group that
    is being computed. host_memory: bytes for values that wait between two layers; they decide how many batches are a
    group.
    """

    progress: Callable[[int, int], None] | None = None
    checkpoint: Checkpoint | None = None
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


Compute = Callable[[Sequence[AheadBatch], Callable[[int, int], None] | None], Iterator[Result]]


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
        group, checkpoint = self._groups.popleft(), self._options.checkpoint
        if checkpoint is not None:
            if self._done:
                checkpoint.remove()
            checkpoint.begin([each.ids for each in group], [[each.ids for each in later] for later in self._groups])
        for batch, result in zip(group, self._compute(group, self._progress()), strict=True):
            self._results.setdefault(batch.key, deque()).append(result)
        self._done += 1

    def _progress(self) -> Callable[[int, int], None] | None:
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

    def __exit__(self, error_type: type[BaseException] | None, *details: Any) -> None:
        if error_type is None and self._options.checkpoint is not None and not self._groups and self._done:
            self._options.checkpoint.remove()
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
