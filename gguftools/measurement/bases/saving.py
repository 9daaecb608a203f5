"""Save a base while it is measured, in either format, together with a progress record."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from quants.arguments import thread_count
from quants.errors import OptionError

from ...io.atomic import InputFiles, output_path
from ...models.model import Model
from ...writing.resume import remove_partial
from ..corpus import Corpus, tokens_in
from ..options import DivergenceOptions
from ..progress_record import ProgressRecord, check_apart

if TYPE_CHECKING:
    from runtime.evaluation.divergence import Base, Rows, Save
    from runtime.products.precision import Precision

    from ...io.locks import State

OWN_FORM = ".gguf"  # suffix of bases in our format


class Writer(Protocol):
    """A writer of a base's predictions, for either format."""

    @property
    def needs_rows(self) -> bool: ...
    @property
    def state(self) -> "State": ...
    def covered(self, window: int) -> bool: ...
    def add(self, window: int, start: int, stop: int, given: Any) -> None: ...


@dataclass(frozen=True)
class Both:
    """A progress record next to a base that is written: a window is done if both have it."""

    record: ProgressRecord
    writer: Writer

    def earlier(self, window: int) -> Any:
        return self.record.earlier(window) if self.writer.covered(window) else None

    def note(self, window: int, values: Any) -> None:
        self.record.note(window, values)


def adding(writer: Writer, base: Any) -> "Save":
    """Return a function that passes a base's predictions to the writer, in the form that it takes."""

    def save(window: int, start: int, stop: int, rows: "Rows") -> None:
        writer.add(window, start, stop, rows if writer.needs_rows else base.states(window, start, stop))

    return save


@dataclass(frozen=True)
class Saving:
    """Where and how a base is saved: in our format if the name ends in OWN_FORM, else in llama.cpp's."""

    target: Path
    top_k: int | None = None
    with_output: bool = False
    overwrite: bool = False

    @property
    def own_form(self) -> bool:
        return self.target.suffix == OWN_FORM


def saving_to(options: DivergenceOptions) -> Saving | None:
    """Return how a base is saved; None if it is not. Raises OptionError for options that exclude each other."""
    path, top_k, with_output = options.save_base, options.top_k, options.with_output
    target = None if path is None else Saving(output_path(path), top_k, with_output, options.overwrite)
    if (top_k is not None or with_output) and not (target and target.own_form):
        what = "top_k" if top_k is not None else "with_output"
        raise OptionError(f"{what} needs a base in gguftools' format", f"save to a name that ends in {OWN_FORM}")
    check_apart(options.record, path)
    return target


@dataclass(frozen=True)
class BaseRun:
    """The run whose base is saved. sources: input files that must be unchanged for the run to be resumed."""

    base: "Base"
    model: Model
    corpus: Corpus
    precision: "Precision"
    sources: Sequence[Path]
    threads: int | None


@contextmanager
def base_writer(
    saving: Saving, kept: ProgressRecord | None, run: BaseRun, reads: InputFiles
) -> Iterator[Writer | None]:
    """Open the writer of a base, which appears when the block ends; None if an earlier run completed it."""
    from runtime.evaluation.divergence import RunningLogits
    from runtime.evaluation.stored_logits import StoredLayout

    from .base import Run, vocabulary_digest
    from .llama_cpp import LlamaCppRun, saved_llama_cpp_base
    from .writing import saved_base

    if kept is not None and kept.is_output(saving.target):
        remove_partial(saving.target)
        yield None
        return
    model, corpus, base = run.model, run.corpus, run.base
    reads = replace(reads, parameter="save_base")
    how: Any = {"resume": kept is not None, "overwrite": saving.overwrite, "reads": reads}
    if saving.own_form and isinstance(base, RunningLogits):
        path = str(model.path.absolute()) if model.files else str(model.path)
        own = Run(corpus.by_text(), corpus.n_ctx, path, vocabulary_digest(model.metadata), run.precision, base.output)
        form: Any = {"top_k": saving.top_k, "with_output": saving.with_output, "sources": run.sources}
        with saved_base(saving.target, own, **form, **how) as writer:
            yield writer
        return
    if len(corpus.tokens) != corpus.n_ctx * len(corpus.windows):
        raise OptionError("llama.cpp's format of bases holds plain text, no conversations")
    layout = StoredLayout(corpus.n_ctx, len(tokens_in(model)), len(corpus.windows))
    tokens, threads = np.array(corpus.tokens, np.int64), thread_count(run.threads)
    rows = LlamaCppRun(tokens, layout, run.sources, run.precision, threads)
    with saved_llama_cpp_base(saving.target, rows, **how) as rows_writer:
        yield rows_writer
