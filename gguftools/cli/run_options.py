"""Define the options of commands that write a model, and convert them to the library's options."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..writing.options import WriteOptions


@dataclass(frozen=True)
class RunOptions:
    """Options for writing a model: threads, memory, workers, or only a plan."""

    overwrite: bool = False
    resume: bool = False
    reserve: int | None = None
    manifest: bool = False
    threads: int | None = None
    memory: Any = "512M"
    workers: int | None = None
    scheduler: str | None = None
    plan: bool = False
    rate: Any = None
    prices: Path | None = None

    @contextmanager
    def running(self, title: str, **others: Any) -> "Iterator[WriteOptions]":
        """Yield the library's options, with a progress bar and workers while the block runs. others: more of them."""
        from ..writing.options import WriteOptions
        from .arguments import planned_terms
        from .ui import bytes_progress, shared_work

        cost_model = planned_terms(self.workers, self.rate, self.prices) if self.plan else None
        workers = None if self.plan else self.workers
        with shared_work(workers, self.scheduler) as executor, bytes_progress(title) as progress:
            yield WriteOptions(
                self.threads,
                self.memory,
                progress,
                executor,
                cost_model,
                resume=self.resume,
                overwrite=self.overwrite,
                reserve=self.reserve or 0,
                manifest=self.manifest,
                **others,
            )
