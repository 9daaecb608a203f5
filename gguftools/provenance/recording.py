"""Write a manifest: digests of an output's inputs, and of the output as read back from the disk."""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from quants.arguments import PathLike, as_path
from quants.errors import FileError, OptionError

from ..calibration.texts import Calibration
from ..io.atomic import NOTHING, InputFiles, atomic_output, check_target, when_published
from ..io.gguf.reader import GgufFile, open_gguf
from ..io.locks import held
from ..io.stores.path import StorePath, located
from ..io.stores.store import begin_upload, is_pinned, version_now
from ..models.model import Model, stored_file
from ..quantization.imatrix import ImportanceMatrix, read_imatrix
from ..quantization.options import Splitting
from ..quantization.recipes import Recipe
from ..writing.options import WriteOptions
from ..writing.report import OutputReport, QuantizeReport
from ..writing.row_blocks import Progress
from .encoders import builder, conversion_digest, encoder_digests
from .hashing import ByteRange, file_digest, range_digests, size_of
from .manifest import FileRecord, Manifest, MatrixRecord, SourceRecord, TensorRecord, manifest_path, public_name
from .parameters import Opening, Parameters

SMALL_SUFFIXES = (".json", ".jinja", ".md", ".model", ".tiktoken", ".txt")  # of a checkpoint: what is read but weights
TEMPLATES = "additional_chat_templates"


class Described(NamedTuple):
    """Describe the source of a run for its manifest: as the user named it, and how a checkpoint became a model."""

    source: PathLike
    opening: Opening = Opening()


def described_as(source: PathLike | Model, manifest: bool, dry_run: bool) -> Described | None:
    """Return the description of a source, or None without a manifest.

    Raises OptionError for a Model that no file holds as it is, and for a run that writes nothing.
    """
    if not manifest:
        return None
    if dry_run:
        raise OptionError("a run that writes nothing has no manifest", "leave out `manifest` or `dry_run`")
    if not isinstance(source, Model):
        return Described(source)
    if source.file is None:
        problem = f"the source of {source.path} is not recorded, so it cannot have a manifest"
        raise OptionError(problem, "leave out `manifest`, or name the file or folder itself")
    return Described(stored_file(source))


