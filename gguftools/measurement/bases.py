"""Base runs in files of our own: what a divergence is measured from, without the model running again.

A base is a GGUF file of general.type "logits-base". It has the windows' tokens, which positions of them are scored, and
of each scored position the model's final state (`runtime.stored_states`), 24 to 42 times less than the logits. These
are computed again from the model's output matrix, which is recognised by its digest: it is in the model that the base
was made of, in any other file that has the same one, or in the base itself. A top-k base needs no matrix.

    windows    I32 (windows, 4): number of the text, where in its tokens it begins, tokens, scored positions
    tokens     I32: what the model is given, of all windows, one after the other
    positions  I32: the scored positions in their windows, one after the other
    states     F32 (scored, width), or else
    top.ids    I32 (scored, k), top.log_p F32 (scored, k), top.figures F32 (scored, 3)
    output.bias, output.weight: where the output has a bias; where the matrix was asked for
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archs.metadata import Metadata, ValueType
from quants import Tensor, format_named, from_array
from quants.arguments import PathLike, as_path
from quants.errors import FileError, OptionError
from quants.tensor import readable
from runtime.arrays import Ids
from runtime.divergence import Rows
from runtime.head import LazyLogits, Output
from runtime.precision import Precision, precision_named
from runtime.stored_states import Likeliest, StoredStates, StoredTops, likeliest
from runtime.windows import Window

from ..files.atomic import NOTHING, Reads
from ..files.gguf.reader import GgufFile, open_gguf
from ..files.gguf.writer import TensorInfo, encode_header, plan_file
from ..files.locks import State
from ..model import Model, opened
from ..writing.resume import PartialGguf, fingerprint, partial_path, resumable_gguf

KIND, VERSION = "logits-base", 1
PREFIX = "logits_base."
HASHED_AT_ONCE = 1 << 24  # bytes
MODELS = ("output.weight", "token_embd.weight")  # the names of output matrices
INPUTS = ("tokenizer.ggml.model", "tokenizer.ggml.tokens")  # of which tokenizers have to be the same

Fixed = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Run:
    """What a base is made of, beside its rows.

    windows: in the order of their rows, by the name of their text. model: the path as it was given. vocabulary: a
    digest, see `vocabulary_digest`.
    """

    texts: Mapping[str, Sequence[Window]]
    n_ctx: int
    model: str
    vocabulary: str
    precision: Precision
    output: Output

    @property
    def windows(self) -> list[Window]:
        """Of all texts."""
        return [window for windows in self.texts.values() for window in windows]


@dataclass(frozen=True)
class SavedBase:
    """A base that was read, as a base of `runtime.divergence`: rows are those of `source`.

    texts: windows by the name of their text. vocabulary_digest, text_digest: as `vocabulary_digest` and `text_digest`
    give them. picked: which windows of `source` these are.
    """

    path: Path
    texts: dict[str, list[Window]]
    n_ctx: int
    model: str
    precision: Precision
    vocabulary_digest: str
    text_digest: str
    source: StoredStates | StoredTops = field(repr=False)
    picked: tuple[int, ...] = field(repr=False)

    @property
    def windows(self) -> list[Window]:
        """Of all texts."""
        return [window for windows in self.texts.values() for window in windows]

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.source.vocabulary

    @property
    def lower_bound(self) -> bool:
        return self.source.lower_bound

    def rows(self, window: int, start: int, stop: int, targets: Ids, threads: int) -> Rows:
        return self.source.rows(self.picked[window], start, stop, targets, threads)

    def first(self, chunks: int | None) -> "SavedBase":
        """The base on the first so many windows of each text; None for all. Raises OptionError for less than one."""
        if chunks is None:
            return self
        if chunks < 1:
            raise OptionError(f"{chunks} chunks were asked for; at least 1 is needed")
        numbers, picked = iter(self.picked), list[int]()
        for windows in self.texts.values():
            picked += list(islice(numbers, len(windows)))[:chunks]
        texts = {name: windows[:chunks] for name, windows in self.texts.items()}
        return replace(self, texts=texts, picked=tuple(picked))

    def compare(self, base: Rows, other: Rows, threads: int) -> NDArray[np.float64]:
        return self.source.compare(base, other, threads)


def is_base(path: Path) -> bool:
    """Whether a file is such a base, by its content."""
    try:
        with path.open("rb") as file:
            beginning = file.read(256)  # the type is the first key
    except OSError:
        return False
    return beginning[:4] == b"GGUF" and KIND.encode() in beginning


def text_digest(windows: Iterable[Window]) -> str:
    """Of what models are given, and which positions of it are scored."""
    found = hashlib.sha256()
    for window in windows:
        for each in (window.inputs, window.scored):
            found.update(len(each).to_bytes(8, "little"))
            found.update(np.ascontiguousarray(each, "<i8").tobytes())
    return found.hexdigest()


def vocabulary_digest(metadata: Metadata) -> str:
    """Of the tokenizer's kind and its tokens: what must be the same for predictions to be comparable."""
    known = Metadata()
    for key in INPUTS:
        if key in metadata:
            known[key] = metadata.value(key)
    return hashlib.sha256(encode_header(known, [], [])).hexdigest()


