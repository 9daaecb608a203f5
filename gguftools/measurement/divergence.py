"""Measure how far files' predictions on texts are from a base's, usually the model they were quantized from."""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quants.arguments import PathLike, as_path, thread_count
from quants.errors import OptionError

from ..io.atomic import NOTHING, InputFiles
from ..io.locks import State, state_of
from ..models.devices import name_of_device, running_on, share_memory, torch_device_for
from ..models.model import Model, opened
from ..writing.executors import leaves_process
from ..writing.resume import fingerprint
from .bases.saving import BaseRun, Both, Saving, Writer, adding, base_writer, saving_to
from .corpus import Corpus, check_tokens, check_vocabulary, read_corpus, stored_base
from .device_passes import Kept, Measured, begin_on_device, lost_in_noise
from .divergence_figures import file_divergence
from .divergence_report import DivergenceReport
from .divergence_tasks import figures_elsewhere, worker_spec
from .options import DivergenceOptions
from .perplexity import Progress, tokens_at_once
from .progress_record import ProgressRecord, progress_record
from .texts import Texts, default_texts, texts_named

if TYPE_CHECKING:
    from runtime.arrays import Doubles
    from runtime.evaluation.divergence import Base, Predictions, StoredBase
    from runtime.evaluation.noise import NoiseFloor
    from runtime.model import RunningModel
    from runtime.products.precision import Precision

    from ..models.devices import DeviceOptions
    from .bases.base import SavedBase


def divergence(
    base: PathLike | Model,
    *others: PathLike | Model,
    text: Texts | None = None,
    n_ctx: int | None = None,
    chunks: int | None = None,
    threads: int | None = None,
    options: DivergenceOptions | None = None,
    progress: Progress | None = None,
) -> DivergenceReport:
    """Measure the KL divergence of files' predictions from a base's, in nats, with all figures of llama-perplexity.

    base: a model, or a base stored by llama-perplexity or options.save_base, whose texts and windows are used. others:
    files to compare with it; none to only save the base. text: one, several, or several by name, each with figures of
    its own, too; None for the texts of this package. n_ctx: tokens of a window, default 512; chunks: number of windows
    of each text, None for all; as in `perplexity`. threads: None for all processors. options: precision, conversations,
    and what is saved. progress: called first and after each window with (windows done, windows in all, mean divergence
    of the first file so far: NaN at first). Raises FileError, also for a file that is changed while it is measured,
    ModelError, VocabularyError, and OptionError for a text that is too short, for different vocabularies and for a
    stored base of another text or window.
    """
    from runtime.products.precision import Precision, precision_named

    options = options or DivergenceOptions()
    chosen: Precision = precision_named(options.precision)
    saving = saving_to(options)
    files = [opened(each) for each in others]
    stored, state = None, {}
    if not isinstance(base, Model):
        path = Path(str(base))
        state = {path: state_of(path)} if path.is_file() else {}
        stored = stored_base(as_path(base, "the base"), options.base_model, files, chunks, threads)
    _check_purpose(base, stored, files, saving, options)
    source = None if stored is not None else opened(base)
    model = files[0] if source is None else source
    corpus = _corpus(model, files, text, options.chat, n_ctx, chunks, stored)
    state = state if stored is not None else {}
    run = _Run(base, source, stored, state, files, corpus, chosen, chunks, threads, options.device)
    return _measured(run, saving, options, progress)


def _check_purpose(
    base: PathLike | Model,
    stored: "StoredBase | SavedBase | None",
    files: Sequence[Model],
    saving: Saving | None,
    options: DivergenceOptions,
) -> None:
    """Raise OptionError for nothing to measure, a base to save that cannot be saved, and workers for a device."""
    from .bases.base import SavedBase

    if not files and (stored is not None or saving is None):
        raise OptionError("there is nothing to compare with the base", "name one or more files after it")
    if saving is not None and stored is not None and (saving.own_form or isinstance(stored, SavedBase)):
        raise OptionError(f"{base} is a saved base already", "name the model that it is of to save another")
    if options.device is not None and leaves_process(options.executor):
        raise OptionError("workers compute on processors, not on a device", "leave the executor or the device out")
    if saving is not None and leaves_process(options.executor):
        raise OptionError("a base is saved by the process that runs it, not by workers", "leave the executor out")


