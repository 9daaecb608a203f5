"""The time of a pass by category of operations."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Profile:
    """seconds: of each category, without categories timed inside it."""

    seconds: dict[str, float] = field(default_factory=dict)
    _within: list[float] = field(default_factory=list)  # time of nested categories, for each one being timed

    @contextmanager
    def timed(self, category: str) -> Iterator[None]:
        """Count the time of the block in this category."""
        self._within.append(0.0)
        start = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - start
            self.seconds[category] = self.seconds.get(category, 0.0) + took - self._within.pop()
            if self._within:
                self._within[-1] += took
