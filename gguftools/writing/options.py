"""Options of all functions that write files: one object, made by the caller and passed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quants.arguments import as_count
from quants.errors import OptionError

from ..io.atomic import NOTHING, InputFiles

if TYPE_CHECKING:
    from ..io.locks import State
    from .cost_model import CostModel
    from .remote_tasks import Source
    from .row_blocks import Progress

DEFAULT_MEMORY = 512 << 20


def changed(options: Any) -> dict[str, Any]:
    """Return the fields of an options object that differ from their defaults."""
    return {each.name: value for each in fields(options) if (value := getattr(options, each.name)) != each.default}


def shown(options: Any) -> str:
    """Return an options object as the call that makes it."""
    return f"{type(options).__name__}({', '.join(f'{name}={value!r}' for name, value in changed(options).items())})"


@dataclass(frozen=True)
class WriteOptions:
    """Options of writing outputs.

    threads: default all processors. memory: bytes that running tasks may hold together. progress(bytes done, of how
    many, tensor): called now and then, in this thread. executor: runs the tasks instead of threads of this process,
    such as a process pool or a Dask cluster. cost_model: report what the work would take by this model
    (`writing.cost_model.CostModel`), and write nothing. dry_run: report what would be written, write nothing.
    statistics: measure the errors of every tensor. resume: go on from what an interrupted run left. overwrite: replace
    existing outputs. reserve: bytes of slack in the header for later edits. manifest: also write OUTPUT.manifest.json,
    with digests of all that decided the bytes. reads: more files that must not be an output. source: set by the
    package, how workers read tensors. Raises OptionError for invalid numbers.
    """

    threads: int | None = None
    memory: int = DEFAULT_MEMORY
    progress: Progress | None = None
    executor: Executor | None = None
    cost_model: CostModel | None = None
    dry_run: bool = False
    statistics: bool = False
    resume: bool = False
    overwrite: bool = False
    reserve: int = 0
    manifest: bool = False
    reads: InputFiles = NOTHING
    source: Source | None = None

    def __post_init__(self) -> None:
        as_count(self.memory, "memory", 1)
        as_count(self.reserve, "reserve", 0)

    def __repr__(self) -> str:
        return shown(self)

    @property
    def writes_nothing(self) -> bool:
        """Return True if only a report of what would be done is requested."""
        return self.dry_run or self.cost_model is not None

    def reading(self, states: Mapping[Path, State]) -> WriteOptions:
        """Return the same options with more files that must not change before the outputs get their names."""
        return replace(self, reads=replace(self.reads, states={**self.reads.states, **states}))

    def check_used(self, function: Callable[..., object], *names: str) -> None:
        """Raise OptionError for an option that the function does not use. names: those that it uses."""
        for name in changed(self):
            if name not in names:
                problem = f"`{name}` has no effect for {function.__name__}"
                raise OptionError(problem, f"it takes {', '.join(f'`{each}`' for each in names)}")
