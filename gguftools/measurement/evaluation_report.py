"""The report of benchmarks, for each file and benchmark."""

from dataclasses import dataclass

from ..writing.report import Report


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
    context.
    """

    n_ctx: int
    seed: int
    precision: str
    products: str
    tests: list[TestReport]
    files: list[FileScores]
    warnings: list[str]
