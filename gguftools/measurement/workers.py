"""Run models in workers: what they need to know of one, how each opens it once, and results in order.

A description has names and numbers only: how tensors are read, the keys that a run needs, the precision. Weights are
read where they are used. A worker runs one thread unless it is given more; start as many workers as there are
processors to use.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from quants.arguments import thread_count
from quants.errors import FileError, GgufToolsError, OptionError

from ..models.contents import process_source, streamed_tensors
from ..models.model import Model
from ..writing.executors import run_on_executor
from ..writing.remote_tasks import tensors_of

if TYPE_CHECKING:
    from runtime.model import RunningModel
    from runtime.products.precision import Precision

TEXTS = "tokenizer."  # keys of vocabularies: megabytes that a run on token ids does not need
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Runnable:
    """A model as a worker opens it. source: see `Source.description`. products: what it must compute them in."""

    source: bytes
    metadata: Mapping[str, Any]
    threads: int
    precision: "Precision"
    products: str

    def open(self) -> "RunningModel":
        """Open the model.

        Raises FileError if its files were changed, OptionError if this processor computes products differently from the
        calling process's, and as `runtime.model.RunningModel` does.
        """
        from runtime.model import RunningModel
        from runtime.products.precision import products

        if products(self.precision) != self.products:
            problem = f"a worker computes products in {products(self.precision)}, this process in {self.products}"
            raise OptionError(problem, "take workers of one kind of processor, or precision exact")
        tensors = tensors_of(self.source)
        return RunningModel(self.metadata, tensors, threads=self.threads, precision=self.precision)


def runnable(model: Model, threads: int | None, precision: "Precision") -> Runnable:
    """Return what workers need of a model. threads: of each of them, None for one.

    Raises OptionError for a model that only this process has: one made of arrays, or changed since it was opened.
    """
    from runtime.products.precision import products

    metadata = {key: data for key, data in model.metadata.items() if not key.startswith(TEXTS)}
    count = 1 if threads is None else thread_count(threads)
    return Runnable(description(model), metadata, count, precision, products(precision))


def description(model: Model) -> bytes:
    """Return how workers read a model's tensors. Raises OptionError as `runnable` does."""
    source = process_source(model, streamed_tensors(model)) if model.is_as_opened else None
    if source is None:
        problem = f"{model.path} is a model that only this process has, made or changed in it: no worker can open it"
        raise OptionError(problem, "save it and name that file, or leave the executor out")
    return source.description


def opened_once(opener: Callable[[bytes], R]) -> Callable[[bytes], R]:
    """Return a function that opens a pickled spec and keeps the last one, also for tasks in threads of a worker."""
    lock, cached = Lock(), lru_cache(maxsize=1)(opener)

    @wraps(opener)
    def opened(packed: bytes) -> R:
        with lock:
            return cached(packed)

    return opened


class _Refused(NamedTuple):
    """A worker's error, which is raised when it is its turn, as one process would raise it."""

    error: GgufToolsError


def in_turn(executor: Executor, function: Callable[[T], R], tasks: Iterable[T]) -> Generator[tuple[T, R], None, None]:
    """Yield results as `run_on_executor`, in order; an error is raised after the results of earlier tasks."""
    attempt: Callable[[T], R | _Refused] = partial(_attempted, function)
    for task, result in run_on_executor(executor, attempt, tasks, in_order=True):
        if isinstance(result, _Refused):
            if isinstance(result.error, FileError):  # of a worker's files: the run can be resumed with others
                raise result.error from OSError(str(result.error))
            raise result.error
        yield task, result


def _attempted(function: Callable[[T], R], task: T) -> R | _Refused:
    try:
        return function(task)
    except GgufToolsError as error:
        return _Refused(error)
