"""What a measurement of right answers found, of each file and test."""

from dataclasses import dataclass

from ..writing.report import Report


@dataclass(frozen=True)
class Score(Report):
    """What a file reached in one test: shares of 1.

    low, high: Wilson's interval, which holds the true score in 95 of 100 cases. chance: what guessing reaches.
    difference ± difference_standard_error: to the first file, task by task, of which much is the same luck; None
    for that file.
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
    difference_standard_error: float | None
    chosen: list[int]
    right: list[bool]
    scores: list[list[float | None]]
    seconds: float


@dataclass(frozen=True)
class FileScores(Report):
    """Of one file: its scores by the test's name."""

    file: str
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
