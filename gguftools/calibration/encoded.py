"""Tensors that were encoded already, kept beside the output until it is written, also from one run to the next.

    NAME.encoded            their bytes, one tensor behind the other
    NAME.encoded.journal    one JSON line that says of what and how, then one for each tensor: [name, format, first
                            byte, bytes, crc32, what was said of it]

A line is noted after the bytes were handed to the system, and these are compared with their sum before they are
believed.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants import Format, Tensor
from quants.errors import FileError, GgufToolsError

from ..files.atomic import Unfinished, explained, unfinished, write_at
from ..writing.resume import JOURNAL

ENCODED = ".encoded"


class Encoded:
    """tensors: those that are there, by name; remarks: what was said of each."""

    def __init__(self, file: Unfinished) -> None:
        self.file, self.end = file, 0
        self.tensors: dict[str, Tensor] = {}
        self.remarks: dict[str, dict[str, Any]] = {}

    def keep(self, like: Tensor, form: Format, raw: NDArray[np.uint8], remark: Mapping[str, Any]) -> Tensor:
        """Keep the bytes (rows, bytes of a row) of a tensor with the name and shape of another. Raises FileError."""
        data = np.ascontiguousarray(raw).reshape(-1).data
        with explained(self.file.target, len(data)):
            write_at(self.file.fd, data, self.end)
            self.file.note([like.name, form.name, self.end, len(data), zlib.crc32(data), dict(remark)])
        return self._add(like.name, like.shape, form, self.end, len(data), dict(remark))

    def _add(
        self, name: str, shape: tuple[int, ...], form: Format, at: int, size: int, remark: dict[str, Any]
    ) -> Tensor:
        row_bytes, fd = form.row_bytes(shape[-1]), self.file.fd

        def read(start: int, stop: int) -> NDArray[np.uint8]:
            data = os.pread(fd, (stop - start) * row_bytes, at + start * row_bytes)
            return np.frombuffer(data, np.uint8).reshape(stop - start, row_bytes)

        self.tensors[name] = Tensor(name, shape, form, read)
        self.remarks[name], self.end = remark, max(self.end, at + size)
        return self.tensors[name]

    def restore(self, wanted: Mapping[str, tuple[Tensor, Format]]) -> None:
        """Take what an earlier run kept of these tensors, as far as it is as it was written."""
        for line in self.file.lines[1:]:
            with suppress(ValueError, TypeError, KeyError):  # the line that a kill cut off
                name, form_name, at, size, crc, remark = json.loads(line)
                like, form = wanted[name]
                if form.name != form_name or like.rows * form.row_bytes(like.width) != size:
                    continue
                if zlib.crc32(os.pread(self.file.fd, size, at)) == crc:
                    self._add(name, like.shape, form, at, size, dict(remark))


@contextmanager
def encoded_beside(target: Path, head: Mapping[str, Any], resume: bool) -> Iterator[Encoded]:
    """Begin to keep tensors beside `target`, or take up what an earlier run kept; it is gone when the block ends well.

    head: what they are encoded from and how; "gguftools" in it. It stays for the next run after an error that another
    try may not end in.
    Raises FileError where another run is at work on it, or the earlier one did something else.
    """
    with unfinished(target, ENCODED, ENCODED + JOURNAL, head, "gguftools", 0, overwrite=False) as file:
        if resume and file.lines and json.loads(file.lines[0]) != json.loads(json.dumps(head)):
            problem = f"{target} was begun from other files, on other texts or with other options"
            raise FileError(problem, hint="run it without --resume to start anew")
        sizes = [0]
        with suppress(OSError):
            sizes.append(file.path.lstat().st_size)
        file.open(*(sizes if file.lines else [0]))
        if not (resume and file.lines):
            with explained(target, 0):
                file.restart(head)
        try:
            yield Encoded(file)
        except GgufToolsError as error:
            if not isinstance(error.__cause__, OSError):
                file.abandon()  # another try would end in the same way
            raise
        file.abandon()
