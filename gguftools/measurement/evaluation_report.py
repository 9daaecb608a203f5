"""Scores of benchmarks by llama-perplexity's definitions, and their report."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runtime.arrays import Doubles

from ..writing.report import Report
from .tasks.task import Task

NORMAL_95 = 1.95996398454


@dataclass(frozen=True)
class Score(Report):
    """The score of a file in one benchmark; shares are of 1.

    low, high: Wilson's interval, which holds the true score in 95 of 100 cases. chance: the score of guessing.
    difference ± difference_standard_error: from the first file, task by task; None for that file. chosen: the chosen
    answer of each task, from 0; scores: mean log(probability) of each answer, None if none of its tokens count.
    """

    tasks: int
    correct: int
    score: float
    standard_error: float
    low: float
    high: float
    chance: float
    difference: float | None
    difference_standard_error: float | None
    chosen: list[int]
    right: list[bool]
    scores: list[list[float | None]]
    seconds: float


@dataclass(frozen=True)
class FileScores(Report):
    """The scores of one file by name of the benchmark."""

    file: str
    tests: dict[str, Score]


@dataclass(frozen=True)
class TestReport(Report):
    """One benchmark: its file of tasks, the number of tasks there, and how many were drawn."""

    name: str
    title: str
    file: str
    available: int
    tasks: int


@dataclass(frozen=True)
class EvaluationReport(Report):
    """The benchmarks, and the scores of files. warnings: lines that are no tasks, and tasks longer than a model's
    context. device: the name of the device that computed them, "" for the processor.
    """

    n_ctx: int
    seed: int
    precision: str
    products: str
    tests: list[TestReport]
    files: list[FileScores]
    warnings: list[str]
    device: str = ""


def score_of(tasks: Sequence[Task], scores: list[list[float]], base: Score | None, seconds: float) -> Score:
    """Return the score of a file in one benchmark. scores: of each answer of each task, NaN if none of its tokens
    count. base: the first file's.
    """
    right = list(map(is_right, tasks, scores))
    correct = sum(right)
    low, high = wilson(correct, len(tasks))
    difference, error = (None, None) if base is None else paired(right, base.right)
    return Score(
        tasks=len(tasks),
        correct=correct,
        score=correct / len(tasks),
        standard_error=_standard_error(right),
        low=low,
        high=high,
        chance=len(tasks) / sum(len(task.texts) for task in tasks),
        difference=difference,
        difference_standard_error=error,
        chosen=list(map(_best, tasks, scores)),
        right=right,
        scores=[[None if math.isnan(value) else value for value in each] for each in scores],
        seconds=seconds,
    )


def is_right(task: Task, scores: Sequence[float]) -> bool:
    return _best(task, scores) in task.right


def _best(task: Task, scores: Sequence[float]) -> int:
    """Return the answer with the highest score: of equal ones the first or, in Winogrande, the last."""
    if task.bases:
        return 0 if scores[0] > scores[1] else 1
    return max(range(len(scores)), key=lambda i: scores[i])


def wilson(correct: int, tasks: int) -> tuple[float, float]:
    """Return Wilson's interval (1927), which holds the true share in 95 of 100 cases."""
    share, z = correct / tasks, NORMAL_95**2 / tasks
    half = z * math.sqrt(tasks * (4 * share * (1 - share) + z)) / (2 * NORMAL_95)
    return (share + z / 2 - half) / (1 + z), (share + z / 2 + half) / (1 + z)


def paired(right: Sequence[bool], base: Sequence[bool]) -> tuple[float, float]:
    """Return the difference between two shares of right answers, and its standard error."""
    differences = np.asarray(right, np.float64) - np.asarray(base, np.float64)
    return float(differences.mean()), _standard_error(differences)


def _standard_error(values: Sequence[bool] | Doubles) -> float:
    """Return the standard error of their mean with n - 1 as llama-perplexity does."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
