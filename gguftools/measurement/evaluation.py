"""Run HellaSwag, Winogrande and multiple-choice benchmarks as llama-perplexity does."""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quants.arguments import PathLike, as_count, as_path, wrong
from quants.errors import OptionError
from runtime.arrays import Doubles

from ..io.atomic import NOTHING, InputFiles
from ..models.devices import name_of_device, running_on
from ..models.model import Model, opened
from .evaluation_report import EvaluationReport, FileScores, Score, TestReport, is_right, score_of
from .options import EvaluationOptions
from .perplexity import Progress
from .progress_record import ProgressRecord, progress_record
from .tasks import hellaswag, multiple_choice, winogrande
from .tasks.task import Drawn, Task

if TYPE_CHECKING:
    from runtime.evaluation.choices import Choices
    from runtime.model import RunningModel
    from runtime.tokenizer import Tokenizer

TOKENS_AT_ONCE = 2048  # weights are decoded once for all of them
TASKS_AT_ONCE = 32
SEQUENCES = 4  # llama-perplexity's default: a task may fill so many windows


@dataclass(frozen=True)
class Benchmark:
    """A benchmark. load: (file, number of tasks or None, seed) → tasks."""

    name: str
    title: str
    load: Callable[[Path, int | None, int], Drawn]


BENCHMARKS = (
    Benchmark("hellaswag", "HellaSwag", hellaswag.load),
    Benchmark("winogrande", "Winogrande", winogrande.load),
    Benchmark("multiple_choice", "multiple choice", multiple_choice.load),
)