@dataclass(frozen=True)
class Recording:
    """Write the manifests of a run's outputs, which share a source.

    described, model: the source. parameters: all but the recipe. calibration: texts on which weights were encoded.
    """

    described: Described
    model: Model
    parameters: Parameters
    calibration: Calibration | None
    run: WriteOptions

    def check(self, outputs: Iterable[Path]) -> None:
        """Raise errors that refuse the manifests, before any work."""
        for output in outputs:
            if isinstance(output, StorePath):
                check_target(manifest_path(output), self.run.reads, self.run.overwrite)
                continue
            first = output.name.removesuffix(".gguf") + "-00001-of-*.gguf"
            manifests = sorted(output.parent.glob(manifest_path(Path(first)).name))
            for path in (manifest_path(output), *(manifests if self.parameters.splitting != Splitting() else ())):
                check_target(path, self.run.reads, self.run.overwrite)

    def write(
        self,
        report: QuantizeReport,
        recipes: Sequence[Recipe | str],
        imatrix: PathLike | ImportanceMatrix | None = None,
    ) -> QuantizeReport:
        """Write the manifest of each output when it has its name; return the report with their paths.

        recipes: of each output, or the type of a plain conversion. Raises FileError, also if another program replaced a
        file meanwhile.
        """
        when_published(partial(self._write_all, report.outputs, recipes, imatrix))
        outputs = tuple(replace(output, manifest=manifest_path(output.file)) for output in report.outputs)
        return replace(report, outputs=outputs)

    def _write_all(
        self,
        outputs: Sequence[OutputReport],
        recipes: Sequence[Recipe | str],
        imatrix: PathLike | ImportanceMatrix | None,
    ) -> None:
        run = self.run
        source = source_record(self.described.source, self.model, run.threads, run.progress)
        matrix = matrix_record(imatrix)
        texts = () if self.calibration is None else tuple(text_records(self.calibration))
        run.reads.check_unchanged()
        for output, recipe in zip(outputs, recipes, strict=True):
            parameters = replace(
                self.parameters, **({"outtype": recipe} if isinstance(recipe, str) else {"recipe": recipe})
            )
            with ExitStack() as stack:
                for each in (path for path in output.files if not isinstance(path, StorePath)):
                    stack.enter_context(held(each))  # so that no other run replaces what is described
                self._write(output, parameters, source, matrix, texts)

    def _write(
        self,
        output: OutputReport,
        parameters: Parameters,
        source: SourceRecord,
        matrix: MatrixRecord | None,
        texts: tuple[FileRecord, ...],
    ) -> None:
        file, path = open_gguf(output.file), manifest_path(output.file)
        wanted = {each.name: (each.shape, each.format) for each in output.tensors}
        if {name: (each.shape, each.format.name) for name, each in file.tensors.items()} != wanted:
            raise FileError(f"{output.file} was replaced by another program meanwhile", "it has no manifest")
        fed = frozenset(each.name for each in output.tensors if each.feedback is not None)
        files, tensors = stored_records(file, self.run.threads, self.run.progress, fed)
        converter = conversion_digest() if self.model.file is None else None
        encoders = encoder_digests(each.format.name for each in file.tensors.values() if not each.format.dialect)
        manifest = Manifest(builder(), encoders, converter, source, parameters.as_dict(), files, tensors, matrix, texts)
        reads = replace(self.run.reads, states={**self.run.reads.states, **file.states})
        written_whole(path, manifest.text(), self.run.overwrite, reads)


def written_whole(path: Path, text: str, overwrite: bool = False, reads: InputFiles = NOTHING) -> None:
    """Write a small file, or an object in a store, which appears complete or not at all. Raises FileError."""
    if not isinstance(path, StorePath):
        with atomic_output(path, "w", overwrite, reads) as file:
            file.write(text)
        return
    check_target(path, reads, overwrite)
    reads.check_unchanged()
    data, before = memoryview(text.encode()), version_now(path)
    upload = begin_upload(path, len(data), "", before and before[1], False)
    try:
        for number, start in enumerate(range(0, len(data), upload.part_bytes)):
            upload.put(number, data[start : start + upload.part_bytes])
        upload.commit()
    except BaseException:
        upload.abandon(keep=False)
        raise


def stored_records(
    file: GgufFile, threads: int | None = None, progress: Progress | None = None, fed: frozenset[str] = frozenset()
) -> tuple[tuple[FileRecord, ...], tuple[TensorRecord, ...]]:
    """Return digests of a file, or a split set, and of each tensor's bytes. Raises FileError.

    fed: tensors encoded on calibration texts.
    """
    whole = [ByteRange(part.path, 0, part.file_size, part.path.name) for part in file.parts]
    tensors = [(number, name) for number, part in enumerate(file.parts) for name in part.tensors]
    ranges = [tensor_range(file, number, name) for number, name in tensors]
    digests = range_digests([*whole, *ranges], threads, progress)
    files = tuple(
        FileRecord(part.path.name, part.file_size, digest) for part, digest in zip(file.parts, digests, strict=False)
    )
    records = []
    for (number, name), each, digest in zip(tensors, ranges, digests[len(whole) :], strict=True):
        tensor = file.parts[number].tensors[name]
        records.append(
            TensorRecord(
                name, number, each.begin, each.end - each.begin, tensor.format.name, tensor.shape, digest, name in fed
            )
        )
    return files, tuple(records)


