"""Measure an importance matrix: which columns of each weight meet large inputs while the model reads texts."""

import hashlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, nullcontext
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from pickle import dumps, loads
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quants.arguments import PathLike, as_count, as_path
from quants.errors import GgufToolsError, ModelError, OptionError

from ..files.atomic import NOTHING, check_target, output_path
from ..model import Model, opened
from ..quantization.imatrix import Entry, ImportanceMatrix, write_imatrix
from ..writing.executors import leaves_process
from ..writing.resume import fingerprint
from .importance_state import unfinished_sums
from .perplexity import Progress, tokens_at_once
from .text_tokens import read_text
from .workers import Runnable, in_turn, runnable

if TYPE_CHECKING:
    from runtime.evaluation.perplexity import Windows
    from runtime.importance import Sums
    from runtime.model import Model as RunningModel

MOST = 3e38  # what float32 holds
SAVE_EVERY = 10  # windows
HEAD = ("output.weight", "token_embd.weight")  # whose importance recipes don't ask for
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class _Text:
    """A text as tokens, and its windows. bos: what begins each of them, None for nothing."""

    tokens: Sequence[int]
    bos: int | None
    plan: "Windows"


@dataclass(frozen=True)
class _Measured:
    """A model that is measured, and which of its weights."""

    net: "RunningModel"
    with_output: bool
    nextn: bool


class _Told(NamedTuple):
    """The same as workers are told of it."""

    model: Runnable
    with_output: bool
    nextn: bool


class _Task(NamedTuple):
    """Windows to sum the inputs of. told: a pickled _Told. ids: int32 (windows, n_ctx)."""

    told: bytes
    ids: NDArray[np.int32]


