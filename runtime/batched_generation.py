"""Several texts that go through a model together: a token of each per pass, so that weights are read once for all.

Each text has its own cache, sampler, limits and stop strings, and is the same as alone. Whoever reads a text finds it
as if it were written then; the others are written ahead of their readers.
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

PARALLEL = 4  # texts at a time, where nobody says how many


class Batch:
    """Texts that are written together, up to `parallel` of them; others join when one ends.

    coming: taken as there is room for them. Texts of models that do not run several together, and texts with drafts,
    are written alone.
    """

    def __init__(self, coming: Iterable[Generation], parallel: int = PARALLEL) -> None:
        """Raise OptionError for fewer texts at a time than one."""
        if parallel < 1:
            raise OptionError(f"parallel is {parallel}: 1 or more texts at a time are needed")
        self.lock = RLock()
        self._coming, self._parallel = iter(coming), parallel
        self._members: list[Generation] = []  # that are written now
        self._known: WeakSet[Generation] = WeakSet()  # that have been
        self._order: deque[Generation] = deque()  # taken, and not given to a reader
        self._waiting: deque[Generation] = deque()  # taken, for when there is room
        self._failure: Exception | None = None  # why no more could be taken

    def __iter__(self) -> Iterator[Generation]:
        """Yield the texts in their order. Raises what `coming` does, in its turn."""
        while self._order or self._take() is not None:
            yield self._order.popleft()
        if self._failure is not None:
            raise self._failure

    def add(self, generation: Generation) -> None:
        """Let a text be written with the others, if it can be."""
        if self._parallel > 1 and generation.model.runs_together and not generation.is_drafted:
            generation.together = self

    def advance(self, generation: Generation) -> None:
        """Let a text have a piece ahead, or logits, and the others a piece more."""
        if generation.is_ahead or generation.next_input is None:
            return
        self._join(generation)
        waiting = {each: given for each in self._members if (given := each.next_input) is not None}
        if len(waiting) < 2:
            return  # alone
        start, caches = time.perf_counter(), [cache for _, cache in waiting.values()]
        seen = [cache.length for cache in caches]
        try:
            found = generation.model.forward_together([[token] for token, _ in waiting.values()], caches)
        except BaseException:
            _recover([each for each in waiting if each is not generation], caches, seen)
            raise
        seconds = time.perf_counter() - start
        for each, logits in zip(waiting, found, strict=True):
            each.give(logits, seconds)
        for each in waiting:
            if each is not generation:
                each.write_ahead()

    def leave(self, generation: Generation) -> None:
        """Go on without a text until it is asked for again."""
        with self.lock:
            self._members = [each for each in self._members if each is not generation]

    def _join(self, generation: Generation) -> None:
        """Let texts that have ended go, and others join."""
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
        """Return the next text that comes."""
        if self._failure is not None:
            return None
        try:
            taken = next(self._coming, None)
        except Exception as error:  # raised when the texts before it have been read
            self._failure = error
            return None
        if taken is not None:
            self._order.append(taken)
            self.add(taken)
            if taken.together is self:
                self._waiting.append(taken)
        return taken


def _recover(texts: Sequence[Generation], caches: Sequence[KVCache], seen: Sequence[int]) -> None:
    """Let texts whose pass was broken off, as by Ctrl-C, go on, or say why they cannot."""
    for cache, length in zip(caches, seen, strict=True):
        if not cache.keeps_states:
            cache.truncate(length)
    for each in texts:
        if (given := each.next_input) and given[1].keeps_states:
            each.give(ModelError("the pass of this text was interrupted: its states are lost"), 0.0)


def written_together(generations: Iterable[Generation], parallel: int = PARALLEL) -> Iterator[Generation]:
    """Return the same texts in the same order, up to `parallel` of them written at a time.

    Raises what the iterable does, after the texts before; OptionError for fewer texts at a time than one.
    """
    return iter(Batch(generations, parallel))


def write_together(generations: Sequence[Generation], parallel: int = PARALLEL) -> None:
    """Let these texts, which may be read in any order, be written together. Raises OptionError as `Batch` does."""
    batch = Batch(generations, parallel)
    for each in generations if len(generations) > 1 else ():
        batch.add(each)
