"""How often models choose the right answer: HellaSwag, Winogrande and multiple choice, as llama-perplexity has them."""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quants.arguments import PathLike, as_count, as_path
from quants.errors import OptionError

from ..model import Model, opened
from ..writing.report import Report
from .perplexity import Progress
from .tasks import hellaswag, multiple_choice, winogrande
from .tasks.drawing import SEED
from .tasks.task import Drawn, Task

if TYPE_CHECKING:
    from runtime.choices import Choices
    from runtime.model import Model as RunningModel
    from runtime.tokenizer import Tokenizer

TOKENS_AT_ONCE = 2048  # weights are decoded once for all of them
TASKS_AT_ONCE = 32
SEQUENCES = 4  # llama-perplexity's default: the context of so many windows is there for one task
NORMAL_95 = 1.95996398454

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Benchmark:
    """load: (file, tasks wanted or None, seed) → tasks."""

    name: str
    title: str
    load: Callable[[Path, int | None, int], Drawn]


BENCHMARKS = (
    Benchmark("hellaswag", "HellaSwag", hellaswag.load),
    Benchmark("winogrande", "Winogrande", winogrande.load),
    Benchmark("multiple_choice", "multiple choice", multiple_choice.load),
)


@dataclass(frozen=True)
class Score(Report):
    """What a file reached in one test: shares of 1.

    low, high: Wilson's interval, which holds the true score in 95 of 100 cases. chance: what guessing reaches.
    difference ± difference_error: to the first file, task by task, of which much is the same luck; None for that file.
    chosen: the answer taken in each task, from 0; scores: mean log(probability) of each answer; None where nothing of
    an answer counts.
    """

    tasks: int
    correct: int
    score: float
    standard_error: float
    low: float
    high: float
    chance: float
    difference: float | None
    difference_error: float | None
    chosen: list[int]
    right: list[bool]
    scores: list[list[float | None]]
    seconds: float


@dataclass(frozen=True)
class FileScores(Report):
    """Of one file: its scores by the test's name."""

    path: str
    tests: dict[str, Score]


@dataclass(frozen=True)
class TestReport(Report):
    """One test: its file of tasks, how many there are, and how many were drawn."""

    name: str
    title: str
    file: str
    available: int
    tasks: int


@dataclass(frozen=True)
class EvaluationReport(Report):
    """What was asked of whom. warnings: lines of the files that are no tasks."""

    n_ctx: int
    seed: int
    precision: str
    products: str
    tests: list[TestReport]
    files: list[FileScores]
    warnings: list[str]


def evaluate(
    sources: PathLike | Model | Sequence[PathLike | Model], *,
    hellaswag: PathLike | None = None, winogrande: PathLike | None = None, multiple_choice: PathLike | None = None,
    tasks: int | None = None, seed: int = SEED, n_ctx: int = 512, threads: int | None = None,
    precision: str = "float32", progress: Progress | None = None,
) -> EvaluationReport:  # fmt: skip
    """How often one or several models choose the right answer of tests, as llama-perplexity has them.

    hellaswag, winogrande, multiple_choice: files of tasks in its formats, at least one of them.
    tasks: of each test so many are drawn with `seed`; None for 400 of HellaSwag and all of the others. n_ctx: a task's
    tokens (what is common to its answers once) have to fit into 4 windows of so many. threads: None for all processors.
    precision: "float32", "exact" or "reference" as in `perplexity`. progress(tasks done, of how many, score so far).
    Raises FileError, OptionError (no test; a task too long), ModelError, VocabularyError.
    """
    from runtime.model import Model as RunningModel
    from runtime.precision import precision_named, products

    as_count(n_ctx, "n_ctx", 1)
    if tasks is not None:
        as_count(tasks, "tasks", 1)
    chosen = precision_named(precision)
    paths = {"hellaswag": hellaswag, "winogrande": winogrande, "multiple_choice": multiple_choice}
    asked = [(each, as_path(path, each.name)) for each in BENCHMARKS if (path := paths[each.name]) is not None]
    if not asked:
        raise OptionError("no test is given", "give a file to hellaswag, winogrande or multiple_choice")
    models = [opened(each) for each in _listed(sources)]
    if not models:
        raise OptionError("no model is given")
    drawn = [each.load(path, tasks, seed) for each, path in asked]
    nets = [
        RunningModel(model.metadata, model.tensors, threads=threads, precision=chosen) for model in models
    ]  # one that can't run is found before another has run for an hour
    prepared = [[_prepared(model, found.tasks, n_ctx) for found in drawn] for model in models]
    total = len(models) * sum(len(found.tasks) for found in drawn)
    files: list[FileScores] = []
    done = 0
    for model, net, own in zip(models, nets, prepared, strict=True):
        tests: dict[str, Score] = {}
        for (test, _), found, choices in zip(asked, drawn, own, strict=True):
            base = files[0].tests[test.name] if files else None
            tests[test.name] = _score(net, found.tasks, choices, base, _shifted(progress, done, total))
            done += len(found.tasks)
        files.append(FileScores(str(model.path), tests))
    about = [
        TestReport(each.name, each.title, str(path), found.available, len(found.tasks))
        for (each, path), found in zip(asked, drawn, strict=True)
    ]
    warnings = [f"left out: {remark}" for found in drawn for remark in found.left_out]
    return EvaluationReport(n_ctx, seed, chosen, products(chosen), about, files, warnings)