def tensor_range(file: GgufFile, number: int, name: str) -> ByteRange:
    """Return the byte range of a tensor in a shard."""
    part = file.parts[number]
    begin = part.offsets[name]
    return ByteRange(part.path, begin, begin + part.tensors[name].nbytes, name)


def source_record(
    source: PathLike,
    model: Model,
    threads: int | None = None,
    progress: Progress | None = None,
    largest: int | None = None,
) -> SourceRecord:
    """Return the files of a model, with digests; largest: files with more bytes have none. Raises FileError."""
    name = public_name(source)
    if is_pinned(located(source)) and model.file is None:
        from ..io.checkpoint.remote import listed_files

        given, commit = str(source), next((made[1] for made in model.origin.recorded if len(made) == 2), "")
        files = tuple(FileRecord(*each) for each in listed_files(given, commit))
        return SourceRecord("hub", name.rstrip("/"), files, commit)
    if isinstance(located(source), StorePath):
        files = tuple(FileRecord(path.name, size_of(path)) for path in model.files)
        return SourceRecord("remote", name, tuple(sorted(files, key=lambda file: file.name)))
    if model.file is not None:
        paths, source_type = [part.path for part in model.file.parts], "gguf"
    else:
        small = _small_files(model.path) if model.origin.candidates is None else []  # image models have none
        paths, source_type = [*model.files, *small], "checkpoint"
    ranges = [ByteRange(path, 0, size_of(path), path.name) for path in paths]
    hashed = [each for each in ranges if largest is None or each.end <= largest]
    digests = dict(zip((each.path for each in hashed), range_digests(hashed, threads, progress), strict=True))
    records = (FileRecord(_name_in(each.path, model.path), each.end, digests.get(each.path)) for each in ranges)
    return SourceRecord(source_type, name, tuple(sorted(records, key=lambda file: file.name)))


def _small_files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint's folder that decide keys: configuration, tokenizer, templates, model card."""
    if not folder.is_dir():  # an image model's weight file
        return []
    files = [path for path in folder.iterdir() if path.suffix in SMALL_SUFFIXES and path.is_file()]
    more = folder / TEMPLATES
    return files + ([path for path in more.iterdir() if path.suffix == ".jinja"] if more.is_dir() else [])


def _name_in(path: Path, folder: Path) -> str:
    return f"{TEMPLATES}/{path.name}" if path.parent == folder / TEMPLATES else path.name


def matrix_record(given: PathLike | ImportanceMatrix | None) -> MatrixRecord | None:
    """Record an importance matrix: its file, if it is one, and a digest of its entries. Raises FileError."""
    if given is None:
        return None
    if isinstance(given, ImportanceMatrix):
        return MatrixRecord(None, values_digest(given))
    path = Path(given)
    return MatrixRecord(FileRecord(path.name, size_of(path), file_digest(path)), values_digest(read_imatrix(path)))


def values_digest(matrix: ImportanceMatrix) -> str:
    """Return the SHA-256 of a matrix's entries, in any file."""
    digest = hashlib.sha256()
    for name, entry in sorted(matrix.entries.items()):
        digest.update(f"{name} {entry.sums.shape}\n".encode())
        for values in (entry.sums, entry.counts):
            digest.update(np.ascontiguousarray(values, "<f4").tobytes())
    return digest.hexdigest()


def text_records(calibration: Calibration) -> list[FileRecord]:
    """Record the texts on which weights were encoded, the package's included. Raises FileError."""
    paths = [text.path for text in calibration.all_texts]
    return [FileRecord(path.name, size_of(path), file_digest(path)) for path in paths]


def opened_file(file: PathLike) -> GgufFile:
    """Open the GGUF file that is named, or a set's shards, also in a store. Raises OptionError, FileError."""
    as_path(file, "the file")
    return open_gguf(located(file))


def exists(path: Path) -> bool:
    """Return True if there is such a file, or object in a store. Raises FileError."""
    return version_now(path) is not None if isinstance(path, StorePath) else path.is_file()