@dataclass(frozen=True)
class _Run:
    """One measurement.

    source: the base as a model, or None; stored: a file of its predictions, or None; stored_state: that file's state
    before it was read.
    """

    base: PathLike | Model
    source: Model | None
    stored: "StoredBase | SavedBase | None"
    stored_state: Mapping[Path, State]
    files: Sequence[Model]
    corpus: Corpus
    precision: "Precision"
    chunks: int | None
    threads: int | None
    device: "str | DeviceOptions | None"

    @property
    def model(self) -> Model:
        """Return the model whose vocabulary the base has."""
        return self.files[0] if self.source is None else self.source

    @property
    def read(self) -> list[Path]:
        """Return the files of models and bases that are read."""
        read = [path for file in (self.model, *self.files) for path in file.files]
        return read if self.stored is None else [*read, Path(str(self.base))]

    @property
    def reads(self) -> InputFiles:
        return NOTHING.also(self.read).also(text.file for text in self.corpus.texts)

    def check_unchanged(self) -> None:
        """Raise FileError if a file of a model, or the stored base, was changed since it was opened."""
        InputFiles(states=self.stored_state).check_unchanged()
        for model in (self.model, *self.files):
            model.origin.reads.check_unchanged()

    def running(self, file: Model) -> Measured:
        from runtime.evaluation.divergence import RunningLogits
        from runtime.head import output_of

        how: Any = {"threads": self.threads, "precision": self.precision, "models": self._models}
        net = running_on(self.device, file.metadata, file.tensors, **how)
        output, windows = output_of(net.network), self.corpus.windows
        longest = max(len(window.inputs) for window in windows)
        at_once = tokens_at_once(file) if net.device is None else net.tokens_at_once(longest)
        return Measured(net, RunningLogits(net.lazy_logits, windows, at_once, output))

    def stored_on_device(self) -> "StoredBase | SavedBase | None":
        """Return the stored base; logits of one of ours are computed on the device, too."""
        from runtime.evaluation.stored_states import StoredStates

        from .bases.base import SavedBase

        stored = self.stored
        if isinstance(stored, SavedBase) and isinstance(stored.source, StoredStates):
            stored.source.device = torch_device_for(self.device, self._models)
        return stored

    @property
    def _models(self) -> int:
        """Return how many models share a device's memory."""
        return 1 + len(self.files)

    def elsewhere(
        self, executor: Executor, base_model: PathLike | Model | None, kept: ProgressRecord | None
    ) -> "Generator[Doubles, None, None]":
        """Yield figures of the windows that no earlier run measured, computed by workers."""
        windows, files = self.corpus.windows, dict(zip(_names(self.files), self.files, strict=True))
        numbers = [n for n in range(len(windows)) if kept is None or kept.earlier(n) is None]
        base = self.source or Path(str(self.base))
        spec = worker_spec(base, base_model, files, self.chunks, self.threads, self.precision)
        return figures_elsewhere(executor, spec, windows, numbers)


def _measured(
    run: _Run, saving: Saving | None, options: DivergenceOptions, progress: Progress | None
) -> DivergenceReport:
    from runtime.evaluation.divergence import divergence as measure

    corpus = run.corpus
    models = [] if run.source is None else [run.running(run.source)]
    models += map(run.running, run.files)
    base: Base = run.stored_on_device() if run.source is None else models[0].logits  # type: ignore[assignment]
    others = models[len(models) - len(run.files) :]
    share_memory([model.net for model in models])
    with ExitStack() as stack:
        kept: ProgressRecord | None = None
        writer: Writer | None = None
        resumable: Kept | None = None
        if options.record is not None:
            path, plan = as_path(options.record, "the record"), _plan(run, name_of_device(models[0].net))
            kept = stack.enter_context(_record(path, run, plan, options.keep_record))
            resumable = Kept(kept, path, {**plan, "files": fingerprint(run.read)})
        if saving is not None:
            saved = BaseRun(base, run.model, corpus, run.precision, run.read, run.threads)
            writer = stack.enter_context(base_writer(saving, kept, saved, run.reads))
        done = kept if kept is None or writer is None else Both(kept, writer)
        measured: Iterator[Doubles] | None = None
        if options.executor is not None and leaves_process(options.executor):
            elsewhere = run.elsewhere(options.executor, options.base_model, kept)
            measured = stack.enter_context(closing(elsewhere))
        if progress:
            progress(0, len(corpus.windows), math.nan)
        left = [number for number in range(len(corpus.windows)) if done is None or done.earlier(number) is None]
        noise = begin_on_device(models, left, resumable, stack)
        predictions = measure(
            corpus.windows,
            base,
            {name: model.logits for name, model in zip(_names(run.files), others, strict=True)},
            progress=progress,
            threads=thread_count(run.threads),
            measured=measured,
            save=None if writer is None else adding(writer, base),
            kept=done,
        )
        run.check_unchanged()
        report = _report(run, predictions, base.lower_bound, models[0].net, noise)
        if kept is not None and writer is not None:
            kept.note_output(writer.state)
    return report


