"""Find the first node at which two runs of a text differ: by how much, where, and by which weights and numbers.

The reference is another GGUF file, saved values, a checkpoint that transformers runs, or a log of llama.cpp's
llama-eval-callback.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants import Tensor
from quants.arguments import PathLike, as_path
from quants.errors import FileError, OptionError, VocabularyError

from ...inspection.graph import GraphNode, ModelGraph, graph
from ...io.naming import hint_for_absent
from ...io.stores.path import located
from ...models.model import Model, opened, opened_gguf
from ...writing.report import Report
from .eval_callback import RESOLUTION, EvalLog, is_eval_log, read_eval_log
from .transformers_values import transformers_values
from .values import Array, NodeValues, Progress, Prompt, is_dump, node_values, read_dump, tokens_of

TOLERANCE = 1e-3  # of the standard deviation of a value
NOISE = 1e-5  # standard deviations: rounding of float32 and the order of sums
JUMP = 4.0  # times the inputs' error is more than one operation adds
NO_TEXT = "give a `prompt`: a text, or ids of tokens"


@dataclass(frozen=True)
class WeightDifference:
    """A weight that differs between two files.

    other_format: None if the other file has no such weight. largest, rms: of the difference, in standard deviations of
    the weight; None if shapes differ.
    """

    name: str
    format: str
    other_format: str | None
    largest: float | None
    rms: float | None


@dataclass(frozen=True)
class NodeDifference:
    """How a node's values differ.

    largest: absolute difference; relative, rms: largest difference and root mean square, in standard deviations of the
    value. token, element: position of the largest, value, other_value: the values there. jump: rms relative to that of
    the node's inputs; None if those are equal within float32's rounding, or unknown.
    """

    number: int
    name: str
    operation: str
    layer: int | None
    largest: float
    relative: float
    rms: float
    token: int
    element: int
    value: float
    other_value: float
    differs: bool
    jump: float | None


@dataclass(frozen=True)
class Cause:
    """Possible causes of a node's difference. between: nodes on the way to it for which the reference has no values.

    reads: the nearest compared inputs. weights: all that these nodes read; changed: those that differ between two
    files. attributes: numbers that differ, here and there, by `NODE.NAME`. changed, attributes: None if the reference
    is no GGUF file.
    """

    between: tuple[str, ...]
    reads: tuple[str, ...]
    weights: tuple[str, ...]
    changed: tuple[WeightDifference, ...] | None
    attributes: dict[str, tuple[Any, Any]] | None


@dataclass(frozen=True)
class Comparison(Report):
    """A comparison of two runs.

    nodes: all that both have, in order of the run. first: the first that differs; jump: the first whose error is much
    larger than that of its inputs. not_compared: names of nodes without values in the reference. kind: type of the
    reference: "model", "values", "transformers" or "log". keys: of the architecture, that differ: here, there.
    """

    file: str
    other: str
    kind: str
    tokens: tuple[int, ...]
    tolerance: float
    nodes: tuple[NodeDifference, ...]
    not_compared: tuple[str, ...]
    first: NodeDifference | None
    cause: Cause | None
    jump: NodeDifference | None
    jump_cause: Cause | None
    keys: dict[str, tuple[Any, Any]]

    also = ("equal",)

    @property
    def equal(self) -> bool:
        return self.first is None


@dataclass(frozen=True)
class Reference:
    """The run that a model is compared with. model, shown: of a GGUF file. values, log: known values of nodes."""

    name: str
    reference_type: str
    values: Mapping[str, Array]
    log: EvalLog | None = None
    model: Model | None = None
    shown: ModelGraph | None = None


def compare_values(
    source: PathLike | Model,
    other: PathLike | Model,
    prompt: Prompt | None = None,
    *,
    tolerance: float = TOLERANCE,
    precision: str = "float32",
    threads: int | None = None,
    values: NodeValues | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run a text through a model, and find the first node whose values differ from a reference.

    other: a GGUF file or a Model; a file that `NodeValues.save` wrote; a checkpoint's folder, which transformers runs;
    or a log of llama-eval-callback. prompt: a text or ids; None for those of saved values or of a log. tolerance: of
    the largest difference, in standard deviations of a value. precision, threads: of `node_values`. values: of the
    source, if already computed. progress: of `node_values`, for each model in turn.
    Raises OptionError for a missing text, another text than the reference's, and an
    invalid reference; VocabularyError if two files tokenize the text differently; and as `node_values` does.
    """
    if not tolerance >= 0:
        raise OptionError(f"tolerance is {tolerance}; a number from 0 on was expected", "such as 0.001")
    model = opened(source)
    shown = graph(model)
    reference_type, path = _reference_type(other)
    log, dump = (
        (read_eval_log(path) if reference_type == "log" else None),
        (read_dump(path) if reference_type == "values" else None),
    )
    tokens = _tokens(model, prompt, str(path), log.tokens if log else dump.tokens if dump else ())
    if reference_type == "model":
        _check_tokens(model, opened_gguf(other), prompt, tokens)
    mine = values or node_values(model, tokens, precision=precision, threads=threads, progress=progress)
    held = Reference(str(path), reference_type, dump.values if dump else {}, log)
    if reference_type == "model":
        against = opened_gguf(other)
        there = node_values(against, tokens, precision=precision, threads=threads, progress=progress)
        held = Reference(str(against.path), reference_type, there.values, None, against, graph(against))
    elif reference_type == "transformers":
        held = Reference(str(path), reference_type, transformers_values(model, shown, path, tokens))
    return _compared(model, shown, mine, held, tolerance)


