"""Write bases (see `base`): rows of windows as they are measured, in a file that another run can resume."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archs.metadata import Metadata, ValueType
from quants import Tensor, format_named, from_array
from quants.errors import OptionError
from runtime.evaluation.divergence import Rows
from runtime.evaluation.stored_states import Likeliest, likeliest
from runtime.head import LazyLogits

from ...io.atomic import NOTHING, InputFiles
from ...io.gguf.writer import TensorInfo, plan_file
from ...io.locks import State
from ...writing.resume import PartialGguf, fingerprint, partial_path, resumable_gguf
from .base import GENERAL_TYPE, HASHED_AT_ONCE, PREFIX, VERSION, Run, matrix_digest, text_digest

Fixed = dict[str, NDArray[Any]]


class BaseWriter:
    """Takes a base's rows: windows in any order, each from its first prediction on."""

    def __init__(self, file: PartialGguf, run: Run, names: Sequence[str], top_k: int | None) -> None:
        self._file, self._run, self._top_k = file, run, top_k
        self._index = {name: i for i, name in enumerate(names)}
        self._begins = np.cumsum([0, *(len(window.scored) for window in run.windows)]).tolist()
        self._parts: list[tuple[NDArray[Any], ...]] = []

    @property
    def needs_rows(self) -> bool:
        """Return whether it takes rows of logits, not final states."""
        return self._top_k is not None

    @property
    def state(self) -> State:
        """Return the state of the file, which stays the same under its final name."""
        return self._file.state

    def covered(self, window: int) -> bool:
        """Return whether an earlier run wrote this window."""
        start, stop = self._begins[window : window + 2]
        names = ("top.ids", "top.log_p", "top.figures") if self.needs_rows else ("states",)
        return all(self._file.covered(self._index[name], start, stop) is not None for name in names)

    def add(self, window: int, start: int, stop: int, given: Rows | LazyLogits) -> None:
        """Add predictions start … stop - 1 of a window, which is written once it is complete."""
        if start == 0:
            self._parts = []
        if isinstance(given, Rows):
            self._parts.append(likeliest(given, self._top_k or 1))
        else:
            self._parts.append((given.x.reshape(-1, given.x.shape[-1]),))
        if stop < len(self._run.windows[window].scored) or self.covered(window):
            return
        names = Likeliest._fields if self.needs_rows else ("states",)
        for name, parts in zip(names, zip(*self._parts, strict=True), strict=True):
            full = f"top.{name}" if self.needs_rows else name
            rows = np.ascontiguousarray(np.concatenate(parts))
            little = rows.astype(rows.dtype.newbyteorder("<"), copy=False)
            self._file.write(self._index[full], self._begins[window], little.view(np.uint8))
        self._parts = []


@contextmanager
def saved_base(
    target: Path,
    run: Run,
    *,
    sources: Sequence[Path] = (),
    top_k: int | None = None,
    with_output: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    reads: InputFiles = NOTHING,
) -> Iterator[BaseWriter]:
    """Write a base, which appears when the block ends and all windows were added.

    top_k: store so many top tokens instead of states. with_output: store the output matrix, too. resume: keep the
    windows in the TARGET.partial of a killed run; sources: files that must be unchanged then. Raises OptionError,
    FileError as `writing.resume.resumable_gguf` does.
    """
    if top_k is not None and top_k < 1:
        raise OptionError(f"a base of the {top_k} likeliest tokens; at least 1 is needed")
    if top_k is not None and with_output:
        raise OptionError("a top-k base needs no output matrix", "leave out one of both")
    weight, fixed = run.output.weight, _fixed(run, with_output or top_k is None)
    infos = [_info(name, values) for name, values in fixed.items()]
    infos += _row_infos(run, top_k)
    if with_output:
        infos.append(TensorInfo("output.weight", weight.shape, weight.format))
    layout = plan_file(_metadata(run, top_k), infos)
    plan = hashlib.sha256(layout.header).hexdigest()
    names = [info.name for info in infos]
    anew = f"delete {partial_path(target)} to start anew"
    with resumable_gguf(target, layout, plan, fingerprint(sources), resume, overwrite, reads, anew) as file:
        for name, values in fixed.items():
            tensor = from_array(name, values)
            _write_all(file, names.index(name), tensor)
        if with_output:
            _write_all(file, names.index("output.weight"), weight)
        yield BaseWriter(file, run, names, top_k)


def _fixed(run: Run, with_bias: bool) -> Fixed:
    rows = [
        (number, each.start, len(each.inputs), len(each.scored))
        for number, windows in enumerate(run.texts.values())
        for each in windows
    ]
    fixed: Fixed = {
        "windows": np.array(rows, np.int32),
        "tokens": np.concatenate([each.inputs for each in run.windows]).astype(np.int32),
        "positions": np.concatenate([each.scored for each in run.windows]).astype(np.int32),
    }
    if run.output.bias is not None and with_bias:
        fixed["output.bias"] = run.output.bias.astype(np.float32)
    return fixed


def _info(name: str, values: NDArray[Any]) -> TensorInfo:
    tensor = from_array(name, values)
    return TensorInfo(name, tensor.shape, tensor.format)


def _row_infos(run: Run, top_k: int | None) -> list[TensorInfo]:
    count = sum(len(each.scored) for each in run.windows)
    one, ids = format_named("F32"), format_named("I32")
    if top_k is None:
        return [TensorInfo("states", (count, run.output.weight.width), one)]
    k = min(top_k, run.output.weight.rows)
    return [
        TensorInfo("top.ids", (count, k), ids),
        TensorInfo("top.log_p", (count, k), one),
        TensorInfo("top.figures", (count, 3), one),
    ]


def _write_all(file: PartialGguf, index: int, tensor: Tensor) -> None:
    step = max(1, HASHED_AT_ONCE // max(1, tensor.row_bytes))
    for start in range(0, tensor.rows, step):
        stop = min(start + step, tensor.rows)
        if file.covered(index, start, stop) is None:
            file.write(index, start, np.ascontiguousarray(tensor.raw(start, stop)))


def _metadata(run: Run, top_k: int | None) -> Metadata:
    weight, metadata = run.output.weight, Metadata({"general.type": GENERAL_TYPE})
    texts = ("texts", "model", "precision", "text.sha256", "vocabulary.sha256")
    values = (list(run.texts), run.model, run.precision, text_digest(run.windows), run.vocabulary)
    for name, value in zip(texts, values, strict=True):
        metadata[PREFIX + name] = value
    numbers = {"version": VERSION, "n_ctx": run.n_ctx, "vocabulary.size": weight.rows}
    for name, number in numbers.items():
        metadata.set(PREFIX + name, number, ValueType.UINT32)
    if top_k is not None:
        metadata.set(PREFIX + "top_k", min(top_k, weight.rows), ValueType.UINT32)
        return metadata
    metadata[PREFIX + "output.name"] = weight.name
    metadata[PREFIX + "output.type"] = weight.format.name
    metadata[PREFIX + "output.sha256"] = matrix_digest(weight)
    metadata.set(PREFIX + "output.width", weight.width, ValueType.UINT32)
    metadata.set(PREFIX + "output.scale", run.output.scale, ValueType.FLOAT64)
    metadata.set(PREFIX + "output.softcap", run.output.softcap or 0.0, ValueType.FLOAT64)
    return metadata