def _report(
    run: _Run, predictions: "Predictions", lower_bound: bool, net: "RunningModel", noise: "NoiseFloor | None"
) -> DivergenceReport:
    """Return the report. net: one of the models."""
    from runtime.evaluation.divergence import ENTROPY, LOG_P
    from runtime.evaluation.perplexity import perplexity_of
    from runtime.evaluation.statistics import mean_and_error
    from runtime.products.precision import products

    corpus, tokenizer = run.corpus, run.model.tokenizer
    loss, error = mean_and_error(-predictions.base[:, LOG_P])
    targets = np.concatenate([window.targets for window in corpus.windows])
    files = [
        file_divergence(name, file, corpus, predictions, targets, tokenizer, lower_bound)
        for name, file in zip(_names(run.files), run.files, strict=True)
    ]
    return DivergenceReport(
        str(run.base.path if isinstance(run.base, Model) else run.base),
        corpus.n_ctx,
        run.precision,
        products(run.precision) if net.device is None else net.device.products(run.precision),
        corpus.texts,
        perplexity_of(loss),
        perplexity_of(loss) * error,
        float(predictions.base[:, ENTROPY].mean()),
        files,
        [*corpus.remarks, *lost_in_noise(files, noise)],
        name_of_device(net),
        None if noise is None else noise.mean,
        None if noise is None else noise.max,
    )


def _names(files: Sequence[Model]) -> list[str]:
    """Return the names of files in errors: their paths, with a number for the second of the same path."""
    names: list[str] = []
    for file in files:
        name, count = str(file.path), 2
        while name in names:
            name, count = f"{file.path} ({count})", count + 1
        names.append(name)
    return names


def _corpus(
    model: Model,
    files: Sequence[Model],
    given: Texts | None,
    chat: bool,
    n_ctx: int | None,
    chunks: int | None,
    stored: "StoredBase | SavedBase | None",
) -> Corpus:
    """Return the windows to measure on. Raises OptionError if a file would tokenize them differently."""
    for file in files:
        check_vocabulary(model, file)
    if chat and given is None:
        raise OptionError("there are no conversations of ours: chat needs a text", "name a JSONL file (-f)")
    texts = [] if given is None else texts_named(given, chat)
    if stored is None and not texts:
        texts = default_texts()
    corpus = read_corpus(model, texts, n_ctx, chunks, stored)
    for file in files:
        check_tokens(model, file, [each.path for each in texts if not each.chat])
    return corpus


def _plan(run: _Run, device: str) -> dict[str, Any]:
    """Return what is measured, in words and digests. device: its name, "" for the processor."""
    from .bases.base import text_digest

    plan = {
        "measurement": "divergence",
        "n_ctx": run.corpus.n_ctx,
        "precision": run.precision,
        "text": text_digest(run.corpus.windows),
    }
    return plan | ({"device": device} if device else {})


@contextmanager
def _record(path: Path, run: _Run, plan: dict[str, Any], keep: bool) -> Iterator[ProgressRecord]:
    from runtime.evaluation.divergence import columns

    sizes = [len(window.scored) for window in run.corpus.windows]
    width = columns(len(run.files))
    with progress_record(path, plan, run.read, sizes, width, run.reads, keep) as record:
        yield record