def _reference_type(other: PathLike | Model) -> tuple[str, Path]:
    """Return the type of the reference. Raises FileError for an invalid one."""
    if isinstance(other, Model):
        return "model", other.path
    as_path(other, "other")
    path = located(other)
    if is_dump(path):
        return "values", path
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise FileError(f"{path} is a folder without config.json: no checkpoint to compare with")
        return "transformers", path
    if not path.exists():
        raise FileError(f"{path} does not exist", hint_for_absent(path))
    if is_eval_log(path):
        return "log", path
    with path.open("rb") as file:
        if file.read(4) not in (b"GGUF", b"FUGG"):
            raise FileError(
                f"{path} cannot be compared with",
                "a GGUF file, saved values, a checkpoint's folder or a log of llama-eval-callback is expected",
            )
    return "model", path


def _tokens(model: Model, prompt: Prompt | None, name: str, known: tuple[int, ...]) -> tuple[int, ...]:
    if prompt is None:
        if not known:
            raise OptionError(f"there is no text to run: {name} does not list its tokens", NO_TEXT)
        return known
    tokens = tokens_of(model, prompt)
    if known and tokens != known:
        what = f"{len(known)} tokens ({_some(known)})"
        raise OptionError(
            f"{name} is of other tokens: it has {what}, the text has {len(tokens)} ({_some(tokens)})",
            "leave out `prompt`: the tokens there are run",
        )
    return tokens


def _some(tokens: Sequence[int]) -> str:
    shown = ", ".join(map(str, tokens[:6]))
    return f"{shown}, …" if len(tokens) > 6 else shown


def _check_tokens(model: Model, other: Model, prompt: Prompt | None, tokens: tuple[int, ...]) -> None:
    """Raise VocabularyError if the other file tokenizes the text differently."""
    if isinstance(prompt, str) and (there := tokens_of(other, prompt)) != tokens:
        raise VocabularyError(
            f"{model.path} and {other.path} make other tokens of the text: {_some(tokens)} and {_some(there)}",
            "give ids of tokens as `prompt`; `gguftools diff A B --vocab` compares vocabularies",
        )


