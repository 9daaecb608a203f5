"""Make a file's tensors again from its source and compare them byte by byte, by range reads, so that parts are cheap.

The manifest only says what to try: equal bytes are proof of their own. No path in it is opened, except a plain file or
folder next to the file itself.
"""

import hashlib
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quants.arguments import PathLike, as_count, thread_count
from quants.compilation import Codec, compile_codecs
from quants.errors import FileError, FormatError, OptionError
from quants.spelling import quote

from ...io.gguf.reader import GgufFile
from ...io.gguf.writer import RESERVE_KEY
from ...io.stores.path import located
from ...metadata.difference import compare_metadata
from ...models.model import Model, of_file, selected
from ...models.sources import pread_tensors
from ...provenance.encoders import conversion_digest, encoder_digest
from ...provenance.hashing import range_digests, reading
from ...provenance.manifest import Manifest, TensorRecord, is_plain, manifest_path, public_name, read_manifest
from ...provenance.parameters import Parameters, parameters_of
from ...provenance.recording import exists, matrix_record, opened_file, source_record, tensor_range, text_records
from ...quantization.imatrix import ImportanceMatrix, read_imatrix
from ...quantization.planning import Planned
from ...writing.items import Item, decode_rows, encode_rows, read_rows
from ...writing.options import WriteOptions, shown
from ...writing.pipeline import FilePlan
from ...writing.row_blocks import Progress, RowBlock, row_ranges, run_blocks
from .replaying import calibration_of, guessed_parameters, opened_again, planned_again
from .report import (
    ABSENT,
    ALTERED,
    BY_DIGEST,
    DIFFERS,
    EQUAL,
    EXTRA,
    MADE_OTHERWISE,
    OTHER,
    UNCHECKED,
    Place,
    Reproduction,
    Sample,
    TensorCheck,
    record_differences,
    source_differences,
)

SAMPLED_VALUES = 1 << 16  # of a range that is drawn
SMALL_FILE = 64 << 20  # bytes of a source's file whose digest is always compared
OF_MATRIX = "quantize.imatrix."
MATRIX_NAME = f"{OF_MATRIX}file"
GAP = 1 << 22  # bytes of padding read at a time


@dataclass(frozen=True)
class Selection:
    """Which of a file's tensors to make again.

    tensors: a regular expression for names. sample: number of ranges to draw at random, each of 65536 values or a row;
    an alteration in one of T ranges is missed with the probability 1 - sample / T. seed: random seed, None for a random
    one. Raises OptionError for invalid numbers.
    """

    tensors: str | None = None
    sample: int | None = None
    seed: int | None = None

    def __repr__(self) -> str:
        return shown(self)

    def __post_init__(self) -> None:
        if self.sample is not None:
            as_count(self.sample, "sample", 1)
        if self.seed is not None:
            as_count(self.seed, "seed", 0)