def matrix_digest(tensor: Tensor) -> str:
    """Of a matrix as it is stored: its format, its shape, its bytes."""
    found = hashlib.sha256(f"{tensor.format.name} {tensor.shape}".encode())
    step = max(1, HASHED_AT_ONCE // max(1, tensor.row_bytes))
    for start in range(0, tensor.rows, step):
        found.update(np.ascontiguousarray(tensor.raw(start, min(start + step, tensor.rows))).data)
    return found.hexdigest()


class BaseWriter:
    """Takes a base's rows, windows in any order and each from its first prediction on."""

    def __init__(self, file: PartialGguf, run: Run, names: Sequence[str], top_k: int | None) -> None:
        self._file, self._run, self._top_k = file, run, top_k
        self._index = {name: i for i, name in enumerate(names)}
        self._begins = np.cumsum([0, *(len(window.scored) for window in run.windows)]).tolist()
        self._parts: list[tuple[NDArray[Any], ...]] = []

    @property
    def needs_rows(self) -> bool:
        """Whether it takes rows of logits; else final states."""
        return self._top_k is not None

    @property
    def state(self) -> State:
        """Of the file, which has it under its final name, too."""
        return self._file.state

    def covered(self, window: int) -> bool:
        """Whether an earlier run wrote this window."""
        start, stop = self._begins[window : window + 2]
        names = ("top.ids", "top.log_p", "top.figures") if self.needs_rows else ("states",)
        return all(self._file.covered(self._index[name], start, stop) is not None for name in names)

    def add(self, window: int, start: int, stop: int, given: Rows | LazyLogits) -> None:
        """Predictions start … stop - 1 of a window, which is written when its last one is there."""
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
    target: Path, run: Run, *, sources: Sequence[Path] = (), top_k: int | None = None, with_output: bool = False,
    resume: bool = False, overwrite: bool = False, reads: Reads = NOTHING,
) -> Iterator[BaseWriter]:  # fmt: skip
    """Write a base, which appears when the block ends and all windows were added.

    top_k: keep so many likeliest tokens instead of states. with_output: keep the output matrix with the states. A run
    that is killed leaves TARGET.partial behind, and with resume the windows in it are not written again; sources: files
    that must be the same then. Raises OptionError, FileError as `writing.resume.resumable_gguf` does.
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
        for number, windows in enumerate(run.texts.values()) for each in windows
    ]  # fmt: skip
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
        TensorInfo("top.ids", (count, k), ids), TensorInfo("top.log_p", (count, k), one),
        TensorInfo("top.figures", (count, 3), one),
    ]  # fmt: skip


def _write_all(file: PartialGguf, index: int, tensor: Tensor) -> None:
    step = max(1, HASHED_AT_ONCE // max(1, tensor.row_bytes))
    for start in range(0, tensor.rows, step):
        stop = min(start + step, tensor.rows)
        if file.covered(index, start, stop) is None:
            file.write(index, start, np.ascontiguousarray(tensor.raw(start, stop)))


def _metadata(run: Run, top_k: int | None) -> Metadata:
    weight, found = run.output.weight, Metadata({"general.type": KIND})
    texts = ("texts", "model", "precision", "text.sha256", "vocabulary.sha256")
    values = (list(run.texts), run.model, run.precision, text_digest(run.windows), run.vocabulary)
    for name, value in zip(texts, values, strict=True):
        found[PREFIX + name] = value
    numbers = {"version": VERSION, "n_ctx": run.n_ctx, "vocabulary.size": weight.rows}
    for name, number in numbers.items():
        found.set(PREFIX + name, number, ValueType.UINT32)
    if top_k is not None:
        found.set(PREFIX + "top_k", min(top_k, weight.rows), ValueType.UINT32)
        return found
    found[PREFIX + "output.name"] = weight.name
    found[PREFIX + "output.type"] = weight.format.name
    found[PREFIX + "output.sha256"] = matrix_digest(weight)
    found.set(PREFIX + "output.width", weight.width, ValueType.UINT32)
    found.set(PREFIX + "output.scale", run.output.scale, ValueType.FLOAT64)
    found.set(PREFIX + "output.softcap", run.output.softcap or 0.0, ValueType.FLOAT64)
    return found


def open_base(
    path: PathLike, *, base_model: PathLike | Model | None = None, others: Sequence[PathLike | Model] = (),
    threads: int = 1,
) -> SavedBase:  # fmt: skip
    """Read a base. base_model: what has its output matrix; without it that is looked for in the base itself, in the
    file that it was made of, and in `others`.

    Raises FileError for a file that is no such base, that is damaged, or whose matrix is nowhere.
    """
    path = as_path(path, "the base")
    file = open_gguf(path)
    key = _Keys(path, file.metadata)
    if file.metadata.get("general.type") != KIND:
        raise FileError(f"{path} is not a base: general.type is {file.metadata.get('general.type')!r}, not {KIND!r}")
    if key.number("version") != VERSION:
        raise key.error(f"is a base of version {key.number('version')}; {VERSION} is known", "update gguftools")
    size, top_k = key.number("vocabulary.size"), file.metadata.get(f"{PREFIX}top_k")
    texts = _texts(file, key, size)
    windows = [window for windows in texts.values() for window in windows]
    count = sum(len(window.scored) for window in windows)
    source: StoredStates | StoredTops
    if top_k is not None:
        k = key.number("top_k")
        shapes = {"top.ids": ("I32", k), "top.log_p": ("F32", k), "top.figures": ("F32", 3)}
        ids, log_p, figures = (_rows(file, key, name, form, (count, n)) for name, (form, n) in shapes.items())
        source = StoredTops(windows, _checked_ids(ids, key, size), log_p, figures, size)
    else:
        states = _rows(file, key, "states", "F32", (count, key.number("output.width")))
        output = _output(file, key, base_model, others)
        source = StoredStates(windows, states, output, precision_named(key.text("precision")), threads)
    return SavedBase(
        path, texts, key.number("n_ctx"), key.text("model"), precision_named(key.text("precision")),
        key.text("vocabulary.sha256"), key.text("text.sha256"), source, tuple(range(len(windows))),
    )  # fmt: skip


@dataclass(frozen=True)
class _Keys:
    """The keys of a base, each with the type that it must have."""

    path: Path
    metadata: Mapping[str, Any]

    def error(self, what: str, hint: str | None = None) -> FileError:
        return FileError(f"{self.path} {what}", hint or "it is damaged, or no base of ours: make it anew")

    def get(self, name: str, kinds: type | tuple[type, ...]) -> Any:
        value = self.metadata.get(PREFIX + name)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise self.error(f"has {PREFIX + name} = {value!r}, which no base has")
        return value

    def number(self, name: str) -> int:
        return int(self.get(name, int))

    def text(self, name: str) -> str:
        return str(self.get(name, str))

    def real(self, name: str) -> float:
        return float(self.get(name, float))


def _rows(file: GgufFile, key: _Keys, name: str, form: str, shape: tuple[int, ...]) -> Tensor:
    tensor = file.tensors.get(name)
    if tensor is None or tensor.format.name != form or tensor.shape != shape:
        found = "none" if tensor is None else f"{tensor.format.name} {tensor.shape}"
        raise key.error(f"should have a tensor {name!r}, {form} {shape}; it has {found}")
    return tensor


def _numbers(file: GgufFile, key: _Keys, name: str) -> NDArray[np.int64]:
    tensor = file.tensors.get(name)
    if tensor is None or tensor.format.name != "I32" or not tensor.size:
        raise key.error(f"has no list of integers {name!r}")
    values: NDArray[np.int64] = tensor.elements().reshape(tensor.shape).astype(np.int64)
    return values


def _texts(file: GgufFile, key: _Keys, size: int) -> dict[str, list[Window]]:
    table, tokens, positions = (_numbers(file, key, name) for name in ("windows", "tokens", "positions"))
    names = [str(name) for name in key.get("texts", Sequence)]
    sound = table.ndim == 2 and table.shape[1] == 4 and tokens.ndim == positions.ndim == 1 and table.min() >= 0
    sound = sound and bool((np.diff(table[:, 0]) >= 0).all())  # rows are in the order of texts
    if not sound or tuple(table.sum(0)[2:]) != (len(tokens), len(positions)) or table[:, 0].max() >= len(names):
        raise key.error("has windows that do not fit its tokens")
    if tokens.min() < 0 or tokens.max() >= size:
        raise key.error(f"has a token outside its vocabulary of {size}")
    found: dict[str, list[Window]] = {name: [] for name in names}
    token = position = 0
    for number, (text, start, length, count) in enumerate(table.tolist(), 1):
        inputs, scored = tokens[token : token + length], positions[position : position + count]
        if not count or scored[0] < 0 or scored[-1] > length - 2 or np.any(np.diff(scored) < 1):
            raise key.error(f"scores positions in window {number} that it does not have")
        found[names[text]].append(Window(inputs, scored, inputs[scored + 1], start))
        token, position = token + length, position + count
    if text_digest(window for windows in found.values() for window in windows) != key.text("text.sha256"):
        raise key.error("has other tokens than it was made of")
    return found


def _checked_ids(ids: Tensor, key: _Keys, size: int) -> Tensor:
    for start in range(0, ids.rows, 1 << 16):
        values = ids.elements(start, min(start + (1 << 16), ids.rows)).view(np.int32)
        if values.min() < 0 or values.max() >= size:
            raise key.error(f"has a likeliest token outside its vocabulary of {size}")
    return ids


def _output(
    file: GgufFile, key: _Keys, base_model: PathLike | Model | None, others: Sequence[PathLike | Model]
) -> Output:
    bias = None
    if "output.bias" in file.tensors:
        bias = _rows(file, key, "output.bias", "F32", (key.number("vocabulary.size"),)).float32()
    cap = key.real("output.softcap")
    return Output(_matrix(file, key, base_model, others), bias, key.real("output.scale"), cap or None)


def _matrix(
    file: GgufFile, key: _Keys, base_model: PathLike | Model | None, others: Sequence[PathLike | Model]
) -> Tensor:
    shape, digest = (key.number("vocabulary.size"), key.number("output.width")), key.text("output.sha256")

    def found_in(tensors: Mapping[str, Tensor]) -> Tensor | None:
        for name in MODELS:
            tensor = tensors.get(name)
            if tensor is None or tensor.shape != shape:
                continue
            tensor = readable(tensor)  # as it was when the model ran
            if tensor.format.name != key.text("output.type"):
                continue
            if matrix_digest(tensor) == digest:
                return tensor
        return None

    if base_model is not None:
        given = opened(base_model)
        found = found_in(given.tensors)
        if found is None:
            problem = f"{given.path} has not the output matrix that {key.path} was made with"
            raise FileError(problem, f"it was made of {key.text('model')}")
        return found
    recorded = Path(key.text("model"))
    places: list[Callable[[], Mapping[str, Tensor]]] = [lambda: file.tensors]
    for place in dict.fromkeys((recorded, key.path.parent / recorded.name)):
        if place.exists():
            places.append(lambda place=place: opened(place).tensors)  # type: ignore[misc]
    places += [lambda each=each: opened(each).tensors for each in others]  # type: ignore[misc]
    for number, tensors in enumerate(places):
        try:
            found = found_in(tensors())
        except FileError:
            if number >= len(places) - len(others):
                raise
            continue  # what has the name now is not what had it then
        if found is not None:
            return found
    problem = f"{key.path} needs the output matrix of {recorded}, which is not there or was changed"
    raise FileError(problem, "name a file that has it with --base-model")
