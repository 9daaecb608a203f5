"""Figures of benchmarks by llama-perplexity's definitions: chosen answers, intervals, differences of files."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .evaluation_report import Score
from .tasks.task import Task

NORMAL_95 = 1.95996398454

Doubles = NDArray[np.float64]


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
