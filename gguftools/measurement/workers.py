"""Models that workers run: what they are told of one, how each opens it once, and how results come back in order.

What is told are names and numbers: how tensors are read, the keys that a run needs, how exactly it computes. Weights
are read where they are used. A worker runs one thread unless it is asked for more; there are as many of them as there
are processors to use.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from quants.arguments import thread_count
from quants.errors import FileError, GgufToolsError, OptionError

from ..models.model import Model
from ..writing.executors import done_elsewhere
from ..writing.remote_tasks import tensors_of

if TYPE_CHECKING:
    from runtime.model import Model as RunningModel
    from runtime.products.precision import Precision

TEXTS = "tokenizer."  # keys of vocabularies: megabytes, which a run on token ids has no use for
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Runnable:
    """A model as a worker is told of it. source: as `Source.description`. products: what it must compute them in."""

    source: bytes
    metadata: Mapping[str, Any]
    threads: int
    precision: "Precision"
    products: str

    def open(self) -> "RunningModel":
        """Return the model, ready to run. Raises FileError where its files are not what they were, OptionError where
        this processor computes otherwise than that of the process that asks, and as `runtime.model.Model` does.
        """
        from runtime.model import Model as RunningModel
        from runtime.products.precision import products

        if products(self.precision) != self.products:
            problem = f"a worker computes products in {products(self.precision)}, this process in {self.products}"
            raise OptionError(problem, "take workers of one kind of processor, or precision exact")
        tensors = tensors_of(self.source)
        return RunningModel(self.metadata, tensors, threads=self.threads, precision=self.precision)


def runnable(model: Model, threads: int | None, precision: "Precision") -> Runnable:
    """What workers are told of a model. threads: of each of them, None for one.

    Raises OptionError for a model that only this process has: one made of arrays, or changed since it was opened.
    """
    from runtime.products.precision import products

    metadata = {key: data for key, data in model.metadata.items() if not key.startswith(TEXTS)}
    count = 1 if threads is None else thread_count(threads)
    return Runnable(description(model), metadata, count, precision, products(precision))


def description(model: Model) -> bytes:
    """Return how workers read a model's tensors. Raises OptionError as `runnable` does."""
    source = model.source(model.streamed()) if model.is_as_opened else None
    if source is None:
        problem = f"{model.path} is a model that only this process has, made or changed in it: no worker can open it"
        raise OptionError(problem, "save it and name that file, or leave the executor out")
    return source.description


class _Refused(NamedTuple):
    """What a worker found wrong, which is said when it is its turn, as one process would say it."""

    error: GgufToolsError


def in_turn(executor: Executor, function: Callable[[T], R], tasks: Iterable[T]) -> Generator[tuple[T, R], None, None]:
    """As `done_elsewhere` in order; but what is wrong with a task is raised after the results of those before it."""
    attempt: Callable[[T], R | _Refused] = partial(_attempted, function)
    for task, result in done_elsewhere(executor, attempt, tasks, in_order=True):
        if isinstance(result, _Refused):
            if isinstance(result.error, FileError):  # of a worker's files: with others, the run can go on
                raise result.error from OSError(str(result.error))
            raise result.error
        yield task, result


def _attempted(function: Callable[[T], R], task: T) -> R | _Refused:
    try:
        return function(task)
    except GgufToolsError as error:
        return _Refused(error)
