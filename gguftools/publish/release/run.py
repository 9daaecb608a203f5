"""Hold one release in the making: what it is made of, and which parts are done."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from quants.arguments import PathLike

from ...measurement.texts import NamedText, default_texts, named_texts
from ...models.model import Model, open
from ...provenance.hashing import file_digest
from ...provenance.manifest import manifest_path
from ..hub.fetching import fetch
from ..names import PublishedName
from .journal import WORK, Journal
from .plan import PlannedFile, ReleasePlan
from .settings import NO_IMATRIX, ReleaseOptions, is_on_hub

STATEMENT = ".intoto.json"
Progress = Callable[[str, int, int], None]  # part, done, of how many


@dataclass
class Run:
    """Hold one run. made, kept: parts that were made, or done before."""

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

    @property
    def copy(self) -> Path:
        """Return the folder for what is fetched from the hub."""
        return source_copy(self.plan, self.settings)

    @cached_property
    def local(self) -> PathLike:
        """Return the source; of one on the hub a copy, fetched when a part first needs it."""
        if not is_on_hub(self.source):
            return self.source
        fetch(self.source, self.copy, progress=self.shown("fetch"))
        return self.copy

    @cached_property
    def model(self) -> Model:
        """Return the model whose weights are read and run."""
        return self.plan.model if self.local == self.source else open(self.local)

    @property
    def matrix_path(self) -> Path:
        return self.folder / PublishedName(self.plan.name, "", "imatrix").file

    @property
    def matrix(self) -> Path | None:
        """Return the importance matrix that files are made with."""
        return self.matrix_path if self.settings.imatrix != NO_IMATRIX and self.matrix_path.is_file() else None

    def texts(self) -> list[NamedText]:
        """Return the texts to measure divergence on."""
        return named_texts(list(self.settings.texts)) if self.settings.texts else default_texts()

    def part(self, name: str, key: str, make: Callable[[], Sequence[Path]]) -> None:
        """Make a part, unless it is done."""
        if self.journal.is_done(name, key):
            self.kept.append(name)
            return
        self.progress(name, 0, 1)
        self.journal.note(name, key, make())
        self.progress(name, 1, 1)
        self.made.append(name)

    def shown(self, part: str) -> Callable[[int, int, Any], None]:
        """Return a function that shows the progress of a part."""
        return lambda done, total, _: self.progress(part, done, total)

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a file that was made; "" if there is none."""
        return self.journal.digests().get(name, "")

    def files_of(self, file: PlannedFile) -> list[Path]:
        """Return what was written for a file: its shards, its recipe, its manifest and the statement about it."""
        path = self.folder / file.path
        shards = [path] if path.is_file() else sorted(path.parent.glob(f"{path.stem}-*-of-*.gguf"))
        first = shards[0]
        more = [manifest_path(first), first.with_name(first.name + STATEMENT)] if self.settings.manifests else []
        return [*shards, *(self.folder / each for each in file.texts), *more]

    def models(self) -> list[Path]:
        """Return the files to measure: all that are made, the largest first."""
        made = [self.files_of(each)[0] for each in self.plan.files if each.path in self.journal.parts]
        return sorted(made, key=lambda path: -path.stat().st_size)


def source_copy(plan: ReleasePlan, settings: ReleaseOptions) -> Path:
    """Return the folder that a source on the hub is fetched to."""
    return (Path(settings.work) if settings.work else plan.folder) / WORK / plan.name


def contents(texts: Sequence[str]) -> list[str]:
    """Return the SHA-256 of each text, as given in the settings."""
    return [file_digest(each.path) for each in named_texts(list(texts))] if texts else []
