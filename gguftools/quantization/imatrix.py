"""Read, write, merge and check importance matrices: the importance of each column of each weight, measured on a text.

An entry holds, for a weight and each of its experts, the sum of the squared inputs of every column and the number of
inputs; the importance of a column is their quotient. Two file formats are in use: GGUF, and the older `.dat`.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archs.diffusion.detection import PREFIXES
from archs.metadata import Metadata
from archs.small_files import check_not_pointer, hint_for_missing
from quants import Tensor, from_array
from quants.arguments import PathLike, as_path
from quants.errors import FileError, OptionError
from quants.spelling import did_you_mean

from ..io.atomic import NOTHING, atomic_output
from ..io.gguf.reader import GgufFile, open_gguf
from ..io.stores.path import StorePath, located
from ..writing.items import Item
from ..writing.options import WriteOptions
from ..writing.pipeline import FilePlan, write_files
from .imatrix_entry import Entry as Entry
from .imatrix_entry import Floats
from .imatrix_statistics import FIGURES, statistics
from .recipes import layer_of

SUMS, COUNTS, INPUTS, STATISTICS = ".in_sum2", ".counts", ".in_sum", ".stats"
DEFAULT_CHUNK_SIZE = 512  # tokens; .dat files lack it
MISSING_EXPERTS_ALLOWED = 0.05  # share of a tensor's experts that may be unseen without being an error
DEAD_COLUMNS = 32  # so many zero weights in a row, aligned, and encoders store a block of zeros
MAX_NAME_BYTES = 1 << 12
WARNINGS_SHOWN = 10
LONGEST_SHOWN = 80  # letters of a name in a message


@dataclass(frozen=True)
class Problem:
    """Describe a fault of an entry. columns: where; empty if it concerns whole experts.

    kind: "non-finite", "negative", "zero" (columns that never had an input), "unseen" (experts).
    """

    name: str
    kind: str
    expert: int
    columns: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.kind == "unseen":
            return f"{self.name}: expert {self.expert} saw no input"
        shown = ", ".join(map(str, self.columns[:8])) + (", …" if len(self.columns) > 8 else "")
        expert = f" of expert {self.expert}" if self.expert else ""
        return f"{self.name}: {len(self.columns)} {self.kind} columns{expert}: {shown}"


@dataclass(frozen=True)
class ImportanceMatrix:
    """Hold entries by the name of the weight, and their origin: chunks of a text, of `chunk_size` tokens each.

    next_layers: the number of MTP layers at the end, as far as the file has it.
    """

    path: Path
    entries: dict[str, Entry]
    datasets: tuple[str, ...] = ()
    chunks: int = 0
    chunk_size: int = DEFAULT_CHUNK_SIZE
    next_layers: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the matrix in figures, as `imatrix-info --json` prints it."""
        entries = summary(self)
        return {
            "file": str(self.path),
            "datasets": list(self.datasets),
            "chunks": self.chunks,
            "chunk_size": self.chunk_size,
            "entries": [asdict(entry) for entry in entries],
            "layers": [{"layer": layer, "importance": value} for layer, value in layer_importance(entries).items()],
            "problems": [asdict(problem) for problem in problems(self)],
        }


def read_imatrix(path: PathLike) -> ImportanceMatrix:
    """Read an importance matrix, GGUF or .dat. Raises FileError for anything else."""
    as_path(path, "the importance matrix")
    path = located(path)
    if isinstance(path, StorePath):
        return _from_gguf(open_gguf(path))
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise FileError(f"{path} is not a regular file")
    try:
        with path.open("rb") as file:
            beginning = file.read(64)
        check_not_pointer(path, beginning)
        return _from_gguf(open_gguf(path)) if beginning[:4] == b"GGUF" else _from_dat(path, path.read_bytes())
    except FileNotFoundError:
        raise FileError(f"there is no file {path}", hint_for_missing(path)) from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error