def reproduce(
    file: PathLike,
    source: PathLike | None = None,
    *,
    manifest: PathLike | None = None,
    imatrix: PathLike | None = None,
    gptq: PathLike | Sequence[PathLike] | None = None,
    compare: Selection = Selection(),
    threads: int | None = None,
    progress: Progress | None = None,
) -> Reproduction:
    """Make a file's tensors again from its source, and compare them and the keys with the stored ones.

    file: a GGUF file, or any shard of a set. source: what it was made from, as for `quantize` and `convert`; default
    the manifest's, if it is next to the file. manifest: default FILE.manifest.json, if it exists; without it the recipe
    is determined as `identify` does. imatrix: the importance matrix; default the manifest's, if it is next to the file.
    gptq: the texts that weights were encoded with, to encode them again; without them such weights are compared by
    digest. compare: which tensors, or a sample of rows; default all. threads: default all processors. progress(bytes
    done, of how many, tensor). Raises OptionError if source, matrix or texts are needed and missing, FileError,
    ModelError, VocabularyError for files that cannot be opened, FileError for an invalid manifest or one of another
    file.
    """
    tensors, drawn = compare.tensors, compare.sample
    begin = secrets.randbits(32) if compare.seed is None else compare.seed
    opened = opened_file(file)
    path = _manifest_of(opened, manifest)
    known = None if path is None else read_manifest(path)
    if known is not None:
        _check_same_file(opened, known, str(path))
    parameters = None if known is None else parameters_of(known.parameters, str(path))
    texts = None if gptq is None else [str(each) for each in (gptq if isinstance(gptq, (list, tuple)) else [gptq])]
    if parameters is not None and texts is not None:
        calibration_of(parameters, texts)
    named = known.source.name if known is not None else None
    given = source if source is not None else _next_to_file(opened, named, "the source", "source")
    opening = parameters or Parameters()
    model = opened_again(given, opening.opening, opening.outtype)
    weights = _matrix_path(opened, known, imatrix)
    if parameters is None:
        if texts is not None:
            raise OptionError("texts do not determine how weights were encoded", "name the manifest, too")
        parameters = guessed_parameters(model, of_file(opened), weights, threads, progress)
    matrix = None if weights is None else read_imatrix(weights)
    if matrix is None and known is not None and known.imatrix is not None:
        matrix = ImportanceMatrix(Path("nowhere"), {})  # measured by a search that did not save it
    comparison = _Comparison(
        opened, model, given, known, parameters, matrix, threads, progress, tensors is None and drawn is None
    )
    formats = {name: tensor.format.name for name, tensor in opened.tensors.items()}
    with tempfile.TemporaryDirectory(prefix="gguftools-") as folder:
        target = Path(folder, opened.parts[0].path.name if len(opened.parts) == 1 else "model.gguf")
        planning = planned_again(
            model, parameters, matrix, formats, target, texts, WriteOptions(threads, progress=progress)
        )
        with planning as planned:
            result = comparison.compared(planned, tensors, drawn, begin, texts is not None)
    causes = comparison.causes(result, weights, texts)
    comparison.check_unchanged()
    return replace(result, manifest=path, causes=tuple(causes), warnings=tuple(comparison.warnings))


def _manifest_of(file: GgufFile, given: PathLike | None) -> Path | None:
    if given is not None:
        return located(given)
    path = manifest_path(file.parts[0].path)
    return path if exists(path) else None


def _check_same_file(file: GgufFile, manifest: Manifest, path: str) -> None:
    """Raise FileError for a manifest that lists other tensors than a file has."""
    listed = {tensor.name for tensor in manifest.tensors}
    for name in file.tensors:
        if name not in listed:
            raise FileError(f"{path} is not of {file.path}: it does not list {quote(name)}")
    for each in manifest.tensors:
        if each.name not in file.tensors:
            raise FileError(f"{path} is not of {file.path}: it lists {quote(each.name)}, which is not there")


def _next_to_file(file: GgufFile, name: str | None, what: str, option: str) -> Path:
    """Return a file or folder of the manifest that is next to the file. Raises OptionError."""
    if name is None:
        raise OptionError(f"{file.path} does not name {what}", f"name {what} with `{option}`")
    path = file.parts[0].path.with_name(name) if is_plain(name) else None
    if path is None or path.is_symlink() or not path.exists():  # a link may lead anywhere
        raise OptionError(f"{what}, {quote(name)}, is not next to {file.path}", f"name it with `{option}`")
    return path


def _matrix_path(file: GgufFile, manifest: Manifest | None, given: PathLike | None) -> PathLike | None:
    if given is not None:
        if manifest is not None and manifest.imatrix is None:
            raise OptionError(f"{file.path} was made without an importance matrix", "leave out `imatrix`")
        return given
    if manifest is None or manifest.imatrix is None or manifest.imatrix.file is None:
        return None
    return _next_to_file(file, manifest.imatrix.file.name, "the importance matrix", "imatrix")


