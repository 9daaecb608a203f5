"""The time of a pass by kind of work."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Profile:
    """seconds: of each kind of work, without nested kinds."""

    seconds: dict[str, float] = field(default_factory=dict)
    _within: list[float] = field(default_factory=list)  # time of nested kinds, for each kind being timed

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Count the time of the block as this kind."""
        self._within.append(0.0)
        start = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - start
            self.seconds[kind] = self.seconds.get(kind, 0.0) + took - self._within.pop()
            if self._within:
                self._within[-1] += took
