"""Run all checks of a file, one after the other."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from quants.arguments import PathLike, as_count, as_path
from quants.errors import GgufToolsError, OptionError
from quants.spelling import did_you_mean, quote

from ...io.naming import is_remote
from ...models.contents import check_runs
from ...models.model import Model, opened, opened_gguf
from ...models.running import running_model
from ...writing.report import verdict_word
from ..validation import validate
from ..vocabulary_check import ERROR
from .checkpoint import Original
from .generation_checks import (
    END,
    PREDICTIONS,
    REPETITION,
    SPARSITY,
    check_end,
    check_predictions,
    check_repetition,
    check_sparsity,
    greedy_texts,
)
from .result import Check, judged, skipped
from .vectors import VECTORS, check_vectors
from .vocabulary import SPECIAL, TEMPLATE, TOKENS, check_special, check_template, check_tokens
from .weights import KEYS, WEIGHTS, check_keys, check_weights, check_zeros

FILE, RUNS = "file", "runs"
TOKENS_WRITTEN = 64
NEED_A_RUN = (PREDICTIONS, REPETITION, END, VECTORS, SPARSITY)
NAMES = (FILE, KEYS, WEIGHTS, TEMPLATE, TOKENS, SPECIAL, RUNS, *NEED_A_RUN)
NOTHING = "there is no original to compare with"
CheckProgress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class CheckReport:
    """The results of the checks, in order. against: path of the original."""

    path: Path
    against: Path | None
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Return whether no check failed."""
        return not any(each.verdict == "wrong" for each in self.checks)

    def __getitem__(self, name: str) -> Check:
        """Return the check of that name. Raises KeyError."""
        return {each.name: each for each in self.checks}[name]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        against = None if self.against is None else str(self.against)
        checks = [each.as_dict() for each in self.checks]
        return {"file": str(self.path), "against": against, "verdict": verdict_word(self.ok), "checks": checks}


def check(
    source: PathLike | Model,
    against: PathLike | Model | None = None,
    *,
    only: Collection[str] | None = None,
    n: int = TOKENS_WRITTEN,
    threads: int | None = None,
    progress: CheckProgress | None = None,
) -> CheckReport:
    """Check whether a file is sound and computes what its original does; faults are results, not exceptions.

    source: a GGUF file or a Model. against: the checkpoint's folder that it was made from, or another file of the same
    model. only: names of checks, None for all; "file" always runs. n: tokens of each generated text. threads: default
    all processors. progress(checks done, of how many, name of the next one). Raises OptionError for an unknown check,
    FileError for a file without a model or one that is changed meanwhile, ModelError for an image or video model, and
    FileError, ModelError, VocabularyError if `against` cannot be opened.
    """
    as_count(n, "n", 1)
    for name in only or ():
        if name not in NAMES:
            hint = did_you_mean(str(name), NAMES, f"there are {', '.join(NAMES)}")
            raise OptionError(f"there is no check {quote(name)}", hint)
    path = source.path if isinstance(source, Model) else as_path(source, "the file")
    original = None if against is None else original_of(against)
    file_verdict, model = check_file(source, threads)
    if model is not None:
        check_runs(model)
    checks = [file_verdict]
    every = {} if model is None else _steps(model, original, n, threads)
    steps = {name: look for name, look in every.items() if only is None or name in only}
    for done, (name, look) in enumerate(steps.items()):
        if progress is not None:
            progress(done, len(steps), name)
        failed = next((each for each in checks if each.name == RUNS and each.verdict == "wrong"), None)
        if failed is not None and name in NEED_A_RUN:
            checks.append(skipped(name, "the file does not run"))
            continue
        try:
            checks.append(look())
        except GgufToolsError as error:
            checks.append(judged(name, [str(error)], "", [error.hint] if error.hint else []))
    for each in (model, None if original is None else original.model):
        if each is not None:
            each.origin.reads.check_unchanged()
    return CheckReport(path, None if original is None else original.model.path, tuple(checks))


def original_of(against: PathLike | Model) -> Original:
    """Open the original. Raises FileError, ModelError, VocabularyError."""
    model = opened(against)
    local = not isinstance(against, Model) and not is_remote(against) and Path(against).is_dir()
    return Original(model, Path(str(against)) if local else None)


def check_file(source: PathLike | Model, threads: int | None) -> tuple[Check, Model | None]:
    """Return the result of `validate`, and the opened file; None for one that cannot be opened."""
    model: Model | None
    try:
        model = opened_gguf(source)  # once, as the file may be replaced in between
    except OptionError:
        raise
    except GgufToolsError:  # which `validate` reports
        model = None
    report = validate(source if model is None else model, threads=threads)
    errors = [f"{each.where}: {each.message}" for each in report.problems if each.severity == ERROR]
    lines = [f"{each.severity}: {each.where}: {each.message}" for each in report.problems if each.severity != ERROR]
    seen = f"{report.keys} keys and {report.tensors} tensors are sound"
    verdict = judged(FILE, errors, seen, lines)
    unreadable = any(each.where == "structure" for each in report.problems if each.severity == ERROR)
    return verdict, None if unreadable else model


def check_run(model: Model, threads: int | None) -> Check:
    """Check that the model runs on a few tokens. Raises ModelError if it does not."""
    running = running_model(model, threads)
    ids = [number % running.vocabulary_size for number in range(1, 5)]
    states = running.hidden_states([ids])
    return judged(RUNS, [], f"{model.architecture}, {len(running.network.layers)} layers, states of {states.shape[-1]}")


def _steps(model: Model, original: Original | None, n: int, threads: int | None) -> dict[str, Callable[[], Check]]:
    """Return the checks in order; texts are generated once, when the first check needs them."""
    written = cache(lambda: greedy_texts(model, n, threads))
    original_model = None if original is None else original.model

    def generates() -> bool:
        return not running_model(model, threads).architecture.block.hidden_states

    def needs_original(name: str) -> Callable[[], Check]:
        return lambda: skipped(name, NOTHING)

    def if_generates(name: str, look: Callable[[], Check]) -> Callable[[], Check]:
        return lambda: look() if generates() else skipped(name, "an encoder writes no text")

    return {
        KEYS: needs_original(KEYS) if original_model is None else partial(check_keys, model, original_model),
        WEIGHTS: partial(check_zeros, model)
        if original_model is None
        else partial(check_weights, model, original_model, threads),
        TEMPLATE: partial(check_template, model, original),
        TOKENS: partial(check_tokens, model, original),
        SPECIAL: partial(check_special, model, original),
        RUNS: partial(check_run, model, threads),
        PREDICTIONS: needs_original(PREDICTIONS)
        if original_model is None
        else if_generates(PREDICTIONS, lambda: check_predictions(model, original_model, written(), threads)),
        REPETITION: if_generates(REPETITION, lambda: check_repetition(model, original_model, written(), n, threads)),
        END: if_generates(END, lambda: check_end(model, threads)),
        VECTORS: partial(check_vectors, model, original, threads),
        SPARSITY: partial(check_sparsity, model, threads),
    }