def _compared(model: Model, shown: ModelGraph, mine: NodeValues, other: Reference, tolerance: float) -> Comparison:
    nodes = {node.name: node for node in shown.nodes}
    differences: dict[str, NodeDifference] = {}
    for name, array in mine.values.items():
        pair = _pair(array, name, nodes[name].layer, other)
        if pair is not None:
            differences[name] = _difference(nodes[name], pair, tolerance, differences, nodes)
    if not differences:
        raise OptionError(f"{other.name} has no values of nodes of {shown.file}", "is it of the same architecture?")
    first = next((each for each in differences.values() if each.differs), None)
    jump = next((each for each in differences.values() if each.differs and each.jump and each.jump > JUMP), None)
    jump = None if jump is first else jump
    causes = [None if each is None else _cause(each, model, shown, differences, other) for each in (first, jump)]
    missing = tuple(name for name in mine.values if name not in differences)
    keys = {} if other.model is None or first is None else _keys(model, other.model)
    return Comparison(
        shown.file,
        other.name,
        other.reference_type,
        mine.tokens,
        tolerance,
        tuple(differences.values()),
        missing,
        first,
        causes[0],
        jump,
        causes[1],
        keys,
    )


@dataclass(frozen=True)
class Pair:
    """Values of both runs at the same positions.

    places: in all values of the node. spread: standard deviation of the value. slack: rounding of printed numbers.
    sums: of all values, in both runs, and the scale of the tolerance of their difference.
    """

    mine: NDArray[np.float64]
    theirs: NDArray[np.float64]
    places: NDArray[np.int64]
    width: int
    spread: float
    slack: float = 0.0
    sums: tuple[float, float, float] | None = None


def _pair(array: Array, name: str, layer: int | None, other: Reference) -> Pair | None:
    """Return the values that both runs have of a node; None if they cannot be compared."""
    rows = array.reshape(len(array), -1).astype(np.float64)
    width = rows.shape[1]
    if other.log is not None:
        printed = other.log.find(name, layer)
        if printed is None or printed.count % width or printed.count > rows.size or not len(printed.places):
            return None
        start = rows.size - printed.count  # it may have only the last rows
        flat = rows.reshape(-1)
        places = printed.places + start
        return Pair(
            flat[places],
            printed.values,
            places,
            width,
            _spread(flat[start:]),
            RESOLUTION,
            (float(flat[start:].sum()), printed.sum, _noise_of_sum(flat[start:])),
        )
    there = other.values.get(name)
    if there is None:
        return None
    if not there.size or there.size % width or there.size > rows.size:
        return _unequal(rows)
    theirs, start = there.astype(np.float64).reshape(-1), rows.size - there.size
    places = np.arange(start, rows.size, dtype=np.int64)
    return Pair(rows.reshape(-1)[start:], theirs, places, width, _spread(theirs))


def _noise_of_sum(values: NDArray[np.float64]) -> float:
    """Return ten times the sum of independent errors of one standard deviation, plus float32's loss in a naive sum."""
    return 10 * _spread(values) * float(len(values) ** 0.5) + 1e-2 * float(np.abs(values).sum())


def _unequal(rows: NDArray[np.float64]) -> Pair:
    """Return a pair that differs, for values of different widths."""
    return Pair(rows[0, :1], np.array([np.inf]), np.zeros(1, np.int64), rows.shape[1], 1.0)


def _spread(values: NDArray[np.float64]) -> float:
    spread = float(values.std())
    return spread if spread > 0 else float(np.abs(values).max()) or 1.0


