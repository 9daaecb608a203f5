"""Read stored bases (see `base`): validate them, and find the output matrix that their states need."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants import Tensor
from quants.arguments import PathLike, as_path
from quants.errors import FileError
from quants.tensor import readable
from runtime.evaluation.stored_states import StoredStates, StoredTops
from runtime.evaluation.windows import Window
from runtime.head import Output
from runtime.products.precision import precision_named

from ...io.gguf.reader import GgufFile, open_gguf
from ...models.model import Model, opened
from .base import GENERAL_TYPE, PREFIX, VERSION, SavedBase, matrix_digest, text_digest

OUTPUT_MATRICES = ("output.weight", "token_embd.weight")  # the names of output matrices


def open_base(
    path: PathLike,
    *,
    base_model: PathLike | Model | None = None,
    others: Sequence[PathLike | Model] = (),
    threads: int = 1,
) -> SavedBase:
    """Read a base.

    base_model: a model with its output matrix; without it that is searched for in the base itself, in the model that it
    was made from, and in `others`. Raises FileError for a file that is no base, that is damaged, or whose matrix is
    missing.
    """
    path = as_path(path, "the base")
    file = open_gguf(path)
    key = _Keys(path, file.metadata)
    if file.metadata.get("general.type") != GENERAL_TYPE:
        raise FileError(
            f"{path} is not a base: general.type is {file.metadata.get('general.type')!r}, not {GENERAL_TYPE!r}"
        )
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
        path,
        texts,
        key.number("n_ctx"),
        key.text("model"),
        precision_named(key.text("precision")),
        key.text("vocabulary.sha256"),
        key.text("text.sha256"),
        source,
        tuple(range(len(windows))),
    )


@dataclass(frozen=True)
class _Keys:
    """The keys of a base, with type checks."""

    path: Path
    metadata: Mapping[str, Any]

    def error(self, what: str, hint: str | None = None) -> FileError:
        return FileError(f"{self.path} {what}", hint or "it is damaged, or not a base of gguftools: save it again")

    def get(self, name: str, types: type | tuple[type, ...]) -> Any:
        value = self.metadata.get(PREFIX + name)
        if not isinstance(value, types) or isinstance(value, bool):
            raise self.error(f"has {PREFIX + name} = {value!r}, which is not valid in a base")
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
        actual = "none" if tensor is None else f"{tensor.format.name} {tensor.shape}"
        raise key.error(f"should have a tensor {name!r}, {form} {shape}; it has {actual}")
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
    windows_by_text: dict[str, list[Window]] = {name: [] for name in names}
    token = position = 0
    for number, (text, start, length, count) in enumerate(table.tolist(), 1):
        inputs, scored = tokens[token : token + length], positions[position : position + count]
        if not count or scored[0] < 0 or scored[-1] > length - 2 or np.any(np.diff(scored) < 1):
            raise key.error(f"scores positions in window {number} that it does not have")
        windows_by_text[names[text]].append(Window(inputs, scored, inputs[scored + 1], start))
        token, position = token + length, position + count
    if text_digest(window for windows in windows_by_text.values() for window in windows) != key.text("text.sha256"):
        raise key.error("has other tokens than it was made of")
    return windows_by_text


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

    def matching_matrix(tensors: Mapping[str, Tensor]) -> Tensor | None:
        for name in OUTPUT_MATRICES:
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
        matrix = matching_matrix(given.tensors)
        if matrix is None:
            problem = f"{given.path} does not have the output matrix that {key.path} was made with"
            raise FileError(problem, f"it was made from {key.text('model')}")
        return matrix
    recorded = Path(key.text("model"))
    places: list[Callable[[], Mapping[str, Tensor]]] = [lambda: file.tensors]
    for place in dict.fromkeys((recorded, key.path.parent / recorded.name)):
        if place.exists():
            places.append(lambda place=place: opened(place).tensors)  # type: ignore[misc]
    places += [lambda each=each: opened(each).tensors for each in others]  # type: ignore[misc]
    for number, tensors in enumerate(places):
        try:
            matrix = matching_matrix(tensors())
        except FileError:
            if number >= len(places) - len(others):
                raise
            continue  # another file has this name now
        if matrix is not None:
            return matrix
    problem = f"{key.path} needs the output matrix of {recorded}, which is not there or was changed"
    raise FileError(problem, "name a file that has it with `base_model`")
