"""Windows of a divergence as tasks for workers, each of which opens the base and all files once.

A task holds the token ids of windows that a model runs together, and their numbers. The result is a few numbers for
each prediction.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from pickle import dumps, loads
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quants.arguments import PathLike
from runtime.arrays import Doubles

from ..io.locks import state_of
from ..models.model import Model, opened
from ..writing.remote_tasks import check_states, tensors_of
from .corpus import stored_base
from .perplexity import tokens_at_once
from .workers import Runnable, description, in_turn, opened_once, runnable

if TYPE_CHECKING:
    from runtime.evaluation.divergence import Base, RunningLogits
    from runtime.evaluation.windows import Window
    from runtime.model import RunningModel
    from runtime.products.precision import Precision

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class _Kept:
    """A stored base as workers open it.

    state: path, bytes and time of change (ns). base_model, others: how to read tensors that may include its output
    matrix.
    """

    state: tuple[str, int, int]
    base_model: bytes | None
    others: tuple[bytes, ...]
    chunks: int | None
    threads: int

    def open(self) -> "Base":
        """Open the base. Raises FileError if the worker sees another file, and as `open_base` does."""
        check_states([self.state])
        matrix = None if self.base_model is None else Model({}, tensors_of(self.base_model))
        others = [Model({}, tensors_of(each)) for each in self.others]
        return stored_base(Path(self.state[0]), matrix, others, self.chunks, self.threads)  # type: ignore[return-value]


class _Running(NamedTuple):
    """A model that is measured. at_once: tokens of windows that run together."""

    model: Runnable
    at_once: int


@dataclass(frozen=True)
class WorkerSpec:
    """What all tasks share: the base, and the files compared with it by name."""

    base: _Running | _Kept
    files: Mapping[str, _Running]

    @property
    def at_once(self) -> set[int]:
        every = (self.base, *self.files.values())
        return {each.at_once for each in every if isinstance(each, _Running)}


class _Task(NamedTuple):
    """Windows, the first of which has this number. windows: inputs, scored, targets. spec: a pickled WorkerSpec."""

    spec: bytes
    number: int
    windows: tuple[tuple[Ints, Ints, Ints], ...]


def worker_spec(
    base: Path | Model,
    base_model: PathLike | Model | None,
    files: Mapping[str, Model],
    chunks: int | None,
    threads: int | None,
    precision: "Precision",
) -> WorkerSpec:
    """Return what workers need. base: a model, or the path of a stored base, with base_model.

    Raises OptionError as `runnable` does.
    """

    def running(model: Model) -> _Running:
        return _Running(runnable(model, threads, precision), tokens_at_once(model))

    spec = {name: running(file) for name, file in files.items()}
    if isinstance(base, Model):
        return WorkerSpec(running(base), spec)
    path = base.absolute()
    matrix = None if base_model is None else description(opened(base_model))
    others = tuple(each.model.source for each in spec.values())
    return WorkerSpec(_Kept((str(path), *state_of(path)[2:]), matrix, others, chunks, threads or 1), spec)


def figures_elsewhere(
    executor: Executor, spec: WorkerSpec, windows: Sequence["Window"], numbers: Sequence[int]
) -> Generator[Doubles, None, None]:
    """Yield `window_figures` of the windows of these numbers, in order, computed by workers."""
    for _, figures in in_turn(executor, _figures_of, _tasks(spec, windows, numbers)):
        yield from figures


def _tasks(spec: WorkerSpec, windows: Sequence["Window"], numbers: Sequence[int]) -> Iterator[_Task]:
    """Yield tasks of the windows that one process would run together, too."""
    from runtime.evaluation.windows import grouped_alike

    packed = dumps(spec)
    gaps = np.flatnonzero(np.diff(numbers) != 1) + 1
    for run in np.split(np.asarray(numbers, np.int64), gaps):
        following = [windows[number] for number in run]
        number = int(run[0]) if len(run) else 0
        for part in grouped_alike(following, spec.at_once):
            yield _Task(packed, number, tuple(map(_packed, part)))
            number += len(part)


def _packed(window: "Window") -> tuple[Ints, Ints, Ints]:
    return window.inputs.astype(np.int32), window.scored.astype(np.int32), window.targets.astype(np.int32)


def _figures_of(task: _Task) -> list[Doubles]:
    """Compute a task in a worker."""
    from runtime.evaluation.divergence import RunningLogits, window_figures
    from runtime.evaluation.windows import Window
    from runtime.head import output_of

    opened_spec, wide = _opened(task.spec), np.int64
    windows = [Window(ids.astype(wide), scored.astype(wide), right.astype(wide)) for ids, scored, right in task.windows]

    def running(net: "RunningModel", at_once: int) -> "RunningLogits":
        return RunningLogits(net.lazy_logits, windows, at_once, output_of(net.network), task.number)

    models = {name: running(*model) for name, model in opened_spec.models.items()}
    base = running(*opened_spec.base) if isinstance(opened_spec.base, tuple) else opened_spec.base
    return [
        window_figures(task.number + i, window, base, models, threads=opened_spec.threads)
        for i, window in enumerate(windows)
    ]


@dataclass(frozen=True)
class _Opened:
    """The models that a worker opened, each with the tokens of windows that run together."""

    base: "Base | tuple[RunningModel, int]"
    models: dict[str, "tuple[RunningModel, int]"]
    threads: int


@opened_once
def _opened(packed: bytes) -> _Opened:
    spec: WorkerSpec = loads(packed)
    models = {name: (each.model.open(), each.at_once) for name, each in spec.files.items()}
    if isinstance(spec.base, _Running):
        threads = spec.base.model.threads
        return _Opened((spec.base.model.open(), spec.base.at_once), models, threads)
    return _Opened(spec.base.open(), models, spec.base.threads)
