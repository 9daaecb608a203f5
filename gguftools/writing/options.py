"""How files are written, whatever they are: one object, made once by the caller and passed whole."""

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
    """The fields of an option object that are not what they are by default."""
    return {each.name: value for each in fields(options) if (value := getattr(options, each.name)) != each.default}


def shown(options: Any) -> str:
    """An option object as a call that makes it."""
    return f"{type(options).__name__}({', '.join(f'{name}={value!r}' for name, value in changed(options).items())})"


@dataclass(frozen=True)
class WriteOptions:
    """How outputs are written.

    threads: default all processors. memory: bytes that running tasks may hold together. progress(bytes done, of how
    many, tensor): called now and then, in this thread. executor: runs the tasks instead of threads of this process,
    such as a pool of processes or a Dask cluster. cost_model: say what the work would take by this model
    (`writing.cost_model.CostModel`), and write nothing. dry_run: say what would be written, write nothing. statistics:
    measure the errors of every tensor. resume: go on from what an interrupted run left. overwrite: replace outputs that
    exist. reserve: bytes of slack in the header for later edits. manifest: also write OUTPUT.manifest.json, what
    decided the bytes, with digests. reads: more files that must not be an output. source: set by the package, what
    workers read by. Raises OptionError for numbers that mean nothing.
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
        """Whether only what would be done is asked for."""
        return self.dry_run or self.cost_model is not None

    def reading(self, states: Mapping[Path, State]) -> WriteOptions:
        """Return the same options with more files that must not change before the outputs get their names."""
        return replace(self, reads=replace(self.reads, states={**self.reads.states, **states}))

    def check_used(self, function: Callable[..., object], *names: str) -> None:
        """Raise OptionError for an option that the function has no use for. names: those that it has."""
        for name in changed(self):
            if name not in names:
                problem = f"`{name}` means nothing for {function.__name__}"
                raise OptionError(problem, f"it takes {', '.join(f'`{each}`' for each in names)}")
