"""How far files' predictions on texts are from those of a base, usually the model they were quantized from."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quants.arguments import PathLike, as_path, thread_count
from quants.errors import OptionError

from ..files.atomic import NOTHING, Reads
from ..model import Model, opened
from ..writing.executors import leaves_process
from .base_saving import Both, Writer, adding, base_writer, saving_to
from .divergence_figures import file_divergence
from .divergence_report import DivergenceReport
from .divergence_tasks import figures_elsewhere, told_of
from .perplexity import Progress, tokens_at_once
from .reading import Reading, check_tokens, check_vocabulary, stored_base, texts_read
from .record import Record, recorded
from .texts import Texts, default_texts, texts_named

if TYPE_CHECKING:
    from runtime.arrays import Doubles
    from runtime.evaluation.divergence import Base, Predictions, StoredBase
    from runtime.products.precision import Precision

    from .bases import SavedBase


def divergence(
    base: PathLike | Model,
    *others: PathLike | Model,
    text: Texts | None = None,
    chat: bool = False,
    n_ctx: int | None = None,
    chunks: int | None = None,
    threads: int | None = None,
    round_activations: bool = False,
    precision: str = "float32",
    save_base: PathLike | None = None,
    top_k: int | None = None,
    with_output: bool = False,
    base_model: PathLike | Model | None = None,
    record: PathLike | None = None,
    keep_record: bool = False,
    overwrite: bool = False,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> DivergenceReport:
    """KL divergence of files' predictions from a base's, in nats, with all that llama-perplexity says of it and more.

    base: a model, or a base that llama-perplexity or save_base wrote, whose texts and windows are taken; base_model:
    what has the output matrix of a base of our own, where it is not found. others: what is compared with it; none where
    the base is only saved. text: one, several, or several by name, each of which gets its own figures, too; None for
    those that come with this package. chat: texts are conversations, JSONL, whose answers alone are scored.
    n_ctx: tokens of a window, 512 if not given; chunks: of how many windows of each text, None for all; as in
    `perplexity`. threads: None for all processors. precision, round_activations: as in `perplexity`. save_base: write
    the base's predictions there: as our own small base where the name ends in .gguf (see `bases`; top_k: its likeliest
    tokens alone; with_output: and the output matrix), else in llama.cpp's form; overwrite: replace a file that is
    there. record: note each window's figures in this file, and go on from it (with the base that is saved, too) where
    an earlier run was killed; it goes in the end, or with keep_record stays, for who has yet to write the report.
    executor: whose workers, other processes, run the windows instead, with so many threads each, one if not given; the
    figures are the same to the last bit.
    progress: called at first and after each window with (windows done, windows in all, mean divergence of the first
    file so far: NaN at first).
    Raises FileError, ModelError, VocabularyError, and OptionError for too short a text, for files whose vocabularies
    differ from the base's and for a stored base of another text or window.
    """
    from runtime.evaluation.divergence import RunningLogits
    from runtime.evaluation.divergence import divergence as measure
    from runtime.head import output_of
    from runtime.model import Model as RunningModel
    from runtime.products.precision import Precision, precision_named

    from .bases import SavedBase

    chosen: Precision = "llama.cpp" if round_activations else precision_named(precision)
    saving = saving_to(save_base, top_k, with_output, overwrite, record)
    files = [opened(each) for each in others]
    stored = None
    if not isinstance(base, Model):
        stored = stored_base(as_path(base, "the base"), base_model, files, chunks, threads)
    if not others and (stored is not None or save_base is None):
        raise OptionError("there is nothing to compare with the base", "name one file or more behind it")
    if saving is not None and stored is not None and (saving.own_form or isinstance(stored, SavedBase)):
        raise OptionError(f"{base} is a saved base already", "name the model that it is of to save another")
    away = executor if leaves_process(executor) else None
    if away is not None and saving is not None:
        raise OptionError("a base is saved by the process that runs it, not by workers", "leave the executor out")
    source = None if stored is not None else opened(base)
    model = files[0] if source is None else source
    reading = _reading(model, files, text, chat, n_ctx, chunks, stored)

    def running(file: Model) -> RunningLogits:
        net = RunningModel(file.metadata, file.tensors, threads=threads, precision=chosen)
        return RunningLogits(net.lazy_logits, reading.windows, tokens_at_once(file), output_of(net.network))

    names = _names(files)
    models = dict(zip(names, map(running, files), strict=True))
    from_: Base = running(source) if source is not None else stored  # type: ignore[assignment]
    read = [path for file in (model, *files) for path in file.files]
    read += [Path(str(base))] if stored is not None else []
    reads = NOTHING.also(read).also(text.file for text in reading.texts)
    with ExitStack() as stack:
        kept: Record | None = None
        writer: Writer | None = None
        if record is not None:
            kept = stack.enter_context(_record(record, reading, read, len(files), reads, chosen, keep_record))
        if saving is not None:
            written = base_writer(saving, kept, from_, model, reading, chosen, read, reads, threads)
            writer = stack.enter_context(written)
        measured: Iterator[Doubles] | None = None
        if away is not None:
            numbers = [n for n in range(len(reading.windows)) if kept is None or kept.earlier(n) is None]
            told = told_of(
                source or Path(str(base)), base_model, dict(zip(names, files, strict=True)), chunks, threads, chosen
            )
            measured = stack.enter_context(closing(figures_elsewhere(away, told, reading.windows, numbers)))
        if progress:
            progress(0, len(reading.windows), math.nan)
        found = measure(
            reading.windows,
            from_,
            models,
            progress=progress,
            threads=thread_count(threads),
            measured=measured,
            save=None if writer is None else adding(writer, from_),
            kept=kept if kept is None or writer is None else Both(kept, writer),
        )
        report = _report(
            str(base.path if isinstance(base, Model) else base),
            chosen,
            names,
            files,
            reading,
            found,
            model,
            from_.lower_bound,
        )
        if kept is not None and writer is not None:
            kept.note_output(writer.state)
    return report


def _report(
    base: str,
    precision: "Precision",
    names: Sequence[str],
    files: Sequence[Model],
    reading: Reading,
    found: "Predictions",
    model: Model,
    lower_bound: bool,
) -> DivergenceReport:
    from runtime.evaluation.divergence import ENTROPY, LOG_P
    from runtime.evaluation.perplexity import perplexity_of
    from runtime.evaluation.statistics import mean_and_error
    from runtime.products.precision import products

    loss, error = mean_and_error(-found.base[:, LOG_P])
    targets = np.concatenate([window.targets for window in reading.windows])
    return DivergenceReport(
        base,
        reading.n_ctx,
        precision,
        products(precision),
        reading.texts,
        perplexity_of(loss),
        perplexity_of(loss) * error,
        float(found.base[:, ENTROPY].mean()),
        [
            file_divergence(name, file, reading, found, targets, model.tokenizer, lower_bound)
            for name, file in zip(names, files, strict=True)
        ],
        reading.remarks,
    )


def _names(files: Sequence[Model]) -> list[str]:
    """What files are called in errors: their paths; the second of the same gets a number."""
    names: list[str] = []
    for file in files:
        name, count = str(file.path), 2
        while name in names:
            name, count = f"{file.path} ({count})", count + 1
        names.append(name)
    return names


def _reading(
    model: Model,
    files: Sequence[Model],
    given: Texts | None,
    chat: bool,
    n_ctx: int | None,
    chunks: int | None,
    stored: "StoredBase | SavedBase | None",
) -> Reading:
    """What is measured on. Raises OptionError where a file would read it otherwise than `model`."""
    for file in files:
        check_vocabulary(model, file)
    if chat and given is None:
        raise OptionError("there are no conversations of ours: chat needs a text", "name a JSONL file (-f)")
    texts = [] if given is None else texts_named(given, chat)
    if stored is None and not texts:
        texts = default_texts()
    reading = texts_read(model, texts, n_ctx, chunks, stored)
    for file in files:
        check_tokens(model, file, [each.path for each in texts if not each.chat])
    return reading


@contextmanager
def _record(
    path: PathLike, reading: Reading, read: Sequence[Path], files: int, reads: Reads, precision: str, keep: bool
) -> Iterator[Record]:
    from runtime.evaluation.divergence import columns

    from .bases import text_digest

    plan = {
        "measurement": "divergence",
        "n_ctx": reading.n_ctx,
        "precision": precision,
        "text": text_digest(reading.windows),
    }
    sizes = [len(window.scored) for window in reading.windows]
    with recorded(as_path(path, "the record"), plan, read, sizes, columns(files), reads, keep) as record:
        yield record
