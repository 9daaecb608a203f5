"""Measure an importance matrix: sums of the squared inputs of each weight while the model reads texts."""

import hashlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from pickle import dumps, loads
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quants.arguments import PathLike, as_count, as_path
from quants.errors import GgufToolsError, ModelError, OptionError
from runtime.arrays import Ids

from ..io.atomic import NOTHING, check_target, output_path
from ..models.devices import running_on
from ..models.model import Model, opened
from ..quantization.imatrix import Entry, ImportanceMatrix, write_imatrix
from ..writing.executors import leaves_process
from ..writing.resume import fingerprint
from .importance_state import unfinished_sums
from .options import ImatrixOptions
from .pass_state import pass_state
from .perplexity import Progress, windows_at_once
from .text_tokens import read_text
from .workers import Runnable, in_turn, opened_once, runnable

if TYPE_CHECKING:
    from runtime.ahead import AheadOptions
    from runtime.evaluation.perplexity import Windows
    from runtime.importance import Sums
    from runtime.model import RunningModel

    from .importance_state import State

MAX_SQUARE = 3e38  # what float32 holds
BATCHES_AT_ONCE = 16  # of which the sums stay on a device
HEAD = ("output.weight", "token_embd.weight")  # which need no importance in recipes


@dataclass(frozen=True)
class _Text:
    """A text as tokens, and its windows. bos: the token that begins each of them, or None."""

    tokens: Sequence[int]
    bos: int | None
    plan: "Windows"


@dataclass(frozen=True)
class _Measured:
    """The model that is measured, and which of its weights."""

    net: "RunningModel"
    with_output: bool
    nextn: bool


class _WorkerSpec(NamedTuple):
    """The same for workers."""

    model: Runnable
    with_output: bool
    nextn: bool


class _Task(NamedTuple):
    """Windows to sum the inputs of. spec: a pickled _WorkerSpec. ids: int32 (windows, n_ctx)."""

    spec: bytes
    ids: NDArray[np.int32]