def _listed(sources: PathLike | Model | Sequence[PathLike | Model]) -> list[PathLike | Model]:
    return [sources] if isinstance(sources, (str, os.PathLike, Model)) else list(sources)


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """For one test of many: its tasks are counted among all."""
    return progress and (lambda done, _, figure: progress(before + done, total, figure))


def _prepared(model: Model, tasks: Sequence[Task], n_ctx: int) -> "list[Choices]":
    """The tokens of tasks. Raises OptionError for one that does not fit."""
    tokenizer, found = model.tokenizer, []
    for task in tasks:
        choices = _choices(tokenizer, task)
        if choices.tokens > SEQUENCES * n_ctx:
            what = f"{task.where} needs {choices.tokens} tokens; {SEQUENCES} windows of {n_ctx} are there for it"
            raise OptionError(what, f"a context of {-(-choices.tokens // SEQUENCES)} is enough for it")
        found.append(choices)
    return found


def _choices(tokenizer: "Tokenizer", task: Task) -> "Choices":
    from runtime.choices import continuations, substitutions

    sequences = [tokenizer.encode(text) for text in task.texts]
    if min(map(len, sequences)) < 2:
        raise OptionError(f"{task.where} is too short: there is nothing to predict an answer from")
    if not task.bases:
        return continuations(sequences)
    return substitutions(sequences, [len(tokenizer.encode(base)) for base in task.bases])


def _score(
    net: "RunningModel", tasks: Sequence[Task], choices: "Sequence[Choices]", base: Score | None,
    progress: Progress | None,
) -> Score:  # fmt: skip
    from runtime.choices import mean_log_probabilities

    start, branched = time.perf_counter(), net.branched_logits if net.branches else None
    scores: list[list[float]] = []
    picked: list[int] = []
    correct = 0
    for at in range(0, len(tasks), TASKS_AT_ONCE):
        group = slice(at, at + TASKS_AT_ONCE)
        found = mean_log_probabilities(choices[group], net.lazy_logits, TOKENS_AT_ONCE, branched)
        for task, each in zip(tasks[group], found, strict=True):
            picked.append(_best(each, bool(task.bases)))
            correct += picked[-1] in task.right
        scores += found
        if progress:
            progress(len(picked), len(tasks), correct / len(picked))
    right = [answer in task.right for answer, task in zip(picked, tasks, strict=True)]
    low, high = wilson(correct, len(tasks))
    difference, error = (None, None) if base is None else paired(right, base.right)
    return Score(
        tasks=len(tasks), correct=correct, score=correct / len(tasks), standard_error=_standard_error(right),
        low=low, high=high, chance=len(tasks) / sum(len(task.texts) for task in tasks),
        difference=difference, difference_error=error, chosen=picked, right=right,
        scores=[[None if math.isnan(value) else value for value in each] for each in scores],
        seconds=time.perf_counter() - start,
    )  # fmt: skip


def _best(scores: Sequence[float], last: bool) -> int:
    """The answer with the highest score: of equal ones the first or, in Winogrande, the last."""
    if last:
        return 0 if scores[0] > scores[1] else 1
    return max(range(len(scores)), key=lambda i: scores[i])


def wilson(correct: int, tasks: int) -> tuple[float, float]:
    """The interval of Wilson (1927) that holds the true share in 95 of 100 cases."""
    share, z = correct / tasks, NORMAL_95**2 / tasks
    half = z * math.sqrt(tasks * (4 * share * (1 - share) + z)) / (2 * NORMAL_95)
    return (share + z / 2 - half) / (1 + z), (share + z / 2 + half) / (1 + z)


def paired(right: Sequence[bool], base: Sequence[bool]) -> tuple[float, float]:
    """How much larger the share of right answers is than the base's, and the standard error of that."""
    differences = np.asarray(right, np.float64) - np.asarray(base, np.float64)
    return float(differences.mean()), _standard_error(differences)


def _standard_error(values: Sequence[bool] | Doubles) -> float:
    """Of their mean: as llama-perplexity's, by one task less than there are."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