def _difference(
    node: GraphNode,
    pair: Pair,
    tolerance: float,
    differences: Mapping[str, NodeDifference],
    nodes: Mapping[str, GraphNode],
) -> NodeDifference:
    apart = np.abs(pair.mine - pair.theirs)
    at = int(apart.argmax())
    largest, rms = float(apart[at]), float(np.sqrt((apart**2).mean())) / pair.spread
    differs = largest > tolerance * pair.spread + pair.slack or not np.isfinite(largest)
    if pair.sums is not None and not differs:  # of values that are not printed, too
        differs = abs(pair.sums[0] - pair.sums[1]) > tolerance * pair.sums[2]
    before = [differences[each].rms for each in _known_inputs(node, nodes, differences)]
    input_rms = max(before, default=0.0)
    token, element = divmod(int(pair.places[at]), pair.width)
    return NodeDifference(
        node.number,
        node.name,
        node.operation,
        node.layer,
        largest,
        largest / pair.spread,
        rms,
        token,
        element,
        float(pair.mine[at]),
        float(pair.theirs[at]),
        differs,
        rms / input_rms if input_rms > NOISE else None,
    )


def _known_inputs(
    node: GraphNode, nodes: Mapping[str, GraphNode], differences: Mapping[str, NodeDifference]
) -> list[str]:
    """Return the nearest compared nodes before this one."""
    return _ways(node, nodes, differences)[1]


def _ways(
    node: GraphNode, nodes: Mapping[str, GraphNode], differences: Mapping[str, NodeDifference]
) -> tuple[list[str], list[str]]:
    """Return the nodes between this one and the nearest compared ones before it, and these."""
    between, known, waiting = dict[str, None](), dict[str, None](), list(node.inputs)
    while waiting:
        name = waiting.pop(0)
        if name in differences:
            known[name] = None
        elif name not in between:
            between[name] = None
            waiting += nodes[name].inputs
    return sorted(between, key=lambda name: nodes[name].number), list(known)


def _cause(
    difference: NodeDifference,
    model: Model,
    shown: ModelGraph,
    differences: Mapping[str, NodeDifference],
    other: Reference,
) -> Cause:
    nodes = {node.name: node for node in shown.nodes}
    node = shown.nodes[difference.number]
    between, known = _ways(node, nodes, differences)
    computing = [*(nodes[name] for name in between), node]
    weights = list(dict.fromkeys(weight.name for each in computing for weight in each.weights))
    if other.model is None or other.shown is None:
        return Cause(tuple(between), tuple(known), tuple(weights), None, None)
    changed = [_weight_difference(model.tensors[name], other.model.tensors.get(name)) for name in weights]
    theirs = {each.name: each.attributes for each in other.shown.nodes}
    attributes = {
        f"{each.name}.{key}": (each.attributes.get(key), theirs[each.name].get(key))
        for each in computing
        if each.name in theirs
        for key in dict.fromkeys((*each.attributes, *theirs[each.name]))
        if each.attributes.get(key) != theirs[each.name].get(key)
    }
    return Cause(tuple(between), tuple(known), tuple(weights), tuple(filter(None, changed)), attributes)


def _weight_difference(mine: Tensor, theirs: Tensor | None) -> WeightDifference | None:
    """Return how a weight differs; None if both have the same values."""
    if theirs is None:
        return WeightDifference(mine.name, mine.format.name, None, None, None)
    if tuple(mine.shape) != tuple(theirs.shape):
        return WeightDifference(mine.name, mine.format.name, theirs.format.name, None, None)
    a, b = (np.asarray(each.float32(), np.float64).reshape(-1) for each in (mine, theirs))
    apart, spread = np.abs(a - b), _spread(b)
    if not apart.any():
        return None
    rms = float(np.sqrt((apart**2).mean())) / spread
    return WeightDifference(mine.name, mine.format.name, theirs.format.name, float(apart.max()) / spread, rms)


def _keys(mine: Model, theirs: Model) -> dict[str, tuple[Any, Any]]:
    """Return the architecture's keys whose values differ; None for a key that a file lacks."""
    prefix, different_keys = f"{mine.architecture}.", dict[str, tuple[Any, Any]]()
    for key in dict.fromkeys((*mine.metadata, *theirs.metadata)):
        a, b = (_plain(each.metadata.get(key)) for each in (mine, theirs))
        if key.startswith(prefix) and a != b:
            different_keys[key] = a, b
    return different_keys


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