def imatrix(
    source: PathLike | Model,
    text: PathLike | Sequence[PathLike],
    output: PathLike | None = None,
    *,
    n_ctx: int = 512,
    chunks: int | None = None,
    skip_chunks: int = 0,
    parse_special: bool = False,
    with_output: bool = False,
    nextn: bool = False,
    precision: str = "float32",
    save_every: int = SAVE_EVERY,
    resume: bool = False,
    threads: int | None = None,
    executor: Executor | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ImportanceMatrix:
    """Let the model read files of text in windows: an importance matrix, sums of its weights' inputs and their squares.

    text: a file, or several, whose sums add up. Windows are those of perplexity, every position counts. output: where
    it is written, too: GGUF form, or the legacy one if it ends in .dat; overwrite: even if it exists. n_ctx: tokens of
    a window. Of each text skip_chunks windows are left out, and then the first `chunks` are read. parse_special:
    special tokens that a text spells become these tokens. with_output: also for the weights of the head, which recipes
    don't ask importance for. nextn: also for the layer that predicts a token further, which the model runs without.
    precision: as in `perplexity`. save_every: with an output, keep the sums beside it after so many windows, 0 for
    never; resume: go on from those that an interrupted run of the same model, texts and options left. threads: default
    all processors. executor: whose workers, other processes, read the windows instead, with so many threads each, one
    if not given; the sums are the same to the last bit. progress(windows done, of how many, 0.0), at first, too.
    Raises FileError, OptionError (too short a text), ModelError, VocabularyError.
    """
    from runtime.importance import Sums, add_sums
    from runtime.model import Model as RunningModel
    from runtime.products.precision import precision_named

    model = opened(source)
    several: Sequence[Any] = text if isinstance(text, (list, tuple)) else [text]
    files = [as_path(each, "the text") for each in several]
    if not files:
        raise OptionError("there is no text to read")
    reads = [*model.files, *files]
    as_count(save_every, "save_every")
    if resume and output is None:
        raise OptionError("there is no output whose run could be resumed")
    target = Path("imatrix.gguf") if output is None else output_path(output)
    if output is not None:
        check_target(target, NOTHING.also(reads), overwrite)
    chosen = precision_named(precision)
    texts = [_read(model, file, n_ctx, chunks, skip_chunks, parse_special) for file in files]
    net = RunningModel(model.metadata, model.tensors, threads=threads, precision=chosen)
    layers = len(net.next_tokens.layers) if nextn else 0  # which a model that has none says before anything runs
    away = executor if leaves_process(executor) else None
    told = None if away is None else dumps(_Told(runnable(model, threads, chosen), with_output, nextn))
    total = sum(len(each.plan.starts) for each in texts)
    head = _head(model, texts, n_ctx, with_output, chosen, nextn)
    at_once = max(1, tokens_at_once(model) // n_ctx)
    keep = save_every if output is not None else 0
    sums: dict[str, Sums] = {}
    with unfinished_sums(target, head, resume) if keep or resume else nullcontext() as state:
        if state is not None and state.windows <= total:
            sums |= {name: Sums(*arrays) for name, arrays in state.sums.items()}
        saved = done = state.windows if sums and state is not None else 0
        if progress:
            progress(done, total, 0.0)
        batches = _batches(texts, done, min(at_once, keep) if keep else at_once)
        measured = (
            _sums_elsewhere(away, told, batches)
            if away is not None and told is not None
            else _sums_here(_Measured(net, with_output, nextn), batches)
        )
        try:
            with closing(measured):
                for windows, found in measured:
                    add_sums(sums, found)
                    done += windows
                    _check_finite(sums)
                    if state is not None and keep and done - saved >= keep and done < total:
                        state.save(done, sums)
                        saved = done
                    if progress:
                        progress(done, total, 0.0)
        except GgufToolsError as error:
            if state is not None and not isinstance(error.__cause__, OSError):
                state.end()  # another try would end in the same way
            raise
        matrix = ImportanceMatrix(target, _entries(sums), tuple(file.name for file in files), total, n_ctx, layers)
        if output is not None:
            write_imatrix(matrix, target, overwrite, reads)
        if state is not None:
            state.end()
    return matrix


Batches = Generator[tuple[int, dict[str, "Sums"]], None, None]  # how many windows, and their sums


def _sums_here(measured: _Measured, batches: Iterator[Ids]) -> Batches:
    for ids in batches:
        yield len(ids), _sums(measured, ids)


def _sums_elsewhere(executor: Executor, told: bytes, batches: Iterator[Ids]) -> Batches:
    for task, sums in in_turn(executor, _sums_of, (_Task(told, ids.astype(np.int32)) for ids in batches)):
        yield len(task.ids), sums


def _sums_of(task: _Task) -> dict[str, "Sums"]:
    """What a worker does."""
    with _OPENING:
        measured = _opened(task.told)
    return _sums(measured, task.ids.astype(np.int64))


_OPENING = Lock()  # tasks may come in threads of one worker


@lru_cache(maxsize=1)
def _opened(told: bytes) -> _Measured:
    model, with_output, nextn = loads(told)
    return _Measured(model.open(), with_output, nextn)


def _sums(measured: _Measured, ids: Ids) -> dict[str, "Sums"]:
    """Sums of these windows alone, ids (windows, n_ctx)."""
    from runtime.importance import Importance

    net = copy(measured.net)  # others may be looking at the same model
    found = Importance(wanted=lambda name: measured.with_output or name not in HEAD, threads=net.threads)
    net.observe = found.observe
    read = net.lazy_logits(ids)
    if measured.nextn:
        net.mtp_logits(ids, read.states)
    return found.sums


def _read(model: Model, file: Path, n_ctx: int, chunks: int | None, skip_chunks: int, parse_special: bool) -> _Text:
    from runtime.evaluation.perplexity import windows

    tokenizer = model.tokenizer
    tokens = tokenizer.encode(read_text(file), parse_special=parse_special)
    skipped = as_count(skip_chunks, "skip_chunks") * as_count(n_ctx, "n_ctx")
    left = len(tokens) - skipped
    if skipped and left < 2 * n_ctx:
        what = f"{file} has {len(tokens)} tokens: {max(0, left)} behind its first {skip_chunks} windows of {n_ctx}"
        raise OptionError(what, hint="at least 2 windows are needed")
    plan = windows(left, n_ctx, chunks=chunks)
    return _Text(tokens[skipped:], tokenizer.bos if tokenizer.add_bos else None, plan)


def _batches(texts: Sequence[_Text], done: int, size: int) -> Iterator[Ids]:
    """The windows of all texts but the first `done`, up to `size` of a text at a time: ids (windows, n_ctx)."""
    for text in texts:
        left = text.plan.starts[done:]
        done = max(0, done - len(text.plan.starts))
        plan = type(text.plan)(left, text.plan.n_ctx, text.plan.first, text.plan.last)
        for inputs, _ in plan.batches(text.tokens, text.bos, size):
            yield inputs


def _head(
    model: Model, texts: Sequence[_Text], n_ctx: int, with_output: bool, precision: str, nextn: bool
) -> dict[str, object]:
    """What must be the same when a run is taken up again."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(np.asarray([-1 if text.bos is None else text.bos, len(text.plan.starts)], "<i8").tobytes())
        digest.update(np.asarray(text.tokens[: n_ctx * len(text.plan.starts)], "<i8").tobytes())
    tensors = [[tensor.name, tensor.format.name, *tensor.shape] for tensor in model.tensors.values()]
    options = {"n_ctx": n_ctx, "with_output": with_output, "precision": precision, "tensors": tensors}
    if nextn:
        options["nextn"] = True
    return {
        "gguftools": 1,
        "importance matrix": hashlib.sha256(json.dumps(options).encode()).hexdigest(),
        "texts": digest.hexdigest(),
        "sources": fingerprint(model.files),
    }


def _check_finite(found: Mapping[str, "Sums"]) -> None:
    for name, sums in found.items():
        if not np.all(sums.squares < MOST):
            raise ModelError(f"the inputs of {name!r} are too large to be squared", "keys or weights are wrong")


def _entries(found: Mapping[str, "Sums"]) -> dict[str, Entry]:
    return {
        name: Entry(*(array.astype(np.float32) for array in (sums.squares, sums.counts, sums.inputs)))
        for name, sums in found.items()
    }