def imatrix(
    source: PathLike | Model,
    text: PathLike | Sequence[PathLike],
    output: PathLike | None = None,
    *,
    n_ctx: int = 512,
    chunks: int | None = None,
    threads: int | None = None,
    options: ImatrixOptions | None = None,
    progress: Progress | None = None,
) -> ImportanceMatrix:
    """Measure an importance matrix on texts: sums of the inputs of each weight and of their squares.

    text: a file, or several, whose sums add up. Windows are those of perplexity; every position counts. output: where
    to write it: in GGUF form, or the legacy form if it ends in .dat. n_ctx: tokens of a window; chunks: read the first
    so many windows of each text. threads: None for all processors. options: precision, and how a run is kept.
    progress(windows done, of how many, 0.0), first with 0. Raises FileError, also for a model that is changed while it
    is measured, OptionError (a text that is too short), ModelError, VocabularyError.
    """
    from runtime.ahead import AheadOptions
    from runtime.products.precision import precision_named

    options = options or ImatrixOptions()
    model, files = opened(source), _files(text)
    reads = [*model.files, *files]
    as_count(options.save_every, "save_every")
    target = _target(output, options, reads)
    chosen = precision_named(options.precision)
    texts = [_read(model, file, n_ctx, chunks, options) for file in files]
    net = running_on(options.device, model.metadata, model.tensors, threads=threads, precision=chosen)
    layers = len(net.next_tokens.layers) if options.nextn else 0  # refuses a model without MTP layers at once
    which = _Measured(net, options.with_output, options.nextn)
    away = options.executor if leaves_process(options.executor) else None
    spec = b"" if away is None else dumps(_WorkerSpec(runnable(model, threads, chosen), which.with_output, which.nextn))
    total = sum(len(each.plan.starts) for each in texts)
    at_once = windows_at_once(model, n_ctx, net)
    keep = 0 if output is None else options.save_every
    head = _head(model, texts, n_ctx, chosen, options)
    with ExitStack() as stack:
        state = stack.enter_context(unfinished_sums(target, head, options.resume)) if keep or options.resume else None
        progressed = _Progressed(state, keep, total, progress)
        batches = _batches(texts, progressed.done, min(at_once, keep) if keep else at_once)
        measured = _sums_here(which, batches) if away is None else _sums_elsewhere(away, spec, batches)
        if net.device is not None:
            layer_by_layer = net.device.streams(net.tensors.values())
            store = stack.enter_context(pass_state(target, head)) if layer_by_layer and state is not None else None
            ahead = AheadOptions(store=store, progress=progressed.shown_by_layer)
            many = None if layer_by_layer else max(1, keep // at_once) if keep else BATCHES_AT_ONCE
            measured = _sums_on_device(which, batches, many, ahead)
        try:
            with closing(measured):
                for windows, sums in measured:
                    progressed.add(windows, sums)
            model.origin.reads.check_unchanged()
        except GgufToolsError as error:
            if state is not None and not isinstance(error.__cause__, OSError):
                state.end()  # another try would fail, too
            raise
        names = tuple(file.name for file in files)
        matrix = ImportanceMatrix(target, _entries(progressed.sums), names, total, n_ctx, layers)
        if output is not None:
            write_imatrix(matrix, target, options.overwrite, reads)
        if state is not None:
            state.end()
    return matrix


def _target(output: PathLike | None, options: ImatrixOptions, reads: Sequence[Path]) -> Path:
    """Return where to write the matrix. Raises OptionError for nothing to resume, FileError for what may not be
    there.
    """
    if output is None:
        if options.resume:
            raise OptionError("there is no output whose run could be resumed")
        return Path("imatrix.gguf")
    target = output_path(output)
    check_target(target, NOTHING.also(reads), options.overwrite)
    return target


def _files(text: PathLike | Sequence[PathLike]) -> list[Path]:
    several: Sequence[Any] = text if isinstance(text, (list, tuple)) else [text]
    files = [as_path(each, "the text") for each in several]
    if not files:
        raise OptionError("there is no text to read")
    return files


class _Progressed:
    """Sums of the windows done so far, starting from an earlier run's; they are saved every `keep` windows."""

    def __init__(self, state: "State | None", keep: int, total: int, progress: Progress | None) -> None:
        from runtime.importance import Sums

        self._state, self._keep, self._total, self._progress = state, keep, total, progress
        self.sums: dict[str, Sums] = {}
        if state is not None and state.windows <= total:
            self.sums |= {name: Sums(*arrays) for name, arrays in state.sums.items()}
        self.done = self._saved = state.windows if self.sums and state is not None else 0
        self._show()

    def add(self, windows: int, sums: dict[str, "Sums"]) -> None:
        from runtime.importance import add_sums

        add_sums(self.sums, sums)
        self.done += windows
        _check_finite(self.sums)
        if self._state is not None and self._keep and self.done - self._saved >= self._keep and self.done < self._total:
            self._state.save(self.done, self.sums)
            self._saved = self.done
        self._show()

    def _show(self) -> None:
        if self._progress:
            self._progress(self.done, self._total, 0.0)

    def shown_by_layer(self, layers: int, of: int) -> None:
        """Report progress of a pass in which all windows are at the same layer."""
        if self._progress:
            self._progress(self.done + (self._total - self.done) * layers // of, self._total, 0.0)


Batches = Generator[tuple[int, dict[str, "Sums"]], None, None]  # how many windows, and their sums


def _sums_here(measured: _Measured, batches: Iterator[Ids]) -> Batches:
    for ids in batches:
        yield len(ids), _sums(measured, ids)


def _sums_on_device(
    measured: _Measured, batches: Iterator[Ids], at_once: int | None, options: "AheadOptions"
) -> Batches:
    """Yield the sums of `at_once` batches at a time, made on the model's device; None for all in one.

    options: of a pass that reads weights layer by layer.
    """
    from runtime.device.importance import DeviceImportance

    net = copy(measured.net)
    while group := list(islice(batches, at_once)):
        importance = DeviceImportance(wanted=lambda name: measured.with_output or name not in HEAD, threads=net.threads)
        net.observe = importance.observe
        with net.prepare([(ids, 0) for ids in group], options):
            for ids in group:
                read = net.lazy_logits(ids)
                if measured.nextn:
                    net.mtp_logits(ids, read.states)
        yield sum(map(len, group)), importance.finish()


def _sums_elsewhere(executor: Executor, spec: bytes, batches: Iterator[Ids]) -> Batches:
    for task, sums in in_turn(executor, _sums_of, (_Task(spec, ids.astype(np.int32)) for ids in batches)):
        yield len(task.ids), sums


def _sums_of(task: _Task) -> dict[str, "Sums"]:
    """Compute a task in a worker."""
    return _sums(_opened(task.spec), task.ids.astype(np.int64))


@opened_once
def _opened(spec: bytes) -> _Measured:
    model, with_output, nextn = loads(spec)
    return _Measured(model.open(), with_output, nextn)


def _sums(measured: _Measured, ids: Ids) -> dict[str, "Sums"]:
    """Return the sums of these windows, ids (windows, n_ctx)."""
    from runtime.importance import Importance

    net = copy(measured.net)  # a copy, as others may observe the same model
    importance = Importance(wanted=lambda name: measured.with_output or name not in HEAD, threads=net.threads)
    net.observe = importance.observe
    read = net.lazy_logits(ids)
    if measured.nextn:
        net.mtp_logits(ids, read.states)
    return importance.sums


def _read(model: Model, file: Path, n_ctx: int, chunks: int | None, options: ImatrixOptions) -> _Text:
    from runtime.evaluation.perplexity import windows

    tokenizer = model.tokenizer
    tokens = tokenizer.encode(read_text(file), parse_special=options.parse_special)
    skipped = as_count(options.skip_chunks, "skip_chunks") * as_count(n_ctx, "n_ctx")
    left = len(tokens) - skipped
    if skipped and left < 2 * n_ctx:
        what = (
            f"{file} has {len(tokens)} tokens: {max(0, left)} after its first {options.skip_chunks} windows of {n_ctx}"
        )
        raise OptionError(what, hint="at least 2 windows are needed")
    try:
        plan = windows(left, n_ctx, chunks=chunks)
    except OptionError as error:
        raise OptionError(f"{file}: {error}", error.hint) from error
    return _Text(tokens[skipped:], tokenizer.bos if tokenizer.add_bos else None, plan)


def _batches(texts: Sequence[_Text], done: int, size: int) -> Iterator[Ids]:
    """Yield the windows of all texts but the first `done`, up to `size` of a text at a time: ids (windows, n_ctx)."""
    for text in texts:
        left = text.plan.starts[done:]
        done = max(0, done - len(text.plan.starts))
        for inputs, _ in replace(text.plan, starts=left).batches(text.tokens, text.bos, size):
            yield inputs


def _head(
    model: Model, texts: Sequence[_Text], n_ctx: int, precision: str, options: ImatrixOptions
) -> dict[str, object]:
    """Return what must be equal for a run to be resumed."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(np.asarray([-1 if text.bos is None else text.bos, len(text.plan.starts)], "<i8").tobytes())
        digest.update(np.asarray(text.tokens[: n_ctx * len(text.plan.starts)], "<i8").tobytes())
    tensors = [[tensor.name, tensor.format.name, *tensor.shape] for tensor in model.tensors.values()]
    chosen: dict[str, object] = {"n_ctx": n_ctx, "with_output": options.with_output}
    chosen |= {"precision": precision, "tensors": tensors}
    if options.nextn:
        chosen["nextn"] = True
    return {
        "gguftools": 1,
        "importance matrix": hashlib.sha256(json.dumps(chosen).encode()).hexdigest(),
        "texts": digest.hexdigest(),
        "sources": fingerprint(model.files),
    }


def _check_finite(all_sums: Mapping[str, "Sums"]) -> None:
    for name, sums in all_sums.items():
        if not np.all(sums.squares < MAX_SQUARE):
            raise ModelError(f"the inputs of {name!r} are too large to be squared", "keys or weights are wrong")


def _entries(all_sums: Mapping[str, "Sums"]) -> dict[str, Entry]:
    return {
        name: Entry(*(array.astype(np.float32) for array in (sums.squares, sums.counts, sums.inputs)))
        for name, sums in all_sums.items()
    }
