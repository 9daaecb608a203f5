"""Make a release: from a checkpoint to a folder of files, measured, described and checked."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from quants.arguments import PathLike, as_path
from quants.errors import FileError, OptionError

from ...calibration.target import MIN_BITS, SearchOptions
from ...conversion.convert import convert
from ...conversion.quantize import quantize, recipe_path
from ...io.atomic import atomic_output, free_bytes
from ...io.naming import is_remote, is_stored_gguf
from ...lab.reproduction import attest
from ...measurement.divergence import divergence
from ...measurement.importance import imatrix
from ...measurement.options import DivergenceOptions, ImatrixOptions
from ...measurement.texts import NamedText, default_texts, named_texts
from ...models.model import Model, open
from ...provenance.manifest import manifest_path
from ...quantization.imatrix import read_imatrix
from ...quantization.options import QuantizeOptions
from ...writing.options import WriteOptions
from ...writing.report import Report
from ..cards.card import CardOptions, card, card_text
from ..cards.folder import CARD, RESULTS, SETTINGS, SUMS
from ..cards.ollama import OLLAMA_FILES
from ..hub.fetching import fetch
from ..names import PublishedName
from ..report.results_report import report as report_of
from .journal import Journal, key_of, open_journal
from .plan import PlannedFile, ReleasePlan, plan_release
from .settings import NO_IMATRIX, OWN_TEXTS, ReleaseOptions

MATRIX_SUFFIXES = (".gguf", ".dat", ".imatrix")
PAGE, STATEMENT, RECORD = "report.html", ".intoto.json", "divergence.record"
Progress = Callable[[str, int, int], None]  # part, done, of how many


@dataclass(frozen=True)
class ReleaseReport(Report):
    """What `release` did. plan: files and bytes; made: parts made now; kept: parts that were done before.

    files: name → bytes of all files that it made in the folder; free_bytes: on its disk.
    """

    folder: Path
    plan: Mapping[str, Any]
    dry_run: bool
    free_bytes: int
    made: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


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
    if folder.resolve() == as_path(source, "the model").resolve():
        raise OptionError(f"{folder} is the source: a release needs a folder of its own", "name another output")
    model = open(source)
    lowest = int(MIN_BITS / 8 * sum(tensor.size for tensor in model.tensors.values()))
    if odd := [each for each in options.target_sizes if not lowest <= each < model.nbytes]:
        what = f"a target of {odd[0]:,} bytes cannot be reached from a model of {model.nbytes:,}"
        raise OptionError(what, f"{lowest:,} bytes are {MIN_BITS:g} bits per weight, the lowest that is tried")
    plan = plan_release(model, folder, options)
    free = _free(folder)
    if dry_run:
        return ReleaseReport(folder, plan.as_dict(), True, free, warnings=plan.warnings)
    if not plan.files and not options.target_sizes:
        raise OptionError("no recipe is left to make", "; ".join(plan.warnings) or "name a ladder or recipes")
    folder.mkdir(parents=True, exist_ok=True)
    run = _Run(str(source), plan, options, open_journal(folder), threads, progress or (lambda *_: None))
    run.check()
    run.make()
    sizes = {name: (folder / name).stat().st_size for name in run.journal.digests()}
    return ReleaseReport(folder, plan.as_dict(), False, free, run.made, run.kept, sizes, run.warnings)


@dataclass
class _Run:
    """One run. made, kept: parts that were made, or done before."""

    source: str
    plan: ReleasePlan
    settings: ReleaseOptions
    journal: Journal
    threads: int | None
    progress: Progress
    made: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.plan.folder

    @cached_property
    def local(self) -> PathLike:
        """Return the source; of one on the hub a copy in the work folder, fetched when a part first needs it."""
        if not is_remote(self.source) or is_stored_gguf(self.source):
            return self.source
        copy = self.journal.work / self.plan.name
        fetch(self.source, copy, progress=self._shown("fetch"))
        return copy

    @cached_property
    def model(self) -> Model:
        """Return the model whose weights are read and run."""
        return self.plan.model if self.local == self.source else open(self.local)

    @property
    def matrix(self) -> Path | None:
        """Return the importance matrix that files are made with."""
        path = self.folder / PublishedName(self.plan.name, "", "imatrix").file
        return path if self.settings.imatrix != NO_IMATRIX and path.is_file() else None

    def check(self) -> None:
        """Claim the names of the files. Raises FileError for one that is there and not ours, or too little room."""
        card_text(self.folder / CARD)
        targets = [*(each.path for each in self.plan.files), *self._other_names()]
        own = set(self.journal.parts.get("names", {}).get("facts", {}).get("names", ()))
        if taken := next((each for each in targets if each not in own and (self.folder / each).exists()), None):
            raise FileError(f"{self.folder / taken} is there already", "name another folder, or move it away")
        missing = [each for each in self.plan.files if not (self.folder / each.path).exists()]
        needed, free = sum(each.nbytes for each in missing), _free(self.folder)
        if needed > free:
            raise FileError(f"{self.folder} has {free:,} bytes free; {needed:,} are needed", "free some, or name less")
        self.journal.note("names", "", [], {"names": sorted(own.union(targets))})
        self.warnings += self.plan.warnings

    def _other_names(self) -> list[str]:
        """Return the names of all other files that are made."""
        name, parts = self.plan.name, self.plan.parts
        of_parts: dict[str, Sequence[str]] = {
            **{part: (PublishedName(name, self.plan.outtype, part).file,) for part in parts},
            "imatrix": (PublishedName(name, "", "imatrix").file,),
            "measure": (RESULTS,),
            "report": (PAGE,),
            "sums": (SUMS,),
            "card": OLLAMA_FILES,
        }
        return [SETTINGS, *(each for part, names in of_parts.items() if self.settings.does(part) for each in names)]

    def make(self) -> None:
        """Make each part that is wanted and not done."""
        does = self.settings.does
        for part in self.plan.parts:
            if does(part):
                self._part(part, key_of(part, self.plan.key), partial(self._encoders, part))
        if does("imatrix") and self.settings.imatrix != NO_IMATRIX:
            self._part("imatrix", self._matrix_key(), self._importance)
        if does("quantize"):
            self._quantized()
            for size in self.settings.target_sizes:
                key = key_of(self.plan.key, size, [_content(each.path) for each in self._texts()])
                self._part(f"target {size}", key, partial(self._searched, size))
        if does("measure"):
            self._part("measure", self._measure_key(), self._measured)
        if does("report") and (self.folder / RESULTS).is_file():
            self._part("report", key_of(self._digest(RESULTS)), self._page)
        self._settings_file()
        if does("sums"):
            self._part("sums", key_of(sorted(self._summed().items())), self._sums)
        if does("card"):
            self._card()
        if not self.settings.keep_source:
            shutil.rmtree(self.journal.work / self.plan.name, ignore_errors=True)

    def _part(self, name: str, key: str, make: Callable[[], Sequence[Path]]) -> None:
        if self.journal.is_done(name, key):
            self.kept.append(name)
            return
        self.progress(name, 0, 1)
        self.journal.note(name, key, make())
        self.progress(name, 1, 1)
        self.made.append(name)

    def _shown(self, part: str) -> Callable[[int, int, Any], None]:
        return lambda done, total, _: self.progress(part, done, total)

    def _encoders(self, part: Any) -> list[Path]:
        path = self.folder / PublishedName(self.plan.name, self.plan.outtype, part).file
        write = WriteOptions(threads=self.threads, progress=self._shown(part), resume=True, overwrite=True)
        report = convert(self.local, path, self.plan.outtype, part=part, write=write)
        self.warnings += report.warnings
        return [path]

    def _texts(self) -> list[NamedText]:
        return named_texts(list(self.settings.texts)) if self.settings.texts else default_texts()

    def _matrix_texts(self) -> list[Path]:
        return [each.path for each in default_texts()] if self.settings.imatrix == OWN_TEXTS else [self._given_matrix]

    @property
    def _given_matrix(self) -> Path:
        path = Path(self.settings.imatrix)
        if not path.is_file():
            raise FileError(f"{path} is no file", "`imatrix` is a matrix, or a text to measure one on")
        return path

    def _is_matrix(self) -> bool:
        return self.settings.imatrix != OWN_TEXTS and self._given_matrix.suffix in MATRIX_SUFFIXES

    def _matrix_key(self) -> str:
        files = [self._given_matrix] if self._is_matrix() else self._matrix_texts()
        return key_of(self.plan.key, self.settings.imatrix_chunks, [_content(each) for each in files])

    def _importance(self) -> list[Path]:
        path = self.folder / PublishedName(self.plan.name, "", "imatrix").file
        if self._is_matrix():
            with atomic_output(path, "wb", True) as file:
                shutil.copyfileobj(self._given_matrix.open("rb"), file)
            return [path]
        options = ImatrixOptions(resume=True, overwrite=True)
        imatrix(
            self.model,
            self._matrix_texts(),
            path,
            chunks=self.settings.imatrix_chunks,
            threads=self.threads,
            options=options,
            progress=self._shown("imatrix"),
        )
        return [path]

    def _quantized(self) -> None:
        """Write the files that are missing, in one pass over the weights; sharded ones in another."""
        matrix = self.matrix
        of_matrix = None if matrix is None else self._digest(matrix.name)
        gptq = [_content(each.path) for each in named_texts(list(self.settings.gptq))] if self.settings.gptq else []
        missing: list[tuple[PlannedFile, str]] = []
        for file in self.plan.files:
            key = key_of(self.plan.key, file.recipe, of_matrix, gptq, file.sharded and self.settings.split_max_size)
            if self.journal.is_done(file.path, key):
                self.kept.append(file.path)
            else:
                missing.append((file, key))
        for sharded in (False, True):
            if group := [each for each in missing if each[0].sharded == sharded]:
                self._write([file for file, _ in group], sharded)
                for file, key in group:
                    self.journal.note(file.path, key, self._files_of(file))
                    self.made.append(file.path)

    def _write(self, files: Sequence[PlannedFile], sharded: bool) -> None:
        paths = [self.folder / each.path for each in files]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        report = quantize(
            self.local,
            [each.recipe for each in files],
            paths,
            imatrix=self.matrix,
            gptq=list(self.settings.gptq) or None,
            options=QuantizeOptions(
                max_size=self.settings.split_max_size if sharded else None, allow_missing_experts=True
            ),
            write=WriteOptions(
                threads=self.threads,
                progress=self._shown("quantize"),
                resume=True,
                overwrite=True,
                manifest=self.settings.manifests,
            ),
        )
        self.warnings += report.warnings
        if self.settings.manifests:
            for output in report.outputs:
                attest(output.file, overwrite=True, threads=self.threads)

    def _searched(self, size: int) -> list[Path]:
        """Write a file of a recipe that is searched for, named after the format that most of it is in."""
        path = self.journal.work / f"target-{size}.gguf"
        report = quantize(
            self.local,
            output=path,
            search=SearchOptions(target_size=size),
            write=WriteOptions(threads=self.threads, progress=self._shown("target"), resume=True, overwrite=True),
        )
        self.warnings += report.warnings
        main = next(name for name in report.outputs[0].by_format() if name not in ("F32", "F16", "BF16"))
        name = f"{self.plan.name}-{size / 1e9:.3g}GB-{main}"
        for written, ending in ((path, ".gguf"), (recipe_path(path), "-recipe.txt")):
            written.replace(self.folder / f"{name}{ending}")
        return [self.folder / f"{name}.gguf", self.folder / f"{name}-recipe.txt"]

    def _files_of(self, file: PlannedFile) -> list[Path]:
        """Return what was written for a file: its shards, its manifest and the statement about it."""
        path = self.folder / file.path
        shards = [path] if path.is_file() else sorted(path.parent.glob(f"{path.stem}-*-of-*.gguf"))
        first = shards[0]
        more = [manifest_path(first), first.with_name(first.name + STATEMENT)] if self.settings.manifests else []
        return [*shards, *more]

    def _models(self) -> list[Path]:
        """Return the files to measure: all that are made, the largest first."""
        made = [self._files_of(each)[0] for each in self.plan.files if each.path in self.journal.parts]
        for size in self.settings.target_sizes:
            files = self.journal.parts.get(f"target {size}", {}).get("files", ())
            made += [self.folder / name for name in files if name.endswith(".gguf")]
        return sorted(made, key=lambda path: -path.stat().st_size)

    def _measure_key(self) -> str:
        digests = [self._digest(each.relative_to(self.folder).as_posix()) for each in self._models()]
        return key_of(self.plan.key, digests, self.settings.chunks, [_content(each.path) for each in self._texts()])

    def _measured(self) -> list[Path]:
        record = self.journal.work / RECORD
        measured = divergence(
            self.model,
            *self._models(),
            text=self._texts(),
            chunks=self.settings.chunks,
            threads=self.threads,
            options=DivergenceOptions(record=record, keep_record=True),
            progress=self._shown("measure"),
        )
        data = measured.as_dict()
        data["base"] = Path(data["base"]).name
        for each in data["files"]:
            each["file"] = Path(each["file"]).relative_to(self.folder).as_posix()
        for text in data["texts"]:
            text["file"] = None if text["file"] is None else Path(text["file"]).name
        with atomic_output(self.folder / RESULTS, "w", True) as file:
            file.write(json.dumps(data, indent=1) + "\n")
        record.unlink(missing_ok=True)
        return [self.folder / RESULTS]

    def _page(self) -> list[Path]:
        report_of(self.folder / RESULTS, html=self.folder / PAGE, overwrite=True)
        return [self.folder / PAGE]

    def _digest(self, name: str) -> str:
        return self.journal.digests().get(name, "")

    def _summed(self) -> dict[str, str]:
        return {name: digest for name, digest in self.journal.digests().items() if name not in (SUMS, SETTINGS)}

    def _sums(self) -> list[Path]:
        lines = [f"{digest}  {name}\n" for name, digest in sorted(self._summed().items())]
        with atomic_output(self.folder / SUMS, "w", True) as file:
            file.writelines(lines)
        return [self.folder / SUMS]

    def _settings_file(self) -> None:
        """Write the settings, unless the file has them already."""
        path, text = self.folder / SETTINGS, self.settings.toml(self.source)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            with atomic_output(path, "w", True) as file:
                file.write(text)

    def _card(self) -> None:
        given = self.settings
        base = given.base_model or (self.source.removeprefix("hf://").partition("@")[0] if _is_hub(self.source) else "")
        options = CardOptions(base or None, given.repository or None, given.quantized_by or None, overwrite=True)
        written = card(self.folder, options=options)
        (self.made if written.files else self.kept).append("card")
        self.warnings += written.warnings


def _check_inputs(options: ReleaseOptions) -> None:
    """Raise OptionError or FileError for a matrix or a text that cannot be read, before any work."""
    named = [(each.path, "the text") for each in named_texts([*options.texts])] if options.texts else []
    named += [(each.path, "the text") for each in named_texts([*options.gptq])] if options.gptq else []
    if options.imatrix not in (NO_IMATRIX, OWN_TEXTS):
        named.append((Path(options.imatrix), "the importance matrix, or a text to measure one on"))
    for path, what in named:
        if not path.is_file():
            raise FileError(f"{str(path)!r} is no file", f"name {what}")
        if path.suffix in MATRIX_SUFFIXES:
            read_imatrix(path)


def _free(folder: Path) -> int:
    """Return the bytes that are free where a folder is or will be."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())
    return free_bytes(there / "file")


def _is_hub(source: str) -> bool:
    return source.startswith("hf://") and source.count("/") == 3


def _content(path: Path) -> str:
    from ...provenance.hashing import file_digest

    return file_digest(path)
