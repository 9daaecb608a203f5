"""Keep encoded tensors and measured figures next to the output until it is written, also between runs.

NAME.encoded            bytes of tensors, one after the other
NAME.encoded.journal    one JSON line about the work, then one for each tensor: [name, format, first byte, bytes,
                        crc32, remark], and for each figure: {"figure": name, "is": …}

A search uses NAME.search instead. A line is noted after the bytes were handed to the system, and these are compared
with their checksum before they are used.
"""

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quants import Format, Tensor
from quants.errors import FileError, GgufToolsError

from ..io.atomic import explained, write_at
from ..io.shared_file import reopened
from ..io.unfinished import Unfinished, unfinished
from ..writing.resume import ENCODED, JOURNAL, READ_BACK

ALIGNED = 4096  # bytes
ANEW = "run it without `resume` to start anew"


class Place(NamedTuple):
    """Hold offset and size of a tensor's bytes."""

    at: int
    size: int


class Lent(NamedTuple):
    """Describe float32 arrays of these shapes, one after the other in a file. crc: crc32 of their bytes."""

    path: Path
    at: int
    shapes: tuple[tuple[int, ...], ...]
    crc: int

    def arrays(self) -> list[NDArray[np.float32]] | None:
        """Return the arrays, mapped; None if this process does not see the file, or sees another."""
        counts = [math.prod(shape) for shape in self.shapes]
        try:
            mapped = np.memmap(self.path, np.float32, "c", self.at, (sum(counts),)).view(np.ndarray)
        except (OSError, ValueError):  # none there, or a shorter one
            return None
        if zlib.crc32(mapped.data) != self.crc:
            return None
        ends = np.cumsum(counts).tolist()
        places = zip(self.shapes, ends, counts, strict=True)
        return [mapped[end - count : end].reshape(shape) for shape, end, count in places]


class Encoded:
    """Hold kept tensors by name, their remarks, and measured figures."""

    def __init__(self, file: Unfinished) -> None:
        self.file = file
        self.tensors: dict[str, Tensor] = {}
        self.remarks: dict[str, dict[str, Any]] = {}
        self.figures: dict[str, Any] = {}
        self._places: dict[str, Place] = {}

    def keep(self, like: Tensor, form: Format, raw: NDArray[np.uint8], remark: Mapping[str, Any]) -> Tensor:
        """Keep the bytes (rows, bytes of a row) of a tensor with the name and shape of `like`. Raises FileError.

        They replace earlier bytes of that name.
        """
        data = np.ascontiguousarray(raw).reshape(-1).data
        place = self._place_for(len(data))
        with explained(self.file.target, len(data)):
            write_at(self.file.fd, data, place.at)
            self.file.note([like.name, form.name, *place, zlib.crc32(data), dict(remark)])
        return self._add(like, form, place, dict(remark))

    def lend(self, arrays: Sequence[NDArray[np.float32]]) -> Lent:
        """Write arrays where workers can map them, until a tensor is kept or others are lent. Raises FileError."""
        plain = [np.ascontiguousarray(array, np.float32).reshape(-1) for array in arrays]
        size, crc = sum(array.nbytes for array in plain), 0
        first = at = -(-self._place_for(size + ALIGNED).at // ALIGNED) * ALIGNED
        with explained(self.file.target, size), reopened(self.file.path) as fd:
            for array in plain:
                data = array.view(np.uint8).data
                write_at(fd, data, at)
                at, crc = at + len(data), zlib.crc32(data, crc)
        return Lent(self.file.path.absolute(), first, tuple(array.shape for array in arrays), crc)

    def note(self, figure: str, value: Any) -> None:
        """Keep a measured value, plain data. Raises FileError."""
        with explained(self.file.target, 0):
            self.file.note({"figure": figure, "is": value})
        self.figures[figure] = value

    def drop_tensors(self) -> None:
        """Forget all tensors, but not the figures."""
        os.ftruncate(self.file.fd, 0)
        self.tensors, self.remarks, self._places = {}, {}, {}

    def _place_for(self, size: int) -> Place:
        """Return the first gap between tensors that is large enough, or their end."""
        at = 0
        for place in sorted(self._places.values()):
            if place.at - at >= size:
                break
            at = max(at, place.at + place.size)
        return Place(at, size)

    def _add(self, like: Tensor, form: Format, place: Place, remark: dict[str, Any]) -> Tensor:
        name, row_bytes, fd = like.name, form.row_bytes(like.width), self.file.fd

        def read(start: int, stop: int) -> NDArray[np.uint8]:
            data = bytearray()
            while len(data) < (stop - start) * row_bytes:  # a call reads 2 GiB at most
                wanted = (stop - start) * row_bytes - len(data)
                more = os.pread(fd, min(READ_BACK, wanted), place.at + start * row_bytes + len(data))
                if not more:
                    raise FileError(f"{self.file.path} was made shorter while it was read", hint="run it again")
                data += more
            return np.frombuffer(data, np.uint8).reshape(stop - start, row_bytes)

        self._places[name], self.tensors[name] = place, Tensor(name, like.shape, form, read)
        self.remarks[name] = remark
        return self.tensors[name]

    def restore(self, wanted: Mapping[str, tuple[Tensor, Sequence[Format]]]) -> None:
        """Take over an earlier run's figures, and its kept bytes of these tensors if they are as they were written."""
        for line in self.file.lines[1:]:
            with suppress(ValueError, TypeError, KeyError, OSError):  # the line that a kill cut off
                entry = json.loads(line)
                if isinstance(entry, dict):
                    self.figures[entry["figure"]] = entry["is"]
                    continue
                name, form_name, at, size, crc, remark = entry
                like, forms = wanted[name]
                form = next((form for form in forms if form.name == form_name), None)
                if form is None or like.rows * form.row_bytes(like.width) != size or self._crc(at, size) != crc:
                    continue
                self._add(like, form, Place(at, size), dict(remark))

    def _crc(self, at: int, size: int) -> int:
        crc = 0
        while size > 0:
            data = os.pread(self.file.fd, min(READ_BACK, size), at)
            if not data:
                return -1
            crc, at, size = zlib.crc32(data, crc), at + len(data), size - len(data)
        return crc


@contextmanager
def open_encoded(target: Path, head: Mapping[str, Any], resume: bool, suffix: str = ENCODED) -> Iterator[Encoded]:
    """Begin to keep tensors next to `target`, or take over those of an earlier run; removed when the block ends well.

    head: what they are encoded from and how, with the key "gguftools". After an error that another try may not meet,
    they stay for the next run. Raises FileError if another run is using them, or if the earlier run did other work.
    """
    with unfinished(target, suffix, suffix + JOURNAL, head, "gguftools", 0, overwrite=False) as file:
        if resume and file.lines and json.loads(file.lines[0]) != json.loads(json.dumps(head)):
            problem = f"{target} was begun from other files, on other texts or with other options"
            raise FileError(problem, hint=ANEW)
        sizes = [0]
        with suppress(OSError):
            sizes.append(file.path.lstat().st_size)
        file.open(*(sizes if file.lines else [0]))
        if not (resume and file.lines):
            with explained(target, 0):
                file.restart(head)
            file.lines.clear()
        try:
            yield Encoded(file)
        except GgufToolsError as error:
            if not isinstance(error.__cause__, OSError):
                file.abandon()  # another try would end in the same way
            raise
        file.abandon()
