"""Make all that is published of a model, in one folder.

Quantized files, imatrix, mmproj, KL divergence, checksums, model card. Run it again to continue an interrupted run;
what is done stays. FOLDER/release.toml has the settings.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

if TYPE_CHECKING:
    from ...publish.release.release import ReleaseReport
    from ...publish.release.settings import ReleaseOptions

EXAMPLES = (
    "gguftools release checkpoint/ -o Model-GGUF/",
    "gguftools release hf://org/model --ladder full --repository me/Model-GGUF",
    "gguftools release checkpoint/ -o Model-GGUF/ --ladder small --dry-run",
    "gguftools release --settings Model-GGUF/release.toml -o Model-GGUF/",
)
GROUP = "Publish"
PANELS = {
    "Files": ("ladder", "also", "target_size", "name", "split_max_size", "no_manifests"),
    "Importance matrix and GPTQ": ("imatrix", "imatrix_chunks", "gptq"),
    "Measurement": ("texts", "chunks"),
    "Model card": ("original", "repository", "quantized_by"),
}


@dataclass(frozen=True)
class Settings:
    """What is made; a value that is given replaces that of --settings."""

    ladder: Annotated[
        str | None, Option(metavar="NAME", help="Recipes to make: small, standard (default), full, or none.")
    ] = None
    also: Annotated[list[str] | None, Option(metavar="RECIPE", help="Also make this recipe, or recipe file.")] = None
    target_size: Annotated[list[Any] | None, "Search for the best recipe of this file size, e.g. 4.2G."] = None
    name: Annotated[str | None, "Name of the model in file names (default: the source's)."] = None
    split_max_size: int | None = None
    no_manifests: Annotated[bool, "Skip manifests and attestations."] = False
    imatrix: Annotated[
        str | None,
        Option(metavar="FILE", help="Importance matrix (GGUF or legacy .dat): or a text to measure one on, or none."),
    ] = None
    imatrix_chunks: Annotated[int | None, Option(min=1, help="Chunks of each text for the matrix (default 128).")] = (
        None
    )
    gptq: Annotated[list[str] | None, "Calibration text for GPTQ."] = None
    texts: list[str] | None = None
    chunks: int | None = None
    original: Annotated[
        str | None, Option(metavar="ORG/MODEL", help="Model on the Hub that the files were made from.")
    ] = None
    repository: Annotated[
        str | None, Option(metavar="ORG/NAME", help="Repository on the Hub that the files are for.")
    ] = None
    quantized_by: Annotated[str | None, Option(metavar="NAME", help="Who made the files.")] = None
    keep_source: Annotated[bool, "Leave what was fetched from the Hub."] = False
    work: Annotated[
        str | None, Option(metavar="FOLDER", help="Folder for what is fetched from the Hub (default: OUTPUT).")
    ] = None
    only: Annotated[
        list[str] | None,
        Option(metavar="PART", help="Make only mmproj, mtp, imatrix, quantize, measure, report, sums or card."),
    ] = None
    skip: Annotated[list[str] | None, Option(metavar="PART", help="Make all but this part.")] = None

    def given(self) -> dict[str, Any]:
        """Return the values that are given, by the names of the library."""
        from ..ui import usage

        values: dict[str, Any] = {name: value for name, value in vars(self).items() if value not in (None, False)}
        if empty := next((name for name, value in values.items() if value == ""), None):
            usage(f"--{empty.replace('_', '-')} is empty", "give a value, or leave it out")
        renamed = {"also": "recipes", "target_size": "target_sizes", "original": "base_model"}
        values = {renamed.get(name, name): value for name, value in values.items()}
        if values.pop("no_manifests", False):
            values["manifests"] = False
        if values.get("ladder") == "none":
            values["ladder"] = ""
        return values


def release(
    source: Annotated[
        str | None, Argument(help="Hugging Face folder, hf://ORG/MODEL[@REVISION], or an unquantized GGUF file.")
    ] = None,
    output: Annotated[str | None, "folder (default: NAME-GGUF)."] = None,
    *,
    settings: Settings,
    settings_file: Annotated[
        Path | None, Option("--settings", metavar="FILE", help="Settings (TOML), as release.toml of an earlier run.")
    ] = None,
    dry_run: bool = False,
    threads: int | None = None,
    json: bool = False,
) -> None:
    from ...publish.release.release import release as make
    from ...publish.release.settings import ReleaseOptions, read_settings, settings_of
    from ..ui import part_progress, print_result, usage

    named, options = (None, ReleaseOptions()) if settings_file is None else read_settings(settings_file)
    options = settings_of(settings.given(), options)
    source = source or named
    if source is None:
        usage("a SOURCE is needed", "name a checkpoint, or --settings FILE of an earlier run")
    if output == "" or source == "":
        usage("an empty text names no folder", "name one")
    name = Path(source.rstrip("/").partition("@")[0]).name.removesuffix(".gguf")
    folder = Path(f"{name}-GGUF" if output is None else output)
    with part_progress() as progress:
        report = make(source, folder, options=options, dry_run=dry_run, threads=threads, progress=progress)
    if not print_result(report, json, [report.folder]):
        _print(report, options)


def _print(report: "ReleaseReport", options: "ReleaseOptions") -> None:
    from ..ui import print_line, print_table, size

    if report.dry_run:
        rows = [(each["file"], each["recipe"], size(each["size_bytes"])) for each in report.plan["files"]]
        print_table(None, ("file", "recipe", "size"), rows, "llr")
        more = [*report.plan["parts"], *(each for each in ("imatrix", "measure", "card") if options.does(each))]
        print_line(f"and {', '.join(more)}")
        _print_estimate(report)
        return
    for name in report.made:
        print_line(f"{name}: made")
    if not report.made:
        print_line(f"{report.folder}: up to date")


def _print_estimate(report: "ReleaseReport") -> None:
    from ..ui import print_line, size

    if (expected := report.estimate) is None:
        return
    enough = "enough" if report.free_bytes >= expected.disk_bytes else "NOT enough"
    fetched = f", {size(expected.fetch_bytes)} of them fetched" if expected.fetch_bytes else ""
    print_line(f"disk: {size(expected.disk_bytes)} needed{fetched}; {size(report.free_bytes)} free: {enough}")
    parts = ", ".join(f"{name} {_lasting(seconds)}" for name, seconds in expected.seconds.items())
    total = _lasting(sum(expected.seconds.values()))
    print_line(f"time: about {total}, estimated from a short measurement of this machine ({parts})")


def _lasting(seconds: float) -> str:
    """Return a rough time."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