def evaluate(
    sources: PathLike | Model | Sequence[PathLike | Model],
    *,
    hellaswag: PathLike | None = None,
    winogrande: PathLike | None = None,
    multiple_choice: PathLike | None = None,
    n_ctx: int = 512,
    threads: int | None = None,
    options: EvaluationOptions | None = None,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Measure how often models choose the right answer of benchmarks, as llama-perplexity does.

    sources: one or several models. hellaswag, winogrande, multiple_choice: files of tasks in llama-perplexity's
    formats, at least one of them. n_ctx: a task's tokens (the common beginning of its answers once) must fit into 4
    windows of so many. threads: None for all processors. options: precision, device, and which tasks. progress(tasks
    done, of how many, score so far).
    Raises FileError, also for a model that is changed while it is measured, OptionError (no benchmark; a task too
    long), ModelError, VocabularyError.
    """
    from runtime.products.precision import precision_named, products

    options = options or EvaluationOptions()
    as_count(n_ctx, "n_ctx", 1)
    if options.tasks is not None:
        as_count(options.tasks, "tasks", 1)
    chosen = precision_named(options.precision)
    asked = _asked({"hellaswag": hellaswag, "winogrande": winogrande, "multiple_choice": multiple_choice})
    models = [opened(each) for each in _listed(sources)]
    if not models:
        raise OptionError("no model is given")
    drawn = [each.load(path, options.tasks, options.seed) for each, path in asked]
    nets = [
        running_on(options.device, model.metadata, model.tensors, threads=threads, precision=chosen) for model in models
    ]  # fail before another model has run for an hour
    device = nets[0].device
    for net in nets:
        if net.device is not None:
            net.device.release()  # of the weights that it was tested with
    by_model = [
        [_part(model, net, draw.tasks, n_ctx) for draw in drawn] for model, net in zip(models, nets, strict=True)
    ]
    parts = [part for own in by_model for part in own]
    names = [test.name for test, _ in asked]
    plan = {"measurement": "evaluation", "precision": chosen, "tasks": options.tasks, "seed": options.seed}
    plan |= {} if device is None else {"device": device.title, "products": device.products(chosen)}
    read = [path for model in models for path in model.files]
    reads = NOTHING.also(read).also(path for _, path in asked)
    with _record(options, plan, names, parts, read, reads) as kept:
        scores = iter(_scores(parts, len(asked), kept, progress))
        for model in models:
            model.origin.reads.check_unchanged()
    files = [FileScores(str(model.path), {name: next(scores) for name in names}) for model in models]
    about = [
        TestReport(each.name, each.title, str(path), draw.available, len(draw.tasks))
        for (each, path), draw in zip(asked, drawn, strict=True)
    ]
    warnings = [f"left out: {remark}" for draw in drawn for remark in draw.left_out]
    warnings += filter(None, map(_context_warning, models, by_model))
    multiplied = products(chosen) if device is None else device.products(chosen)
    where = name_of_device(nets[0])
    return EvaluationReport(n_ctx, options.seed, chosen, multiplied, about, files, warnings, where)


def _asked(paths: Mapping[str, PathLike | None]) -> list[tuple[Benchmark, Path]]:
    """Return the benchmarks that a file is given for. Raises OptionError if there are none."""
    asked = [(each, as_path(path, each.name)) for each in BENCHMARKS if (path := paths[each.name]) is not None]
    if not asked:
        raise OptionError("no test is given", "give a file to hellaswag, winogrande or multiple_choice")
    return asked


def _scores(
    parts: Sequence["_Part"], tests: int, kept: ProgressRecord | None, progress: Progress | None
) -> list[Score]:
    """Compute all parts, `tests` of them for each file; scores of later files are compared with the first file's."""
    total = sum(len(part.tasks) for part in parts)
    scores: list[Score] = []
    done = group = 0
    if progress is not None:
        progress(0, total, math.nan)
    for number, part in enumerate(parts):
        answers, seconds = _measured(part, kept, group, _shifted(progress, done, total))
        base = scores[number % tests] if number >= tests else None
        scores.append(score_of(part.tasks, answers, base, seconds))
        done, group = done + len(part.tasks), group + len(part.groups)
        if (number + 1) % tests == 0 and part.net.device is not None:
            part.net.device.release()  # for the next file
    return scores


def _context_warning(model: Model, parts: Sequence["_Part"]) -> str | None:
    """Return a warning if answers with their contexts are longer than the context that the model was trained with."""
    lengths = [max(map(len, task.sequences)) for part in parts for task in part.choices]
    limit = model.context_length
    longer = sum(length > limit for length in lengths) if limit else 0
    return f"{model.path}: {longer} tasks are longer than the model's context of {limit} tokens" if longer else None


def _listed(sources: PathLike | Model | Sequence[PathLike | Model]) -> list[PathLike | Model]:
    if isinstance(sources, (str, os.PathLike, Model)):
        return [sources]
    if not isinstance(sources, Iterable):
        raise wrong("sources", sources, "a model, or a list of models,")
    return list(sources)


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Return progress that counts the tasks of one part among all."""
    return progress and (lambda done, _, figure: progress(before + done, total, figure))


@dataclass(frozen=True)
class _Part:
    """One benchmark for one file. groups: tasks that are computed together."""

    net: "RunningModel"
    tasks: Sequence[Task]
    choices: "Sequence[Choices]"
    groups: list[slice]

    @property
    def branches(self) -> bool:
        """Return whether a task's beginning is computed once: not if all groups go layer by layer through a model."""
        device = self.net.device
        return self.net.branches and not (device is not None and device.streams(self.net.tensors.values()))

    def prepare(self, groups: Sequence[slice]) -> None:
        """Say which groups are computed next, for a device that reads the weights layer by layer."""
        from runtime.evaluation.choices import asked_for

        if not self.branches:
            choices = (self.choices[group] for group in groups)
            self.net.prepare((ids, 0) for each in choices for ids in asked_for(each, TOKENS_AT_ONCE))

    def answers(self, group: slice) -> list[int]:
        """Return the number of answers of each task of a group."""
        return [len(each.scored) for each in self.choices[group]]


def _part(model: Model, net: "RunningModel", tasks: Sequence[Task], n_ctx: int) -> _Part:
    """Tokenize a benchmark's tasks. Raises OptionError for a task that does not fit."""
    tokenizer, all_choices = model.tokenizer, []
    for task in tasks:
        choices = _choices(tokenizer, task)
        if choices.tokens > SEQUENCES * n_ctx:
            what = f"{task.where} needs {choices.tokens} tokens; {SEQUENCES} windows of {n_ctx} are there for it"
            raise OptionError(what, f"a context of {-(-choices.tokens // SEQUENCES)} is enough for it")
        all_choices.append(choices)
    part = _Part(net, tasks, all_choices, [])
    return replace(part, groups=_groups([each.tokens for each in all_choices], part.branches))


def _groups(tokens: Sequence[int], branches: bool) -> list[slice]:
    """Return groups of successive tasks.

    If the model computes a task's beginning once, a group has no more tokens than one pass takes; else so many tasks
    that sequences of similar lengths come together.
    """
    groups, start = [], 0
    while start < len(tokens):
        stop, left = start + 1, TOKENS_AT_ONCE - tokens[start]
        while stop < min(start + TASKS_AT_ONCE, len(tokens)) and (not branches or left >= tokens[stop]):
            left -= tokens[stop]
            stop += 1
        groups.append(slice(start, stop))
        start = stop
    return groups


def _choices(tokenizer: "Tokenizer", task: Task) -> "Choices":
    from runtime.evaluation.choices import continuations, substitutions

    sequences = [tokenizer.encode(text) for text in task.texts]
    if min(map(len, sequences)) < 2:
        raise OptionError(f"{task.where} is too short: there is nothing to predict an answer from")
    if not task.bases:
        return continuations(sequences)
    return substitutions(sequences, [len(tokenizer.encode(base)) for base in task.bases])


@contextmanager
def _record(
    options: EvaluationOptions,
    plan: dict[str, Any],
    names: Sequence[str],
    parts: Sequence[_Part],
    read: Sequence[Path],
    reads: InputFiles,
) -> Iterator[ProgressRecord | None]:
    """Open the progress record, if one is requested: its windows are groups of tasks, its predictions the answers'
    scores and the seconds they took.
    """
    if options.record is None:
        yield None
        return
    sizes = [sum(part.answers(group)) + 1 for part in parts for group in part.groups]
    for test in BENCHMARKS:
        own = parts[names.index(test.name) :: len(names)] if test.name in names else None
        plan[test.name] = own and _digest(own)
    path, keep = as_path(options.record, "the record"), options.keep_record
    with progress_record(path, plan, read, sizes, 1, reads, keep) as record:
        yield record


def _digest(parts: Sequence[_Part]) -> str:
    """Return the SHA-256 of all that is computed and scored of a benchmark."""
    digest = hashlib.sha256()
    for part in parts:
        for task in part.choices:
            digest.update(json.dumps([[*map(list, task.sequences)], task.common, task.scored]).encode())
    return digest.hexdigest()


def _measured(
    part: _Part, kept: ProgressRecord | None, first: int, progress: Progress | None
) -> tuple[list[list[float]], float]:
    """Return the answers' scores and their seconds. first: the number of the part's first group in the record."""
    scores: list[list[float]] = []
    seconds, correct = 0.0, 0
    earlier = [None if kept is None else kept.earlier(first + i) for i in range(len(part.groups))]
    part.prepare([group for group, values in zip(part.groups, earlier, strict=True) if values is None])
    for number, group in enumerate(part.groups, first):
        values = earlier[number - first]
        if values is None:
            values = _computed(part, group)
            if kept is not None:
                kept.note(number, values)
        ends = np.cumsum(part.answers(group))
        scores += [each.tolist() for each in np.split(values[:-1, 0], ends[:-1])]
        seconds += float(values[-1, 0])
        correct += sum(map(is_right, part.tasks[group], scores[group]))
        if progress:
            progress(len(scores), len(part.tasks), correct / len(scores))
    return scores, seconds


def _computed(part: _Part, group: slice) -> Doubles:
    """Return the scores of all answers of a group, and the seconds they took: float64 (answers + 1, 1)."""
    from runtime.evaluation.choices import mean_log_probabilities

    start, branched = time.perf_counter(), part.net.branched_logits if part.branches else None
    means = mean_log_probabilities(part.choices[group], part.net.lazy_logits, TOKENS_AT_ONCE, branched)
    values = [value for each in means for value in each]
    return np.array([*values, time.perf_counter() - start])[:, None]
