"""Read PyTorch's files without PyTorch, and without running code that they contain.

A file is a zip archive of a pickle (`*/data.pkl`) and the tensors' storages (`*/data/KEY`), or, before 2020, a sequence
of pickles followed by the storages. `pickle_machine` runs the pickles.
"""

import math
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from quants import Tensor
from quants.errors import FileError
from quants.spelling import quote

from ..gguf.reader import MAX_VALUES, map_file
from ..positioned import PositionedInput, row_reader
from .pickle_machine import PickleMachine, Storage, Strided

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_PROTOCOL = 1001
ZIP = b"PK\x03\x04"
MAX_DEPTH = 4  # of dictionaries in dictionaries
MAX_DIRECTORY = 16 << 20  # bytes of a zip archive's list of members
MAX_EXPANDED = 1 << 24  # values a tensor may have beyond those stored (strides of zero)

HOLDERS = (Strided, dict, list, tuple)  # what is a tensor, or may hold one

Bytes = NDArray[np.uint8]
_Name = tuple[Any, ...]  # empty of the whole; of what it holds (name of the holder, key)


def open_torch(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a PyTorch file by name, in its order; names of inner dictionaries are joined by dots.

    A file with a single tensor names it "". Other values (numbers, strings) are left out. Raises FileError for a
    damaged file, and for one that needs more than tensors.
    """
    path = Path(path)
    buffer = map_file(path, "PyTorch file")
    is_zip = buffer[:4].tobytes() == ZIP
    root, storages = _read_zip(path, buffer) if is_zip else _read_legacy(path, buffer)
    file, start = PositionedInput(path), buffer.ctypes.data
    tensors: dict[str, Tensor] = {}
    for name, strided in _flatten(path, root) if isinstance(root, HOLDERS) else ():
        if name in tensors:
            raise FileError(f"{path}: there are two tensors {quote(name)}")
        storage = _storage_bytes(path, strided.storage, storages, is_zip)
        tensors[name] = _tensor(file, name, strided, storage, storage.ctypes.data - start)
    return tensors


def torch_numbers(path: Path) -> dict[str, float]:
    """Return the numbers of the dictionary in a PyTorch file, by name. Raises FileError as `open_torch`."""
    path = Path(path)
    buffer = map_file(path, "PyTorch file")
    root, _ = _read_zip(path, buffer) if buffer[:4].tobytes() == ZIP else _read_legacy(path, buffer)
    items = root.items() if isinstance(root, dict) else ()
    return {str(key): value for key, value in items if type(value) in (int, float)}


def _storage_bytes(path: Path, wanted: Storage, storages: Mapping[str, Bytes], exact: bool) -> Bytes:
    """Return the bytes of a storage, or of a view of it. exact: its size must be the described one."""
    raw, size = storages.get(wanted.key), wanted.format.block_bytes
    if raw is None:
        raise FileError(f"{path} has no storage {quote(wanted.key)}")
    if exact and len(raw) != wanted.count * size:
        where = f"{path}: storage {quote(wanted.key)}"
        raise FileError(f"{where} has {len(raw)} bytes, {wanted.count * size} expected")
    if (wanted.first + wanted.count) * size > len(raw):
        raise FileError(f"{path}: storage {quote(wanted.key)} has {len(raw)} bytes, more are used")
    return raw[wanted.first * size : (wanted.first + wanted.count) * size]


def _flatten(path: Path, root: Any) -> Iterator[tuple[str, Strided]]:
    seen: set[int] = set()
    waiting: list[tuple[_Name, Any, int]] = [((), root, 0)]
    while waiting:
        name, value, depth = waiting.pop()
        if isinstance(value, Strided):
            yield _joined(name), value
            continue
        if id(value) in seen or depth > MAX_DEPTH:
            raise FileError(f"{path}: {quote(_joined(name))} is held twice, or deeper than {MAX_DEPTH} levels")
        if value:
            seen.add(id(value))
        items = value.items() if isinstance(value, dict) else enumerate(value)
        inner = [((name, key), item, depth + 1) for key, item in items if isinstance(item, HOLDERS)]
        waiting += reversed(inner)


def _joined(name: _Name) -> str:
    """Join the keys that lead to a value, when the name is needed."""
    keys = list[str]()
    while name:
        name, key = name
        keys.append(str(key))
    return ".".join(reversed(keys))


def _tensor(file: PositionedInput, name: str, strided: Strided, storage: Bytes, position: int) -> Tensor:
    """Make a Tensor of a storage, which begins at `position` of the file.

    Contiguous tensors are read from the file, others through the map.
    """
    shape, strides, form = strided.shape, strided.strides, strided.format
    where = f"{file.path}: tensor {quote(name)}"
    stored, size = len(storage) // form.block_bytes, math.prod(shape)
    if math.prod(n for n in shape if n) > MAX_VALUES or size > max(stored, MAX_EXPANDED):
        raise FileError(f"{where} of shape {shape} has more values than its storage, which holds {stored}")
    last = strided.offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if size and last >= stored:
        raise FileError(f"{where} uses number {last} of a storage that holds {stored}")
    width, rows = shape[-1] if shape else 1, math.prod(shape[:-1])
    origin = f"{file.path.name}: {name}"
    # Strides of dimensions of size 1 mean nothing.
    is_contiguous = all(n == 1 or strides[i] == math.prod(shape[i + 1 :]) for i, n in enumerate(shape))
    if not size or is_contiguous:
        begin = position + strided.offset * form.block_bytes
        return Tensor(name, shape, form, row_reader(file.read, begin, shape, form), origin)
    size, step = form.block_bytes, strides[-1]
    numbers = storage[: stored * size].view(np.dtype(f"V{size}"))
    leading, leading_strides = shape[:-1] or (1,), strides[:-1] or (0,)
    # Row o of this view begins at number o of the storage.
    all_rows = as_strided(numbers, (stored - (width - 1) * step, width), (size, step * size), writeable=False)

    def read(start: int, stop: int) -> Bytes:
        indices = np.unravel_index(np.arange(*slice(start, stop).indices(rows)), leading)
        firsts = strided.offset + sum(i * s for i, s in zip(indices, leading_strides, strict=True))
        copied = np.ascontiguousarray(all_rows[firsts])
        return copied.view(np.uint8).reshape(len(copied), width * size)

    return Tensor(name, shape, form, read, origin)


def _read_zip(path: Path, buffer: Bytes) -> tuple[Any, dict[str, Bytes]]:
    members = _zip_members(path, buffer)
    pickles = [name for name in members if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise FileError(f"{path} is a zip archive with {len(pickles)} members data.pkl; PyTorch's files have one")
    prefix = pickles[0].removesuffix("data.pkl")
    order = members.get(f"{prefix}byteorder")
    if order is not None and order.tobytes() != b"little":
        raise FileError(f"{path} was written with byte order {order[:16].tobytes()!r}; only b'little' is supported")
    root, _ = PickleMachine(path, members[pickles[0]].tobytes()).run(0)
    return root, {name.removeprefix(f"{prefix}data/"): raw for name, raw in members.items()}


def _zip_members(path: Path, buffer: Bytes) -> dict[str, Bytes]:
    """Return the bytes of every member by its name, as they lie in the file."""
    _check_directory(path, buffer)
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError, OSError, OverflowError) as error:
        raise FileError(f"{path} is damaged: it starts as a zip archive, but {error}", hint="fetch it again") from error
    members: dict[str, Bytes] = {}
    for info in infos:
        name = info.filename
        if name in members:
            raise FileError(f"{path}: the zip archive has two members {quote(name)}")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.file_size != info.compress_size:
            raise FileError(f"{path}: member {quote(name)} is compressed; PyTorch stores members as they are")
        # The local header repeats the central one, but its extra field, which pads the data, is its own.
        local = buffer[info.header_offset : info.header_offset + 30].tobytes() if info.header_offset >= 0 else b""
        if len(local) < 30 or local[:4] != b"PK\x03\x04":
            raise FileError(f"{path} is damaged: member {quote(name)} is not at byte {info.header_offset}")
        name_length, extra_length = struct.unpack_from("<HH", local, 26)
        begin = info.header_offset + 30 + name_length + extra_length
        if begin + info.file_size > len(buffer):
            raise FileError(f"{path} is cut short: member {quote(name)} ends at byte {begin + info.file_size}")
        members[name] = buffer[begin : begin + info.file_size]
    return members


def _check_directory(path: Path, buffer: Bytes) -> None:
    """Raise FileError for a list of members that would fill memory."""
    tail = buffer[-(1 << 16) - 512 :].tobytes()
    for signature, place, size in ((b"PK\x05\x06", 12, 4), (b"PK\x06\x06", 40, 8)):  # zip, zip64
        begin = tail.rfind(signature) + place
        claimed = int.from_bytes(tail[begin : begin + size], "little") if begin >= place else 0
        if claimed > MAX_DIRECTORY and claimed != 0xFFFFFFFF:  # which refers to zip64
            raise FileError(f"{path}: the zip archive lists its members in {claimed:,} bytes; no weights need as many")


def _read_legacy(path: Path, buffer: Bytes) -> tuple[Any, dict[str, Bytes]]:
    not_ours = FileError(f"{path} is not a PyTorch file: it starts with {buffer[:8].tobytes()!r}")
    if buffer[0] != 0x80:  # every pickle since 2003 begins so
        raise not_ours
    machine = PickleMachine(path, buffer.data)
    magic, position = machine.run(0)
    if magic != LEGACY_MAGIC:
        raise not_ours
    protocol, position = machine.run(position)
    system, position = machine.run(position)
    if protocol != LEGACY_PROTOCOL or not isinstance(system, dict) or system.get("little_endian") is not True:
        raise FileError(f"{path} was written by a PyTorch that is too old, or on a big-endian machine")
    root, position = machine.run(position)
    keys, position = machine.run(position)
    storages: dict[str, Bytes] = {}
    for key in keys if isinstance(keys, list) else []:
        form = machine.storage_formats.get(str(key))
        if form is None:
            raise FileError(f"{path}: no tensor uses storage {quote(key)}, so its size is unknown")
        count = int.from_bytes(buffer[position : position + 8].tobytes(), "little")
        end = position + 8 + count * form.block_bytes
        if end > len(buffer):
            raise FileError(f"{path} is cut short: storage {quote(key)} ends at byte {end}, the file at {len(buffer)}")
        storages[str(key)] = buffer[position + 8 : end]
        position = end
    return root, storages
