"""Read GGUF files: map the file and validate its header; values are decoded when asked.

4 bytes  magic         4 bytes  version        8 bytes  tensors         8 bytes  metadata pairs
pairs:   key (string), value type (u32), value            string: u64 length, bytes
tensors: name (string), u32 dimensions, u64 each (fastest first), u32 type, u64 offset within the data
data:    from the next multiple of the alignment on, each tensor at a multiple of it

Files come from strangers: every count, length and offset is compared, as a Python integer, with what the file can hold
before memory is allocated for it.
"""

import logging
import math
import mmap
import os
import stat
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from archs.metadata import Metadata, Value, ValueType
from archs.schema import KEYS
from archs.small_files import check_not_pointer, record_read
from archs.values import ARRAY_TYPES, MAX_ARRAY_DEPTH
from quants import Format, FormatError, Tensor, format_of_type
from quants.errors import FileError
from quants.spelling import quote

from ..bus_errors import MAPPED
from ..locks import NO_FILE, STEP, State, is_held, state_of
from ..naming import few, hint_for_absent, hint_for_folder, refuse_store
from ..positioned import PositionedInput, ReadBytes, row_reader
from ..replacing import check_file_whole
from ..stores.path import WEB, StorePath, located
from ..stores.pieces import ByteSource
from .journal import journal_path
from .shards import SHARD_NAME, shard_name, shard_paths, without_split_keys
from .stored import LateBytes, MoreNeededError, parse_growing
from .strings import ORDER_SIGN, find_strings

if TYPE_CHECKING:
    from ..stores.store import Objects

MAGICS = {b"GGUF", b"PWRI"}  # PWRI: PowerInfer's files, the same layout
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 24
MAX_DIMENSIONS = 5  # ggml has four; files for ComfyUI-GGUF and diffusers keep convolutions over time
MAX_NAME_BYTES = (1 << 16) - 1
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_NESTED_ARRAYS = 1 << 16
MAX_VALUES = (1 << 63) - 1
# ggml's types whose numbers forks gave to other blocks; the sizes of tensors tell which these are.
SHARED_TYPES = (40, 41, 42)
OTHER_FILES = 24  # open besides the shards: outputs, imported modules
PATIENCE = 10.0  # seconds that others get to end an edit

SCALARS = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "B",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
# Keys that the reader itself uses.
STRUCTURAL_KEYS = {
    key: KEYS[key]
    for key in ("general.architecture", "general.alignment", "split.no", "split.count", "split.tensors.count")
}


# Name, shape (rows first), format, offset within the data, bytes.
Entry = tuple[str, tuple[int, ...], Format, int, int]
Unsettled = tuple[str, tuple[int, ...], Format | None, int, int]

log = logging.getLogger(__name__)
packed = lru_cache(maxsize=64)(struct.Struct)


@dataclass(frozen=True)
class GgufFile:
    """Hold an open GGUF file, or a joined split set: the tensors of all shards, without `split.*` keys.

    tensors: in file order, shapes rows first. offsets: of each tensor, from the start of its file. header_bytes: end of
    the tensor list; data_offset: where tensor data starts (both of the first shard). parts: the shards one by one, as
    they are; the file itself if it is not split. state: of the (first) file, to detect changes. stored: version of an
    object in a store; in_store: how its bytes are read.
    """

    path: Path
    version: int
    byte_order: str
    alignment: int
    metadata: Metadata
    tensors: dict[str, Tensor]
    header_bytes: int
    data_offset: int
    offsets: dict[str, int]
    shards: list[Path]
    file_size: int
    magic: bytes = b"GGUF"
    parts: "list[GgufFile]" = field(default_factory=list, repr=False)
    state: State = NO_FILE
    stored: str = ""
    in_store: ByteSource | None = field(default=None, repr=False, compare=False)

    @property
    def original(self) -> ByteSource:
        """Return its bytes (of a split set, those of the first shard) as a source of pieces of other files."""
        if self.in_store is not None:
            return self.in_store
        return ByteSource(self.path, self.file_size, "", PositionedInput(self.path, keep_open=False).read)

    @property
    def states(self) -> dict[Path, State]:
        """Return the state of each shard when it was opened, but for those that cannot change."""
        return {part.path: part.state for part in self.parts if part.state != NO_FILE}

    @property
    def is_stored(self) -> bool:
        """Return True for an object in a store."""
        return isinstance(self.path, StorePath)

    @property
    def is_split(self) -> bool:
        return len(self.shards) > 1

    @property
    def split_count(self) -> int:
        """Return the number of shards that the file's metadata gives."""
        return int(self.metadata.get("split.count", 0))