def _from_gguf(file: GgufFile) -> ImportanceMatrix:
    what = f"{file.path} is not an importance matrix"
    if file.metadata.get("general.type") != "imatrix" and "imatrix.chunk_count" not in file.metadata:
        raise FileError(f"{what}: general.type is {file.metadata.get('general.type')!r}, not 'imatrix'")
    entries = {}
    for name, tensor in ((name, tensor) for name, tensor in file.tensors.items() if name.endswith(SUMS)):
        weight = name.removesuffix(SUMS)
        counts = file.tensors.get(weight + COUNTS)
        if counts is None:
            raise FileError(f"{file.path} has {name!r} but no {weight + COUNTS!r}")
        inputs = file.tensors.get(weight + INPUTS)
        for each in filter(None, (tensor, counts, inputs)):
            if each.format.name != "F32":
                raise FileError(f"{file.path}: {each.name!r} is {each.format.name}; sums and counts are F32")
        if not counts.size or not tensor.size or tensor.size % counts.size:
            raise FileError(f"{file.path}: {name!r} has {tensor.size} values for {counts.size} counts")
        if inputs is not None and inputs.size != tensor.size:
            raise FileError(f"{file.path}: {inputs.name!r} has {inputs.size} values, {name!r} has {tensor.size}")
        rows = [
            None if each is None else each.float32().reshape(counts.size, -1).astype(np.float32)
            for each in (tensor, inputs)
        ]
        assert rows[0] is not None
        entries[weight] = Entry(rows[0], counts.float32().reshape(-1).astype(np.float32), rows[1])
    if not entries:
        raise FileError(f"{what}: it has no tensor whose name ends in {SUMS}")
    return ImportanceMatrix(
        file.path,
        entries,
        tuple(map(str, file.metadata.get("imatrix.datasets", ()))),
        int(file.metadata.get("imatrix.chunk_count", 0)),
        int(file.metadata.get("imatrix.chunk_size", DEFAULT_CHUNK_SIZE)),
        int(file.metadata.get("imatrix.n_layer_nextn", 0)),
    )


def _from_dat(path: Path, data: bytes) -> ImportanceMatrix:
    position = 0

    def take(size: int, what: str) -> bytes:
        nonlocal position
        left = len(data) - position
        if not 0 <= size <= left:
            needed = f"{what} at byte {position} needs {size} bytes, {left} are left"
            raise FileError(f"{path} is not an importance matrix: {needed}")
        position += size
        return data[position - size : position]

    def number(what: str) -> int:
        return int(struct.unpack("<i", take(4, what))[0])

    def text(what: str) -> str:
        length = number(f"length of {what}")
        if not 0 <= length <= MAX_NAME_BYTES:
            raise FileError(f"{path} is not an importance matrix: {what} has {length} bytes")
        return take(length, what).decode("utf-8", "replace")

    count = number("number of entries")
    if count < 1:
        raise FileError(f"{path} is not an importance matrix: it claims {count} entries")
    entries = {}
    for i in range(count):
        name = text(f"name of entry {i}")
        shown = repr(name[:LONGEST_SHOWN])
        calls, size = number(f"calls of {shown}"), number(f"number of values of {shown}")
        values = np.frombuffer(take(4 * size, f"values of {shown}"), "<f4").astype(np.float32)
        if not size:
            raise FileError(f"{path}: entry {shown} has no values")
        # Tokens are counted in GGUF files, chunks here. A power of two leaves the quotient as it is.
        scale = np.float32(DEFAULT_CHUNK_SIZE)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found by `problems`
            values *= scale
        entries[name] = Entry(values[None], np.array([max(calls, 1)], np.float32) * scale)
    if position == len(data):  # the first files ended here
        return ImportanceMatrix(path, entries)
    chunks = number("number of chunks")
    return ImportanceMatrix(path, entries, (text("name of the dataset"),), chunks)


def write_imatrix(
    matrix: ImportanceMatrix, path: Path, overwrite: bool = False, reads: Iterable[PathLike] = ()
) -> None:
    """Write a matrix as `.dat` if the name ends so, else as GGUF. reads: the files it is made of. Raises FileError."""
    read = NOTHING.also(reads)
    if path.suffix == ".dat":
        with atomic_output(path, overwrite=overwrite, reads=read) as file:
            for piece in _dat_pieces(matrix):
                file.write(piece)
        return
    head: dict[str, Any] = {
        "general.type": "imatrix",
        "imatrix.datasets": list(matrix.datasets),
        "imatrix.chunk_count": matrix.chunks,
        "imatrix.chunk_size": matrix.chunk_size,
    }
    if matrix.next_layers:
        head["imatrix.n_layer_nextn"] = matrix.next_layers
    metadata = Metadata(head | {"imatrix.stats_schema": list(FIGURES)})
    figures = statistics(matrix.entries, matrix.next_layers).tensors
    arrays: dict[str, Floats] = {}
    for name, entry in sorted(matrix.entries.items()):
        arrays |= {name + SUMS: entry.sums, name + COUNTS: entry.counts[:, None]}
        if entry.inputs is not None:
            arrays[name + INPUTS] = entry.inputs
        if len(entry.counts) == 1:  # a row is written as ggml does, which counts no dimension of one
            arrays |= {key: arrays[key][0] for key in (name + SUMS, name + COUNTS, name + INPUTS) if key in arrays}
        if name in figures:
            arrays[name + STATISTICS] = figures[name].as_stored()
    items = tuple(Item(tensor, tensor.format) for tensor in (from_array(*each) for each in arrays.items()))
    write_files([FilePlan(path, metadata, items)], WriteOptions(overwrite=overwrite, reads=read), finite=False)


