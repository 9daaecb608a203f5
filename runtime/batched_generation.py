"""Generate several texts together: one token of each per pass, so that weights are read once for all.

Each text has its own cache, sampler, limits and stop strings, and its result is the same as alone. A reader gets a
text's pieces on demand; the other texts are generated ahead of their readers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from threading import RLock
from weakref import WeakSet

from quants.errors import ModelError, OptionError

from .generation import Generation
from .kv_cache import KVCache

PARALLEL = 4  # default number of texts at a time


class Batch:
    """Texts generated together, up to `parallel` of them; others join when one ends.

    coming: iterated as there is room. Texts of models that do not run several together, and texts with draft models,
    are generated alone.
    """

    def __init__(self, coming: Iterable[Generation], parallel: int = PARALLEL) -> None:
        """Raise OptionError for fewer texts at a time than one."""
        if parallel < 1:
            raise OptionError(f"parallel is {parallel}: 1 or more texts at a time are needed")
        self.lock = RLock()
        self._coming, self._parallel = iter(coming), parallel
        self._members: list[Generation] = []  # being generated
        self._known: WeakSet[Generation] = WeakSet()  # already added
        self._order: deque[Generation] = deque()  # taken, and not yet given to a reader
        self._waiting: deque[Generation] = deque()  # taken, waiting for room
        self._failure: Exception | None = None  # why no more could be taken

    def __iter__(self) -> Iterator[Generation]:
        """Yield the texts in their order. Raises what `coming` does, in its turn."""
        while self._order or self._take() is not None:
            yield self._order.popleft()
        if self._failure is not None:
            raise self._failure

    def add(self, generation: Generation) -> None:
        """Let a text be generated with the others, if possible."""
        if self._parallel > 1 and generation.model.runs_together and not generation.is_drafted:
            generation.together = self

    def advance(self, generation: Generation) -> None:
        """Generate a piece of a text ahead, or its logits, and a piece of each other text."""
        if generation.is_ahead or generation.next_input is None:
            return
        self._join(generation)
        waiting = {each: given for each in self._members if (given := each.next_input) is not None}
        if len(waiting) < 2:
            return  # alone
        start, caches = time.perf_counter(), [cache for _, cache in waiting.values()]
        seen = [cache.length for cache in caches]
        try:
            results = generation.model.forward_together([[token] for token, _ in waiting.values()], caches)
        except BaseException:
            _recover([each for each in waiting if each is not generation], caches, seen)
            raise
        seconds = time.perf_counter() - start
        for each, logits in zip(waiting, results, strict=True):
            each.give(logits, seconds)
        for each in waiting:
            if each is not generation:
                each.write_ahead()

    def leave(self, generation: Generation) -> None:
        """Drop a text from the batch until it is read again."""
        with self.lock:
            self._members = [each for each in self._members if each is not generation]

    def _join(self, generation: Generation) -> None:
        """Remove texts that have ended, and let others join."""
        for each in self._members:
            if each.has_ended:
                each.release()
        self._members = [each for each in self._members if not each.has_ended]
        if generation not in self._members:
            self._members.append(generation)
            self._known.add(generation)
        while len(self._members) < self._parallel and (self._waiting or self._take() is not None) and self._waiting:
            joining = self._waiting.popleft()
            if joining not in self._known and not joining.has_ended:
                joining.write_ahead()  # reads its prompt
                self._members.append(joining)
                self._known.add(joining)

    def _take(self) -> Generation | None:
        """Return the next text of `coming`."""
        if self._failure is not None:
            return None
        try:
            taken = next(self._coming, None)
        except Exception as error:  # raised after the texts before it have been read
            self._failure = error
            return None
        if taken is not None:
            self._order.append(taken)
            self.add(taken)
            if taken.together is self:
                self._waiting.append(taken)
        return taken


def _recover(texts: Sequence[Generation], caches: Sequence[KVCache], seen: Sequence[int]) -> None:
    """Let texts whose pass was interrupted, as by Ctrl-C, continue, or record why they cannot."""
    for cache, length in zip(caches, seen, strict=True):
        if not cache.keeps_states:
            cache.truncate(length)
    for each in texts:
        if (given := each.next_input) and given[1].keeps_states:
            each.give(ModelError("the pass of this text was interrupted: its states are lost"), 0.0)


def written_together(generations: Iterable[Generation], parallel: int = PARALLEL) -> Iterator[Generation]:
    """Return the same texts in the same order, up to `parallel` of them generated at a time.

    Raises what the iterable does, after the texts before; OptionError for fewer texts at a time than one.
    """
    return iter(Batch(generations, parallel))


def write_together(generations: Sequence[Generation], parallel: int = PARALLEL) -> None:
    """Let these texts, which may be read in any order, be generated together. Raises OptionError as `Batch` does."""
    batch = Batch(generations, parallel)
    for each in generations if len(generations) > 1 else ():
        batch.add(each)