class _BlockResult(NamedTuple):
    """The result for a block of rows: number of differing blocks, first differing (row, byte), stored bytes, error."""

    blocks: int
    first: tuple[int, int] | None
    stored: NDArray[np.uint8]
    problem: str | None = None


@dataclass
class _Block(RowBlock):
    """Rows of a source's tensor, and how to encode them."""

    item: Item


@dataclass
class _Comparison:
    """The comparison of one file. whole: every byte and every digest is compared."""

    file: GgufFile
    model: Model
    source: PathLike
    manifest: Manifest | None
    parameters: Parameters
    matrix: ImportanceMatrix | None
    threads: int | None
    progress: Progress | None
    whole: bool

    def __post_init__(self) -> None:
        self.stored = pread_tensors(self.file)
        self.place = {name: i for i, part in enumerate(self.file.parts) for name in part.tensors}
        listed = self.manifest.tensors if self.manifest else ()
        self.records: Mapping[str, TensorRecord] = {each.name: each for each in listed}
        self.hashes: dict[str, str] = {}
        self.warnings: list[str] = []

    def check_unchanged(self) -> None:
        """Raise FileError if file or source were changed while they were compared."""
        replace(self.model.origin.reads, states={**self.model.origin.states, **self.file.states}).check_unchanged()

    def compared(self, planned: Planned, pattern: str | None, sample: int | None, seed: int, fed: bool) -> Reproduction:
        """Compare tensors, keys and layout with the plan. fed: weights that texts decide were encoded again."""
        plans = [replace(plan, metadata=self.with_own_names(plan)) for plan in planned.files]
        items = {item.tensor.name: item for plan in plans for item in plan.items}
        wanted = {tensor.name for tensor in selected(self.file.tensors, pattern)}
        checks: dict[str, TensorCheck] = {}
        again = []
        for name in (name for name in self.file.tensors if name in wanted):
            checks[name] = check = self.as_planned(name, items.get(name), fed)
            if check.found == UNCHECKED and not check.why:
                again.append(items[name])
        checks |= {
            name: TensorCheck(name, item.format.name, ABSENT)
            for name, item in items.items()
            if name not in self.file.tensors
        }
        drawn, blocks = self.sampled(again, sample, seed) if sample else (None, list(_blocks(again)))
        checks |= self.compare(again, blocks)
        by_digest = [name for name, check in checks.items() if check.found == BY_DIGEST]
        checks |= self.digests(by_digest, sample is not None)
        keys = tuple(compare_metadata(plans[0].metadata, self.file.parts[0].metadata, (RESERVE_KEY,)))
        layout = [] if keys else self.layout(plans)
        return Reproduction(
            self.file.path,
            public_name(self.source),
            None,
            self.made(planned),
            tuple(self.explained(checks).values()),
            keys,
            tuple(layout),
            sample=drawn,
        )

    def made(self, planned: Planned) -> str:
        """Return the output's recipe or type in words."""
        return f"{planned.name}{', with an importance matrix,' if self.matrix else ''}"

    def with_own_names(self, plan: FilePlan) -> Any:
        """Return a plan's metadata with the stored name of the matrix, which may have been renamed."""
        metadata, stored = plan.metadata.copy(), self.file.metadata
        if MATRIX_NAME in metadata and MATRIX_NAME in stored:
            metadata[MATRIX_NAME] = stored.value(MATRIX_NAME)
        if self.lacks_matrix:
            for key in [key for key in metadata if key.startswith(OF_MATRIX)]:
                del metadata[key]
            for key in (key for key in stored if key.startswith(OF_MATRIX)):
                metadata[key] = stored.value(key)
        return metadata

    def as_planned(self, name: str, item: Item | None, fed: bool) -> TensorCheck:
        """Return the result for a tensor without comparing bytes: UNCHECKED if they can be made again."""
        tensor = self.stored[name]
        check = TensorCheck(name, tensor.format.name, UNCHECKED, of_rows=tensor.rows)
        if item is None:
            return replace(check, found=EXTRA)
        if item.format.name != tensor.format.name or item.tensor.shape != tensor.shape:
            planned = f"{item.format.name} {list(item.tensor.shape)}"
            why = f"{tensor.format.name} {list(tensor.shape)} instead of {planned}"
            return replace(check, found=OTHER, why=why)
        record = self.records.get(name)
        if record is not None and record.feedback and not fed:
            return replace(check, found=BY_DIGEST)
        if item.format.uses_importance and not item.is_copy and self.lacks_matrix:
            return replace(check, found=BY_DIGEST)
        if item.format.needs_importance and item.importance is None and item.ready is None and not item.is_copy:
            why = f"{item.format.name} needs an importance matrix, which `imatrix` names"
            return replace(check, found=OTHER, why=why)
        return check

    @property
    def lacks_matrix(self) -> bool:
        """Return whether there was a matrix that does not exist any more."""
        return self.matrix is not None and not self.matrix.entries

    def sampled(self, items: Sequence[Item], count: int, seed: int) -> tuple[Sample, list[_Block]]:
        """Draw ranges of rows, all with the same probability."""
        steps = [_range_rows(item) for item in items]
        counts = [-(-item.tensor.rows // step) for item, step in zip(items, steps, strict=True)]
        ends = np.cumsum(counts)
        total = int(ends[-1]) if items else 0
        numbers = np.sort(np.random.default_rng(seed).choice(total, min(count, total), replace=False))
        blocks = []
        for number in numbers.tolist():
            i = int(np.searchsorted(ends, number, side="right"))
            start = (number - int(ends[i]) + counts[i]) * steps[i]
            item = items[i]
            blocks.append(_Block(item.tensor, start, min(start + steps[i], item.tensor.rows), item))
        return Sample(len(blocks), total, seed), blocks

    def compare(self, items: Sequence[Item], blocks: Sequence[_Block]) -> dict[str, TensorCheck]:
        """Compare the tensors' rows with those made again, and digests of whole tensors on the way."""
        threads = thread_count(self.threads)
        total = sum((block.stop - block.start) * block.tensor.row_bytes for block in blocks)
        tell = self.progress or (lambda *_: None)
        compile_codecs(_codecs(items), threads, lambda name: tell(0, total, f"compiling {name}"))
        checks = {
            item.tensor.name: TensorCheck(item.tensor.name, item.format.name, UNCHECKED, of_rows=item.tensor.rows)
            for item in items
        }
        hashes: dict[str, Any] = {name: hashlib.sha256() for name in checks if self.whole and name in self.records}
        perform: Callable[[_Block], _BlockResult] = self.compare_rows
        results = run_blocks(blocks, perform, total, threads=threads, progress=self.progress, in_order=True)
        for block, result in results:
            name = block.item.tensor.name
            checks[name] = self.added(checks[name], block, result)
            if name in hashes:
                hashes[name].update(np.ascontiguousarray(result.stored).data)
        for item in items:
            name, tail = item.tensor.name, self.stored[item.tensor.name].tail
            if name in hashes and tail is not None:
                hashes[name].update(np.ascontiguousarray(tail).data)
            ours = item.tensor.tail
            if item.is_copy and tail is not None and (ours is None or not np.array_equal(tail, ours)):
                checks[name] = replace(checks[name], found=DIFFERS, why="the bytes after its rows")
            if not item.tensor.rows:
                checks[name] = replace(checks[name], found=EQUAL)
        self.hashes = {name: result.hexdigest() for name, result in hashes.items()}
        return checks

    def compare_rows(self, block: _Block) -> _BlockResult:
        item, (start, stop) = block.item, (block.start, block.stop)
        stored = read_rows(self.stored[item.tensor.name], start, stop, finite=False)
        try:
            raw = read_rows(item.tensor, start, stop)
            ours = raw if item.is_copy else encode_rows(item, decode_rows(item.tensor, raw, start), start)
        except FormatError as error:
            return _BlockResult(0, (start, 0), stored, str(error))
        differing = ours != stored
        if not differing.any():
            return _BlockResult(0, None, stored)
        form, (row, byte) = item.format, np.unravel_index(int(np.argmax(differing)), differing.shape)
        in_blocks = differing[:, form.head_bytes :].reshape(len(differing), -1, form.block_bytes).any(axis=2)
        return _BlockResult(max(1, int(in_blocks.sum())), (start + int(row), int(byte)), stored)

    def added(self, check: TensorCheck, block: _Block, result: _BlockResult) -> TensorCheck:
        """Return a tensor's result with that of more rows."""
        rows, blocks = check.rows + block.stop - block.start, check.blocks + result.blocks
        if result.first is None:
            return replace(check, rows=rows, found=EQUAL if check.found == UNCHECKED else check.found)
        first = check.first or self.place_of(block.item, *result.first)
        return replace(check, rows=rows, blocks=blocks, found=DIFFERS, first=first, why=check.why or result.problem)

    def place_of(self, item: Item, row: int, byte: int) -> Place:
        name, form = item.tensor.name, item.format
        part = self.file.parts[self.place[name]]
        number = max(0, byte - form.head_bytes) // form.block_bytes
        offset = part.offsets[name] + row * self.stored[name].row_bytes + byte
        return Place(row, number, number * form.block_size, part.path.name, offset)

    def digests(self, names: Sequence[str], sampled: bool) -> dict[str, TensorCheck]:
        """Compare tensors that are not made again by their digests; not if only a sample is compared."""
        if sampled:
            why = "only a digest of all its bytes could be compared"
            return {name: TensorCheck(name, self.stored[name].format.name, UNCHECKED, why=why) for name in names}
        self.hashes |= self.hashed(names)
        checks = {}
        for name in names:
            good = self.hashes[name] == self.records[name].sha256
            form, rows = self.stored[name].format.name, self.stored[name].rows
            checks[name] = TensorCheck(
                name, form, BY_DIGEST if good else DIFFERS, of_rows=rows, why=None if good else ALTERED
            )
        return checks

    def hashed(self, names: Sequence[str]) -> dict[str, str]:
        ranges = [tensor_range(self.file, self.place[name], name) for name in names]
        return dict(zip(names, range_digests(ranges, self.threads, self.progress), strict=True))

    def explained(self, checks: dict[str, TensorCheck]) -> dict[str, TensorCheck]:
        """Explain differing tensors by the manifest's digests, and find digests that are wrong."""
        wrong = [name for name, check in checks.items() if check.found == DIFFERS and name in self.records]
        self.hashes |= self.hashed([name for name in wrong if name not in self.hashes])
        for name, digest in self.hashes.items():
            check, is_right = checks[name], digest == self.records[name].sha256
            if check.found == DIFFERS and not check.why:
                checks[name] = replace(check, why=MADE_OTHERWISE if is_right else ALTERED)
            elif check.found == EQUAL and not is_right:
                checks[name] = replace(check, found=DIFFERS, why="as the source makes it, but its digest is another")
        order = {name: i for i, name in enumerate(self.file.tensors)}
        return dict(sorted(checks.items(), key=lambda entry: order.get(entry[0], len(order))))

    def layout(self, plans: Sequence[FilePlan]) -> list[str]:
        """Return differences of the header's bytes, and of bytes between tensors."""
        if self.manifest is None:
            return []  # the reserved space is unknown
        if len(plans) != len(self.file.parts):
            return [f"{len(self.file.parts)} files instead of {len(plans)}"]
        lines = []
        for plan, part in zip(plans, self.file.parts, strict=True):
            read = reading(part.path)
            header = np.frombuffer(plan.layout.header, np.uint8)
            length = min(len(header), part.file_size)
            different = np.flatnonzero(read(0, length) != header[:length])
            if len(different):
                lines.append(f"the header of {part.path.name} has other bytes, from byte {int(different[0])} on")
            elif plan.layout.total != part.file_size:
                lines.append(f"{part.path.name} has {part.file_size:,} bytes instead of {plan.layout.total:,}")
            elif self.whole and (place := _padding(part, read)) is not None:
                lines.append(f"{part.path.name} has a byte between tensors that is not 0: byte {place}")
        return lines

    def causes(self, result: Reproduction, weights: PathLike | None, texts: list[str] | None) -> list[str]:
        """Return why bytes may differ, and how source, matrix and texts differ from the manifest's."""
        if self.manifest is None:
            return []
        made_otherwise = any(tensor.why == MADE_OTHERWISE or tensor.found in (OTHER, ABSENT) for tensor in result.wrong)
        thorough = self.whole or made_otherwise
        largest = None if thorough else SMALL_FILE
        record = source_record(self.source, self.model, self.threads, self.progress, largest)
        causes = source_differences(record, self.manifest.source)
        matrix = matrix_record(weights)
        if matrix is not None and self.manifest.imatrix and matrix.values != self.manifest.imatrix.values:
            name = self.manifest.imatrix.file.name if self.manifest.imatrix.file else "that of the search"
            causes.append(f"{Path(str(weights)).name} is not the importance matrix: {name} had other values")
        if texts is not None:
            here = {each.name: each for each in text_records(calibration_of(self.parameters, texts))}
            for text in self.manifest.texts:
                one = here.get(text.name) or next((each for each in here.values() if each.sha256 == text.sha256), None)
                lines = [f"{text.name} is not among the texts"] if one is None else []
                causes += lines or (record_differences(one, text, "the text") if one else [])
        others = self.other_encoders()
        if others and made_otherwise:
            causes.append(f"{others} than the one that made the file")
        elif others:
            self.warnings.append(f"{others} than the one that made the file; the bytes are the same")
        if made_otherwise and not causes:
            causes.append("source, matrix and encoders are the manifest's: its parameters are not what made the file")
        return causes

    def other_encoders(self) -> str:
        """Return which encoders have another version here."""
        assert self.manifest is not None
        names = [form for form, digest in self.manifest.encoders.items() if _encoder(form) != digest]
        changes = [f"the encoder of {', '.join(names)} is another version"] if names else []
        if self.manifest.conversion not in (None, conversion_digest()):
            changes.append("the converter is another version")
        return " and ".join(changes)


def _encoder(form: str) -> str | None:
    try:
        return encoder_digest(form)
    except FormatError:
        return None


def _range_rows(item: Item) -> int:
    """Return the rows of a range that a sample draws."""
    [(start, stop), *_] = row_ranges(item.tensor, max(1, SAMPLED_VALUES // (item.tensor.width or 1))) or [(0, 1)]
    return max(1, stop - start)


def _blocks(items: Iterable[Item]) -> Iterator[_Block]:
    for item in items:
        for start, stop in row_ranges(item.tensor):
            yield _Block(item.tensor, start, stop, item)


def _codecs(items: Iterable[Item]) -> Iterator[Codec]:
    for item in (item for item in items if not item.is_copy and item.ready is None):
        yield Codec(item.format.name, "encode" if item.importance is None else "weighted")
        if not item.tensor.format.dialect:
            yield Codec(item.tensor.format.name, "decode")


def _padding(part: GgufFile, read: Callable[[int, int], NDArray[np.uint8]]) -> int | None:
    """Return the position of a byte between or after tensors that is not 0."""
    ranges = sorted((part.offsets[name], part.offsets[name] + tensor.nbytes) for name, tensor in part.tensors.items())
    position = part.data_offset
    for begin, end in [*ranges, (part.file_size, part.file_size)]:
        for start in range(position, begin, GAP):
            nonzero = np.flatnonzero(read(start, min(begin, start + GAP)))
            if len(nonzero):
                return start + int(nonzero[0])
        position = max(position, end)
    return None