OpenOne = Callable[[Path], GgufFile]


def open_gguf(path: Path, join: bool = True, ignore_journal: bool = False) -> GgufFile:
    """Open a GGUF file, version 2 or 3, either byte order. A shard of a split set opens the whole set.

    join: False opens a shard by itself. ignore_journal: open even a file whose last edit was interrupted. Raises
    FileError, naming the place, for a damaged or unknown file.
    """
    path = located(path)
    if isinstance(path, StorePath):
        from ..stores.store import Objects  # here, because few files are in stores

        open_one = partial(_open_stored, objects=Objects())
    else:
        open_one = partial(_open_file, ignore_journal=ignore_journal)
    opened = open_one(path)
    if join and opened.split_count > 1:
        opened = _joined(opened, open_one)
    log.info(
        "opened %s: GGUF version %d, %d keys, %d tensors, %d bytes",
        path,
        opened.version,
        len(opened.metadata),
        len(opened.tensors),
        opened.file_size,
    )
    return opened


def _open_file(path: Path, ignore_journal: bool) -> GgufFile:
    end = time.monotonic() + PATIENCE
    while True:
        if not ignore_journal:
            check_file_whole(path)
            _wait_for_edit(path, end)
        state = state_of(path)
        opened: GgufFile | FileError
        try:
            opened = Header(path, map_file(path, "GGUF file")).parse(state)
        except FileError as error:
            opened = error
        was_edited = os.path.lexists(journal_path(path)) or state_of(path) != state  # maybe while it was read
        if not was_edited or ignore_journal or time.monotonic() > end:
            break
    if isinstance(opened, FileError):
        raise opened
    return replace(opened, parts=[opened])


def _open_stored(path: Path, objects: "Objects") -> GgufFile:
    """Open an object in a store as a GGUF file. objects: those that are read together, such as the shards of a set."""
    from ..stores.store import is_pinned, state_of_object

    if not isinstance(path, StorePath):
        raise FileError(f"{path} is not in a store")
    if path.scheme in WEB and path.suffix != ".gguf":
        raise FileError(f"{path} is no address of a GGUF file: these end in .gguf", hint_for_absent(str(path)))
    stored = objects.open(path)
    original = ByteSource(path, stored.size, stored.version, stored.fetch)
    data = LateBytes(stored.fetch)

    def parse(beginning: NDArray[np.uint8]) -> GgufFile:
        original.beginning, original.fetched = beginning, len(beginning)
        check_not_pointer(path, beginning[:64].tobytes())
        header = Header(path, beginning, stored.size)
        header.mapped = data
        return header.parse(NO_FILE)

    parsed = parse_growing(path, stored, parse)
    data.read = objects.blocks.reader(str(path), sorted({parsed.data_offset, *parsed.offsets.values(), stored.size}))
    state = NO_FILE if is_pinned(path) else state_of_object(stored.size, stored.version)
    opened = replace(parsed, state=state, stored=stored.version, in_store=original)
    return replace(opened, parts=[opened])


def _wait_for_edit(path: Path, end: float) -> None:
    """Wait for a running edit. Raises FileError for an interrupted one."""
    while os.path.lexists(journal_path(path)):
        if not is_held(path):
            refuse_interrupted(path)
        elif time.monotonic() > end:
            raise FileError(f"{path} is being changed by another program", hint="wait until it is done")
        time.sleep(STEP)


