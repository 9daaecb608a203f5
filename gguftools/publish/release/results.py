"""Measure the files of a release, and write what says how they are: figures, a page, checksums, the card."""

import json
from collections.abc import Mapping
from pathlib import Path

from archs.bounded_files import RULES, read_text

from ...io.atomic import atomic_output
from ...measurement.divergence import divergence
from ...measurement.options import DivergenceOptions
from ...provenance.hashing import file_digest
from ..cards.card import CardOptions, card
from ..cards.folder import RESULTS, SETTINGS, SUMS
from ..report.results_report import report as report_of
from .journal import key_of
from .local_paths import LOCAL, published
from .run import Run
from .settings import is_on_hub

PAGE, RECORD = "report.html", "divergence.record"


def measure_key(run: Run) -> str:
    """Return what decides the figures."""
    digests = [run.digest(each.relative_to(run.folder).as_posix()) for each in run.models()]
    return key_of(run.plan.key, digests, run.settings.chunks, [file_digest(each.path) for each in run.texts()])


def measured(run: Run) -> list[Path]:
    """Measure all files in one pass of the original; write the figures without names of local folders."""
    record = run.journal.work / RECORD
    report = divergence(
        run.model,
        *run.models(),
        text=run.texts(),
        chunks=run.settings.chunks,
        threads=run.threads,
        options=DivergenceOptions(record=record, keep_record=True),
        progress=run.shown("measure"),
    )
    data = report.as_dict()
    data["base"] = Path(data["base"]).name
    for each in data["files"]:
        each["file"] = Path(each["file"]).relative_to(run.folder).as_posix()
    for text in data["texts"]:
        text["file"] = None if text["file"] is None else Path(text["file"]).name
    with atomic_output(run.folder / RESULTS, "w", True) as file:
        file.write(json.dumps(data, indent=1) + "\n")
    record.unlink(missing_ok=True)
    return [run.folder / RESULTS]


def page(run: Run) -> list[Path]:
    """Write the page of the figures."""
    report_of(run.folder / RESULTS, html=run.folder / PAGE, overwrite=True)
    return [run.folder / PAGE]


def summed(run: Run) -> dict[str, str]:
    """Return the files that have checksums, and these."""
    return {name: digest for name, digest in run.journal.digests().items() if name not in (SUMS, SETTINGS)}


def sums(run: Run) -> list[Path]:
    """Write SHA256SUMS."""
    with atomic_output(run.folder / SUMS, "w", True) as file:
        file.writelines(f"{digest}  {name}\n" for name, digest in sorted(summed(run).items()))
    return [run.folder / SUMS]


def recipe_texts(run: Run) -> dict[Path, Path]:
    """Return where the texts of recipes are published → where they are, without those that are in the folder."""
    texts = {run.folder / Path(each).name: Path(each) for each in run.settings.recipes if Path(each).is_file()}
    return {copy: text for copy, text in texts.items() if copy.resolve() != text.resolve()}


def copied(texts: Mapping[Path, Path]) -> list[Path]:
    """Copy small files. texts: copy → original."""
    for copy, text in texts.items():
        with atomic_output(copy, "w", True) as file:
            file.write(read_text(text, RULES))
    return list(texts)


def settings_file(run: Run) -> None:
    """Write the settings without names of local folders, and these where only this machine sees them.

    A run of some parts only leaves the settings that the others were made by.
    """
    if run.settings.only and (run.folder / SETTINGS).is_file():
        return
    shown = published(run.source, run.settings, run.plan)
    for path, text in ((run.folder / SETTINGS, shown.toml), (run.journal.work / LOCAL, json.dumps(shown.local))):
        if not path.is_file() or path.read_bytes() != text.encode():
            with atomic_output(path, "w", True) as file:
                file.write(text)


def written_card(run: Run) -> None:
    """Write the model card, or bring its blocks up to date."""
    given = run.settings
    base = given.base_model
    if not base and is_on_hub(run.source):
        base = run.source.removeprefix("hf://").partition("@")[0]
    options = CardOptions(base or None, given.repository or None, given.quantized_by or None, overwrite=True)
    written = card(run.folder, options=options)
    (run.made if written.files else run.kept).append("card")
    run.warnings += written.warnings
