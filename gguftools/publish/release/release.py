"""Make a release: from a checkpoint to a folder of files, measured, described and checked."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from quants.arguments import PathLike, as_path
from quants.errors import FileError, OptionError

from ...io.atomic import MORE_SPACE
from ...io.folders import free_for
from ...measurement.texts import named_texts
from ...models.model import open
from ...provenance.hashing import file_digest
from ...quantization.imatrix import read_imatrix
from ...writing.report import Report
from ..cards.card import card_text
from ..cards.folder import CARD, RESULTS, SETTINGS, SUMS
from ..cards.ollama import OLLAMA_FILES
from ..names import PublishedName
from .estimates import Estimate, estimate
from .journal import key_of, only_run, open_journal
from .plan import is_there, plan_release
from .results import PAGE, copied, measure_key, measured, page, recipe_texts, settings_file, summed, sums, written_card
from .run import Progress, Run
from .settings import NO_IMATRIX, OWN_TEXTS, ReleaseOptions, is_matrix, is_on_hub
from .weights import encoders, importance, matrix_key, quantized


@dataclass(frozen=True)
class ReleaseReport(Report):
    """What `release` did. plan: files and bytes; made: parts made now; kept: parts that were done before.

    estimate: of a plan, the seconds of each part on this machine, and the bytes that the disk needs. files: name →
    bytes of all files that it made in the folder; free_bytes: on its disk.
    """

    folder: Path
    plan: Mapping[str, Any]
    dry_run: bool
    free_bytes: int
    made: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    estimate: Estimate | None = None


def release(
    source: PathLike,
    output: PathLike,
    *,
    options: ReleaseOptions = ReleaseOptions(),
    dry_run: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> ReleaseReport:
    """Make all that is published of a model: quantized files, encoders, importance matrix, figures, checksums, a card.

    source: a checkpoint's folder, hf://ORG/MODEL, which is fetched first, or an unquantized GGUF file. output: a
    folder; what an interrupted run left there is gone on with, and what is done stays. options: what is made, and how.
    dry_run: only plan. threads: default all processors. progress(part, done, of how many). Raises OptionError,
    FileError, ModelError, VocabularyError, FormatError, before any work if possible.
    """
    folder = as_path(output, "the output")
    _check_inputs(options)
    _check_place(str(source), options)
    if folder.resolve() == as_path(source, "the model").resolve():
        raise OptionError(f"{folder} is the source: a release needs a folder of its own", "name another output")
    plan = plan_release(open(source), folder, options)
    free = free_for(folder)
    if dry_run:
        expected = estimate(str(source), plan, options, threads)
        return ReleaseReport(folder, plan.as_dict(), True, free, warnings=plan.warnings, estimate=expected)
    if not plan.files:
        raise OptionError("no recipe is left to make", "; ".join(plan.warnings) or "name a ladder or recipes")
    folder.mkdir(parents=True, exist_ok=True)
    with only_run(folder):
        run = Run(str(source), plan, options, open_journal(folder), threads, progress or (lambda *_: None))
        _claim(run)
        _make(run)
        sizes = {name: (folder / name).stat().st_size for name in run.journal.digests()}
    warnings = list(dict.fromkeys(run.warnings))
    return ReleaseReport(folder, plan.as_dict(), False, free, run.made, run.kept, sizes, warnings)


def _check_inputs(options: ReleaseOptions) -> None:
    """Raise OptionError or FileError for a matrix or a text that cannot be read, before any work."""
    named = [(each.path, "the text") for each in named_texts([*options.texts])] if options.texts else []
    named += [(each.path, "the text") for each in named_texts([*options.gptq])] if options.gptq else []
    if options.imatrix not in (NO_IMATRIX, OWN_TEXTS):
        named.append((Path(options.imatrix), "the importance matrix, or a text to measure one on"))
    for path, what in named:
        if not path.is_file():
            raise FileError(f"{str(path)!r} is no file", f"name {what}")
    if is_matrix(options.imatrix):
        read_imatrix(options.imatrix)


def _check_place(source: str, options: ReleaseOptions) -> None:
    """Raise OptionError or FileError for a place of what is fetched that is none, or where nothing is fetched."""
    given = "`work`" if options.work else "`keep_source`" if options.keep_source else ""
    if given and not is_on_hub(source):
        raise OptionError(f"{given} has no effect: {source} is not fetched from the hub", f"leave out {given}")
    if options.work and Path(options.work).exists() and not Path(options.work).is_dir():
        raise FileError(f"{options.work} is no folder", "name a folder as `work`")


def _claim(run: Run) -> None:
    """Claim the names of the files. Raises FileError for one that is there and not ours, or too little room."""
    folder, plan = run.folder, run.plan
    card_text(folder / CARD)
    targets = [name for each in plan.files for name in (each.path, *each.texts)] + _other_names(run)
    own = set(run.journal.parts.get("names", {}).get("facts", {}).get("names", ()))
    if taken := next((each for each in targets if each not in own and is_there(folder / each)), None):
        raise FileError(f"{folder / taken} is there already", "name another folder, or move it away")
    needed = estimate(run.source, plan, run.settings, run.threads, only_disk=True).disk_bytes
    free = free_for(folder)
    if needed > free:
        raise FileError(f"{folder} has {free:,} bytes free; {needed:,} are needed", f"{MORE_SPACE}, or name less")
    run.journal.note("names", "", [], {"names": sorted(own.union(targets))})
    run.warnings += plan.warnings


def _other_names(run: Run) -> list[str]:
    """Return the names of all files that are made besides models."""
    name, settings = run.plan.name, run.settings
    of_parts: dict[str, Sequence[str]] = {
        **{part: (PublishedName(name, run.plan.outtype, part).file,) for part in run.plan.parts},
        "imatrix": (PublishedName(name, "", "imatrix").file,),
        "measure": (RESULTS,),
        "report": (PAGE,),
        "sums": (SUMS,),
        "card": OLLAMA_FILES,
    }
    recipes = [copy.name for copy in recipe_texts(run)]
    return [SETTINGS, *recipes, *(each for part, names in of_parts.items() if settings.does(part) for each in names)]


def _make(run: Run) -> None:
    """Make each part that is wanted and not done."""
    does = run.settings.does
    for part in run.plan.parts:
        if does(part):
            run.part(part, key_of(part, run.plan.key), partial(encoders, run, part))
    if does("imatrix") and run.settings.imatrix != NO_IMATRIX:
        run.part("imatrix", matrix_key(run), partial(importance, run))
    if does("quantize"):
        quantized(run)
    if does("measure"):
        run.part("measure", measure_key(run), partial(measured, run))
    if does("report") and (run.folder / RESULTS).is_file():
        run.part("report", key_of(run.digest(RESULTS)), partial(page, run))
    if texts := recipe_texts(run):
        run.part("recipes", key_of([file_digest(each) for each in texts.values()]), partial(copied, texts))
    settings_file(run)
    if does("sums"):
        run.part("sums", key_of(sorted(summed(run).items())), partial(sums, run))
    if does("card"):
        written_card(run)
    if is_on_hub(run.source) and not run.settings.keep_source:
        shutil.rmtree(run.copy, ignore_errors=True)