def refuse_interrupted(path: Path) -> None:
    """Raise FileError if an interrupted edit left its journal."""
    if os.path.lexists(journal_path(path)):
        problem = f"the last edit of {path} was interrupted: {journal_path(path).name} is next to it"
        raise FileError(problem, hint="run `gguftools set-metadata --recover` on it")


def map_file(path: Path, what: str) -> NDArray[np.uint8]:
    """Map a file read-only; return its bytes, uint8. Raises FileError if it is missing, empty or no regular file.

    what: the expected type of file, for messages.
    """
    refuse_store(path)
    try:
        info = path.stat()
        if stat.S_ISDIR(info.st_mode):
            raise FileError(f"{path} is a folder, not a {what}", hint_for_folder(path))
        if not stat.S_ISREG(info.st_mode):
            raise FileError(f"{path} is not a regular file")
        if not info.st_size:
            raise FileError(f"{path} is empty, not a {what}")
        record_read(path, info)
        with path.open("rb") as file:
            check_not_pointer(path, file.read(64))
            MAPPED[path] = info.st_size
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except FileNotFoundError:
        raise FileError(f"there is no file {path}", hint_for_absent(path)) from None
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def align(position: int, alignment: int) -> int:
    """Return the first multiple of `alignment` from `position` on."""
    return -(-position // alignment) * alignment


def meanings(ggml_type: int) -> tuple[Format, ...]:
    """Return the formats that forks store under a type number."""
    from quants.dialects import meanings  # here, because few files have any of them

    return meanings(ggml_type)


def stored_bytes(form: Format, shape: tuple[int, ...]) -> int | None:
    """Return the bytes of a tensor of that shape, or None if the format cannot have it."""
    *above, rows, width = (1, 1, *shape) if shape else (1, 1)
    if width % form.block_size or rows % form.rows_together:
        return None
    return math.prod(above) * rows * form.row_bytes(width) + form.tail_bytes


def fit(sizes: dict[Format, int | None], room: int, alignment: int, is_last: bool) -> list[Format]:
    """Return the formats in which a tensor has the size up to the next one.

    The last tensor may lack bytes in a file that was cut short, or have others after it: then its size tells nothing.
    """
    known = {form: size for form, size in sizes.items() if size is not None}
    fitting = [form for form, size in known.items() if size <= room < size + alignment]
    return fitting or (list(known) if is_last else [])


class Header:
    """Parse a header. buffer: the file, or its first bytes; then `size` is the size of the file."""

    def __init__(self, path: Path, buffer: NDArray[np.uint8], size: int | None = None) -> None:
        self.path, self.buffer, self.view, self.size = path, buffer, buffer.data, len(buffer) if size is None else size
        self.mapped: ReadBytes = lambda begin, end: self.buffer[begin:end]
        self.position, self.byte_order, self.nested = 0, "little", 0
        self.unsettled: dict[int, int] = {}  # types of tensors that may be a dialect's, by the tensor's number

    @property
    def left(self) -> int:
        return self.size - self.position

    def error(self, text: str, hint: str | None = None) -> FileError:
        return FileError(f"{self.path}: {text}", hint=hint)

    def take(self, size: int, what: str, of: str = "") -> int:
        """Step over the bytes of `what` (`of` a key or tensor); return where they start."""
        start, self.position = self.position, self.position + size
        if self.position > self.size:
            what = f"{what} {quote(of)}" if of else what
            raise self.error(f"{what} at byte {start} needs {size} bytes, the file has {self.size - start} left")
        self.check_read()
        return start

    def check_read(self) -> None:
        """Raise MoreNeededError if the buffer ends before the position."""
        if self.position > len(self.buffer):
            raise MoreNeededError(self.position)

    def number(self, code: str, what: str, of: str = "") -> Any:
        return self.numbers(code, what, of)[0]

    def numbers(self, codes: str, what: str, of: str = "") -> tuple[Any, ...]:
        layout = packed(ORDER_SIGN[self.byte_order] + codes)
        return layout.unpack_from(self.view, self.take(layout.size, what, of))

    def name(self, what: str, index: int) -> str:
        """Read a string that must be UTF-8 and not empty: `what` number `index`."""
        what = f"{what} {index}"
        length = self.number("Q", what)
        if not 0 < length <= MAX_NAME_BYTES:
            raise self.error(f"{what} at byte {self.position} has {length} bytes; 1 to {MAX_NAME_BYTES} are allowed")
        start = self.take(length, what)
        raw = bytes(self.view[start : self.position])
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} at byte {start} is not UTF-8: {raw[:40]!r}") from None

    def parse(self, state: State) -> GgufFile:
        magic, version = self.read_magic()
        tensor_count = self.number("Q", "number of tensors")
        key_count = self.number("Q", "number of metadata pairs")
        self.check_count(key_count, 14, MAX_KEYS, "metadata pairs")
        self.check_count(tensor_count, 25, MAX_TENSORS, "tensors")
        metadata = self.read_metadata(key_count)
        alignment: int = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if alignment < 1 or alignment & (alignment - 1) or alignment > MAX_ALIGNMENT:
            raise self.error(f"general.alignment is {alignment}; powers of two up to {MAX_ALIGNMENT} are allowed")
        read = [self.read_tensor_entry(i) for i in range(tensor_count)]
        header_bytes = self.position
        data_offset = align(header_bytes, alignment)
        if self.unsettled:
            self.settle_dialects(read, data_offset, alignment)
        entries: list[Entry] = read  # type: ignore[assignment]  # each has a format now
        self.check_offsets(entries, data_offset, alignment)
        tensors: dict[str, Tensor] = {}
        file_name, read_bytes, order = self.path.name, self.mapped, self.byte_order
        for name, shape, form, offset, nbytes in entries:
            if name in tensors:
                raise self.error(f"there are two tensors {quote(name)}")
            rows = row_reader(read_bytes, data_offset + offset, shape, form, order)
            tail = self.tail(form, data_offset + offset + nbytes) if form.tail_bytes else None
            tensors[name] = Tensor(name, shape, form, rows, f"{file_name}: {name}", tail)
        return GgufFile(
            path=self.path,
            version=version,
            byte_order=self.byte_order,
            alignment=alignment,
            metadata=metadata,
            tensors=tensors,
            header_bytes=header_bytes,
            data_offset=data_offset,
            offsets={name: data_offset + offset for name, _, _, offset, _ in entries},
            shards=[self.path],
            file_size=self.size,
            magic=magic,
            state=state,
        )

    def read_magic(self) -> tuple[bytes, int]:
        magic = bytes(self.view[:4])
        if magic not in MAGICS:
            problem = f"{self.path} is not a GGUF file: it starts with {magic!r}, not b'GGUF'"
            if self.path.suffix.lower() in (".safetensors", ".sft"):
                how = "`gguftools convert` makes one of an image model; its VAE and CLIPs are used as they are"
                raise FileError(problem, how)
            raise FileError(problem, "`gguftools convert FOLDER` makes one of a checkpoint")
        self.take(4, "magic")
        version = self.number("I", "version")
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in VERSIONS and swapped in VERSIONS:
            self.byte_order, version = "big", swapped
        if version not in VERSIONS:
            old = version == 1 or swapped == 1
            hint = "version 1 was in use for weeks in 2023: convert the model anew" if old else None
            raise self.error(f"GGUF version {1 if old else version} is not supported; 2 and 3 are", hint)
        return magic, version

    def check_count(self, count: int, min_bytes: int, limit: int, what: str) -> None:
        """Raise FileError for a count of items, each of at least `min_bytes`, that the file cannot hold."""
        if count * min_bytes > self.left:
            max_count = self.left // min_bytes
            raise self.error(f"claims {count} {what}; the {self.left} bytes left hold {max_count} at most")
        if count > limit:
            raise self.error(f"claims {count} {what}; more than {limit} are refused")

    def read_metadata(self, count: int) -> Metadata:
        metadata = Metadata()
        for i in range(count):
            key = self.name("metadata key", i)
            if key in metadata:
                raise self.error(f"metadata key {quote(key)} appears twice")
            value = self.read_value(self.value_type(key), key, 0)
            known = STRUCTURAL_KEYS.get(key)
            if known and not known.allows(value):
                wanted = "an integer" if known.any_width else known.type.name
                raise self.error(f"metadata key {quote(key)} is {value.type.name}; it must be {wanted}")
            metadata.set(key, value.data, value.type, value.element)
        return metadata

    def value_type(self, key: str) -> ValueType:
        number = self.number("I", "type of", key)
        try:
            return ValueType(number)
        except ValueError:
            raise self.error(f"metadata key {quote(key)} has value type {number}, which is unknown") from None

    def read_value(self, value_type: ValueType, key: str, depth: int) -> Value:
        if value_type is ValueType.ARRAY:
            return self.read_array(key, depth + 1)
        if value_type is ValueType.STRING:
            start = self.take(self.number("Q", "length of", key), "value of", key)
            raw = self.view[start : self.position].tobytes()
            try:
                return Value(raw.decode(), value_type)
            except UnicodeDecodeError:
                return Value(raw, value_type)
        data = self.number(SCALARS[value_type], "value of", key)
        if value_type is ValueType.BOOL and data > 1:
            raise self.error(f"metadata key {quote(key)} is BOOL with value {data}; 0 and 1 are allowed")
        return Value(bool(data) if value_type is ValueType.BOOL else data, value_type)

    def read_array(self, key: str, depth: int) -> Value:
        if depth > MAX_ARRAY_DEPTH:
            raise self.error(f"metadata key {quote(key)} nests arrays deeper than {MAX_ARRAY_DEPTH}")
        element = self.value_type(key)
        count = self.number("Q", "length of", key)
        min_bytes = {ValueType.ARRAY: 12, ValueType.STRING: 8}.get(element) or np.dtype(ARRAY_TYPES[element]).itemsize
        if count * min_bytes > self.left:
            claim = f"claims {count} items of type {element.name}, at least {count * min_bytes} bytes"
            raise self.error(f"metadata key {quote(key)} {claim}; the file has {self.left} left")
        if element is ValueType.ARRAY:
            self.nested += count
            if self.nested > (limit := MAX_NESTED_ARRAYS):
                raise self.error(f"metadata key {quote(key)} nests {self.nested} arrays; {limit} are allowed")
            return Value([self.read_array(key, depth + 1) for _ in range(count)], ValueType.ARRAY, element)
        if element is ValueType.STRING:
            what = f"{self.path}: metadata key {quote(key)}"
            try:
                strings, self.position = find_strings(self.buffer, self.position, count, self.byte_order, what)
            except FileError:
                if len(self.buffer) < self.size:
                    raise MoreNeededError(self.position + 8 * count) from None
                raise
            return Value(strings, ValueType.ARRAY, element)
        return Value(self.read_numbers(key, element, count), ValueType.ARRAY, element)

    def read_numbers(self, key: str, element: ValueType, count: int) -> NDArray[Any]:
        dtype = np.dtype(ORDER_SIGN[self.byte_order] + ARRAY_TYPES[element])
        start = self.position
        self.position += count * dtype.itemsize
        self.check_read()
        raw = self.buffer[start : self.position]
        if element is ValueType.BOOL:
            if count and raw.max() > 1:
                raise self.error(f"metadata key {quote(key)} has a BOOL with value {raw.max()}; 0 and 1 are allowed")
            return raw.view(np.bool_)
        stored = raw.view(dtype)
        return stored if self.byte_order == "little" else stored.astype("<" + ARRAY_TYPES[element])

    def read_tensor_entry(self, index: int) -> Unsettled:
        """Read name, shape (rows first), format, offset within the data, bytes.

        The format is None if the tensor's size must tell it.
        """
        name = self.name("name of tensor", index)
        dimensions = self.number("I", "dimensions of", name)
        if dimensions > MAX_DIMENSIONS:
            raise self.error(f"tensor {quote(name)} has {dimensions} dimensions; at most {MAX_DIMENSIONS} are allowed")
        *sizes, ggml_type, offset = self.numbers("Q" * dimensions + "IQ", "shape, type and offset of", name)
        width = sizes[0] if sizes else 1
        shape, size = tuple(sizes[::-1]), math.prod(sizes)
        if (size or math.prod(filter(None, shape))) * 8 > MAX_VALUES:
            raise self.error(f"tensor {quote(name)} of shape {shape} has more values than any memory")
        try:
            form = format_of_type(ggml_type)
            row_bytes = form.row_bytes(width)
        except FormatError as error:
            if not meanings(ggml_type):
                raise self.error(f"tensor {quote(name)}: {error}") from error
            self.unsettled[index] = ggml_type
            return name, shape, None, offset, 0
        if ggml_type in SHARED_TYPES:
            self.unsettled[index] = ggml_type
        return name, shape, form, offset, size // width * row_bytes if size else 0

    def settle_dialects(self, entries: list[Unsettled], data_offset: int, alignment: int) -> None:
        """Find the formats of tensors whose type means several formats, or none of ggml's own, by their sizes.

        A file is of one program. So a type means the format that fits all its tensors; of several, ggml's own. Raises
        FileError for a size that fits none.
        """
        offsets = sorted({entry[3] for entry in entries})
        after = dict(pairwise(offsets))
        in_order = sorted(self.unsettled, key=lambda index: entries[index][3])
        for ggml_type in set(self.unsettled.values()):
            indices = [index for index in in_order if self.unsettled[index] == ggml_type]
            own = {form for _, _, form, _, _ in map(entries.__getitem__, indices) if form}
            left = {i: max(0, after.get(entries[i][3], self.size - data_offset) - entries[i][3]) for i in indices}
            if all(entries[i][2] and align(entries[i][4], alignment) == align(left[i], alignment) for i in indices):
                continue  # as in any file of ggml's own
            every = [*own, *meanings(ggml_type)]
            forms = every
            for index in indices:
                name, shape, _, offset, _ = entries[index]
                if 0 in shape:
                    continue
                sizes = {form: stored_bytes(form, shape) for form in every}
                fitting = fit(sizes, left[index], alignment, offset not in after)
                forms = [form for form in forms if form in fitting]
                if not forms:
                    raise self.misfit(name, shape, ggml_type, left[index], sizes)
            for index in indices:
                name, shape, _, offset, _ = entries[index]
                if forms[0].dialect and self.byte_order == "big":
                    what = f"{forms[0].name}, a format of {forms[0].dialect}"
                    raise self.error(f"tensor {quote(name)} is {what}, which has no big-endian files")
                size = 0 if 0 in shape else stored_bytes(forms[0], shape) or 0
                entries[index] = name, shape, forms[0], offset, size

    def misfit(
        self, name: str, shape: tuple[int, ...], ggml_type: int, room: int, sizes: dict[Format, int | None]
    ) -> FileError:
        """Return the error for a tensor whose size fits no meaning of its type."""
        known = [
            f"{form.name}{f' ({form.dialect})' if form.dialect else ''}: "
            + (f"{size} bytes" if size is not None else "not this shape")
            for form, size in sizes.items()
        ]
        has = f"tensor {quote(name)} of shape {shape} and type {ggml_type} has {max(0, room)} bytes"
        return self.error(f"{has}, which is none of what it may be: {', '.join(known)}")

    def tail(self, form: Format, end: int) -> NDArray[np.uint8]:
        """Return the bytes after a tensor's rows; they end at byte `end`."""
        return self.mapped(end - form.tail_bytes, end)

    def check_offsets(self, entries: list[Entry], data_offset: int, alignment: int) -> None:
        """Raise FileError unless tensors follow each other, each at the next aligned offset, inside the file."""
        expected = 0
        for name, _, _, offset, nbytes in sorted(entries, key=itemgetter(3, 4)):
            end = data_offset + offset + nbytes
            if offset == expected and (end <= self.size or not nbytes):
                expected = align(offset + nbytes, alignment)
                continue
            where = f"data of tensor {quote(name)} is at offset {offset}"
            if offset % alignment:
                raise self.error(f"{where}, not a multiple of the alignment {alignment}")
            if offset != expected:
                problem = "overlaps the tensor before it" if offset < expected else "leaves a gap before it"
                raise self.error(f"{where}, which {problem}: {expected} expected")
            needed = f"{nbytes} bytes, so the file must have {end} bytes; it has {self.size}"
            raise self.error(f"{where} and needs {needed}", hint="the file is cut short: fetch it again")