def _dat_pieces(matrix: ImportanceMatrix) -> Iterable[bytes]:
    stored = {name: entry for name, entry in matrix.entries.items() if len(entry.unseen) < len(entry.counts)}
    yield struct.pack("<i", len(stored))
    for name, entry in sorted(stored.items()):
        calls = max(1, -(-int(entry.counts.max()) // max(1, matrix.chunk_size)))
        values = entry.mean() * np.float32(calls)
        raw_name = name.encode()
        yield struct.pack("<i", len(raw_name)) + raw_name + struct.pack("<ii", calls, values.size)
        yield values.astype("<f4").tobytes()
    dataset = (matrix.datasets[-1] if matrix.datasets else "").encode()  # the form has room for one
    yield struct.pack("<ii", matrix.chunks, len(dataset)) + dataset


def merge(matrices: Sequence[ImportanceMatrix]) -> ImportanceMatrix:
    """Return the matrix that measuring all their texts at once would have given. Raises FileError if shapes differ.

    An entry has no sums of inputs if one of the matrices lacks them, as the legacy format. Chunks of other sizes are
    counted in chunks of the first one's size.
    """
    if not matrices:
        raise OptionError("there is nothing to merge")
    first = matrices[0]
    entries: dict[str, Entry] = {}
    for matrix in matrices:
        for name, entry in matrix.entries.items():
            have = entries.get(name)
            entries[name] = entry if have is None else _added(have, entry, name, matrix.path)
    datasets = tuple(dict.fromkeys(name for matrix in matrices for name in matrix.datasets))
    size = max(1, first.chunk_size)
    tokens = sum(matrix.chunks * matrix.chunk_size for matrix in matrices)
    next_layers = max(matrix.next_layers for matrix in matrices)
    chunks = (tokens + size // 2) // size
    return replace(first, entries=entries, datasets=datasets, chunks=chunks, next_layers=next_layers)


def _added(one: Entry, other: Entry, name: str, path: Path) -> Entry:
    one, other = _split_like(one, other), _split_like(other, one)
    if one.sums.shape != other.sums.shape:
        shapes = f"{name!r} has shape {other.sums.shape}, before it was {one.sums.shape}"
        raise FileError(f"{path}: {shapes}", hint="they are of different models")
    inputs = None if one.inputs is None or other.inputs is None else one.inputs + other.inputs
    return Entry(one.sums + other.sums, one.counts + other.counts, inputs)


def _split_like(entry: Entry, other: Entry) -> Entry:
    """Give an entry that counts all experts as one the experts of the other.

    The legacy format counts so, and llama-imatrix for a weight with a matrix for each head.
    """
    experts = len(other.counts)
    if len(entry.counts) > 1 or experts == 1 or entry.sums.size != other.sums.size:
        return entry
    inputs = None if entry.inputs is None else entry.inputs.reshape(experts, -1)
    return Entry(entry.sums.reshape(experts, -1), np.repeat(entry.counts, experts), inputs)


def select_entries(
    matrix: ImportanceMatrix, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> ImportanceMatrix:
    """Return the entries whose names contain one of `include` (all, if empty) and none of `exclude`.

    Raises OptionError if both are given, or if nothing is left.
    """
    if include and exclude:
        raise OptionError("weights can be included or excluded, not both")
    for part in (*include, *exclude):
        if not any(part in name for name in matrix.entries):
            problem = f"none of the {len(matrix.entries)} entries of {matrix.path} has {part!r} in its name"
            raise OptionError(problem, did_you_mean(part, matrix.entries))
    chosen = {name for name in matrix.entries if any(part in name for part in include or exclude)}
    entries = {name: entry for name, entry in matrix.entries.items() if (name in chosen) is bool(include)}
    if not entries:
        raise OptionError(f"none of the {len(matrix.entries)} entries of {matrix.path} is left")
    return replace(matrix, entries=entries)


def problems(matrix: ImportanceMatrix) -> list[Problem]:
    """Return all faults of a matrix."""
    faults = []

    def note(name: str, fault: str, expert: int, wrong: NDArray[np.bool_]) -> None:
        if wrong.any():
            faults.append(Problem(name, fault, expert, tuple(map(int, np.flatnonzero(wrong)))))

    for name, entry in matrix.entries.items():
        bad_counts = ~np.isfinite(entry.counts) | (entry.counts < 0)
        for expert, row in enumerate(entry.sums):
            if bad_counts[expert] and np.isfinite(row).all():
                faults.append(Problem(name, "non-finite", expert, (0,)))
            note(name, "non-finite", expert, ~np.isfinite(row))
            note(name, "negative", expert, row < 0)
            if entry.counts[expert] == 0:
                faults.append(Problem(name, "unseen", expert))
            else:
                note(name, "zero", expert, row == 0)
    return faults


def check(matrix: ImportanceMatrix) -> list[str]:
    """Raise FileError for non-finite or negative values; return other faults as warnings, one line each."""
    faults = problems(matrix)
    fatal = [problem for problem in faults if problem.kind in ("non-finite", "negative")]
    if fatal:
        more = f", and {len(fatal) - 1} more" if len(fatal) > 1 else ""
        raise FileError(f"{matrix.path}: {fatal[0]}{more}", hint="`gguftools imatrix-info` lists them; measure it anew")
    zero = [str(problem) for problem in faults if problem.kind == "zero"]
    if (rest := len(zero) - WARNINGS_SHOWN) > 0:
        zero[WARNINGS_SHOWN:] = [f"{rest} more have zero columns: `gguftools imatrix-info` lists them"]
    return zero


def usable_matrix(
    given: PathLike | ImportanceMatrix | None, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> tuple[ImportanceMatrix | None, list[str]]:
    """Return the entries to use of a matrix or its file, and warnings. Raises OptionError, FileError."""
    if given is None:
        if include or exclude:
            raise OptionError("weights are included or excluded, but there is no importance matrix")
        return None, []
    read = given if isinstance(given, ImportanceMatrix) else read_imatrix(given)
    matrix = select_entries(read, include, exclude) if include or exclude else read
    return matrix, check(matrix)


def entry_for(matrix: ImportanceMatrix, name: str) -> Entry | None:
    """Return a weight's entry, None without one. An image model's may have the prefix of its checkpoint's names."""
    names = (name, *(prefix + name for prefix in PREFIXES))
    return next((matrix.entries[each] for each in names if each in matrix.entries), None)


def importance_for(matrix: ImportanceMatrix, tensor: Tensor, allow_missing_experts: bool = False) -> Floats | None:
    """Return the importance of a tensor's columns, float32 (experts, width); None without an entry.

    A matrix counts as one expert. The columns of unseen experts weigh alike; more than 5 % of such experts are an error
    unless allowed. DEAD_COLUMNS consecutive columns without input, which would be encoded as zeros, get the smallest
    importance of the others. Raises FileError for a size that is not the tensor's, or for too many unseen experts.
    """
    entry = entry_for(matrix, tensor.name)
    if entry is None:
        return None
    experts = math.prod(tensor.shape[:-2])
    if entry.sums.size != experts * tensor.width:
        if tensor.name == "token_embd.weight":
            return None
        by = f"{experts} × {tensor.width}" if experts > 1 else f"{tensor.width}"
        problem = f"{matrix.path}: {tensor.name!r} has {entry.sums.size} values, the tensor needs {by}"
        raise FileError(problem, hint="the matrix is of another model")
    unseen = len(entry.unseen)
    if unseen > MISSING_EXPERTS_ALLOWED * len(entry.counts) and not allow_missing_experts:
        problem = f"{matrix.path}: {unseen} of {len(entry.counts)} experts of {tensor.name!r} saw no input"
        hint = "measure it on more text, or pass `allow_missing_experts` to weigh their columns alike"
        raise FileError(problem, hint)
    mean = entry.mean().reshape(experts, tensor.width)
    for row in mean:
        smallest = row[row > 0].min() if row.any() else 1
        for start in range(0, len(row), DEAD_COLUMNS):
            group = row[start : start + DEAD_COLUMNS]
            if not group.any():
                group[:] = smallest
    return mean


@dataclass(frozen=True)
class EntrySummary:
    """Summarize an entry. importance: mean over experts and columns of the squared input."""

    name: str
    width: int
    experts: int
    experts_seen: int
    zero_columns: int
    non_finite: int
    importance: float


def summary(matrix: ImportanceMatrix) -> list[EntrySummary]:
    """Summarize the entries of a matrix, the most important first."""
    entries = []
    for name, entry in matrix.entries.items():
        finite = np.isfinite(entry.sums)
        seen = entry.counts > 0
        mean = np.where(finite, entry.mean(), 0)[seen]
        entries.append(
            EntrySummary(
                name,
                entry.sums.shape[1],
                len(entry.counts),
                int(seen.sum()),
                int((entry.sums[seen] == 0).sum()),
                int((~finite).sum()),
                float(mean.mean()) if mean.size else 0.0,
            )
        )
    return sorted(entries, key=lambda item: (-item.importance, item.name))


def layer_importance(entries: Sequence[EntrySummary]) -> dict[int, float]:
    """Return layer → sum of its entries' importance, the most important first; -1: entries outside layers."""
    layers: dict[int, float] = {}
    for entry in entries:
        layer = layer_of(entry.name)
        layers[layer] = layers.get(layer, 0.0) + entry.importance
    return dict(sorted(layers.items(), key=lambda item: (-item[1], item[0])))