def _joined(named: GgufFile, open_one: OpenOne) -> GgufFile:
    """Return the split set that `named` belongs to; open it again if it was replaced meanwhile."""
    end = time.monotonic() + PATIENCE
    while True:
        opened: GgufFile | FileError
        try:
            opened = _join(named, open_one)
        except FileError as error:
            opened = error
        if named.is_stored:
            break
        check_file_whole(named.path)
        parts = [named] if isinstance(opened, FileError) else opened.parts
        is_same = all(state_of(part.path) == part.state for part in parts)
        if is_same or time.monotonic() > end:
            break
        named = open_one(named.path)
    if isinstance(opened, FileError):
        raise opened
    return opened


def _join(named: GgufFile, open_one: OpenOne) -> GgufFile:
    """Return the split set that `named` belongs to. Raises FileError if it is incomplete or inconsistent."""
    paths = paths_of_set(named)
    missing = [path.name for path in paths if not named.is_stored and not path.is_file()]
    if missing:
        absent = f"{len(missing)} of which are missing in its folder: {few(missing)}"
        hint = "all shards must be in one folder, under the names they were given"
        raise FileError(f"{named.path} is one of {len(paths)} shards, {absent}", hint)
    if not named.is_stored:
        _check_open_files(named.path, len(paths))
    parts = [named if path == named.path else open_one(path) for path in paths]
    tensors: dict[str, Tensor] = {}
    for number, part in enumerate(parts):
        numbers = (part.metadata.get("split.no"), part.metadata.get("split.count"))
        if numbers != (number, len(parts)):
            wanted = f"shard {number} of {len(parts)} (split.no, split.count)"
            raise FileError(f"{part.path} should be {wanted}; its metadata has {numbers[0]} of {numbers[1]}")
        if part.byte_order != parts[0].byte_order:
            first = f"{parts[0].path} is {parts[0].byte_order} endian"
            raise FileError(f"{part.path} is {part.byte_order} endian, {first}")
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise FileError(f"tensor {quote(name)} is in two shards: {tensors[name].origin}, {tensor.origin}")
            tensors[name] = tensor
    total = parts[0].metadata.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise FileError(f"{parts[0].path} claims {total} tensors in all shards, which hold {len(tensors)}")
    return replace(
        parts[0],
        path=named.path,
        metadata=without_split_keys(parts[0].metadata),
        tensors=tensors,
        shards=paths,
        parts=parts,
        offsets={name: offset for part in parts for name, offset in part.offsets.items()},
        file_size=sum(part.file_size for part in parts),
    )


def _check_open_files(path: Path, shards: int) -> None:
    """Raise FileError if the process may not open so many files: a map of a file counts as one."""
    try:
        import resource  # not on Windows, which has no such limit
    except ImportError:
        return
    needed = shards + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        problem = f"{path} is one of {shards} shards, which takes {needed} open files; {hard} are allowed"
        raise FileError(problem, hint=f"allow more: ulimit -n {max(1024, needed)}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def paths_of_set(named: GgufFile) -> list[Path]:
    """Return the paths of a set's shards by the name of one of them: all are in its folder."""
    count = named.split_count
    match = SHARD_NAME.fullmatch(named.path.name)
    if match is None or int(match["count"]) != count:
        wanted = shard_name("", named.metadata.get("split.no", 0) + 1, count)
        problem = f"{named.path} is a shard of a set of {count}, but its name does not end in {wanted}"
        raise FileError(problem, hint="give all shards the names they were published under")
    return shard_paths(named.path, match["prefix"], count)
