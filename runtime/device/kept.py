"""What a run on a device keeps for later nodes: values, and what operations leave in its pass."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..layer import ForwardContext
from .executor import Run
from .indexer_operations import Cached

Move = Callable[[torch.Tensor], torch.Tensor]
Arrays = dict[str, NDArray[Any]]
TUPLES: Mapping[str, type[tuple[Any, ...]]] = {"tuple": tuple, "Cached": Cached}
IN_PASS = ("hidden_keys", "first_values", "streams")  # fields of a pass that operations set


def exchange(run: Run, move: Move) -> None:
    """Replace all tensors that a run keeps by what `move` makes of them."""
    for number, value in run.values.items():
        run.values[number] = _moved(value, move)
    forward = run.context.forward
    for layer, pair in forward.shared_keys.items():
        forward.shared_keys[layer] = _moved(pair, move)
    for name in IN_PASS:
        setattr(forward, name, _moved(getattr(forward, name), move))


def _moved(value: Any, move: Move) -> Any:
    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, tuple):
        return _as_tuple(type(value), (_moved(each, move) for each in value))
    return value


def _as_tuple(given: Any, parts: Iterator[Any]) -> Any:
    return given(*parts) if hasattr(given, "_fields") else given(parts)


def arrays_of(run: Run) -> tuple[list[Any], Arrays]:
    """Return what a run keeps: a list of its places and types, as JSON has them, and its arrays by name."""
    forward, arrays = run.context.forward, Arrays()
    kept: list[tuple[str, int, Any]] = [("value", number, value) for number, value in run.values.items()]
    kept += [("shared_keys", layer, pair) for layer, pair in forward.shared_keys.items()]
    kept += [(name, 0, getattr(forward, name)) for name in IN_PASS]
    return [[name, number, _described(f"{name}.{number}", value, arrays)] for name, number, value in kept], arrays


def _described(name: str, value: Any, arrays: Arrays) -> Any:
    """Return a value's type; put its arrays among the others."""
    if value is None:
        return None
    if isinstance(value, tuple):
        parts = [_described(f"{name}.{i}", each, arrays) for i, each in enumerate(value)]
        return [type(value).__name__, *parts]
    is_tensor = isinstance(value, torch.Tensor)
    arrays[name] = value.detach().cpu().numpy() if is_tensor else np.asarray(value)
    return "tensor" if is_tensor else "array"


def restore(run: Run, places: list[Any], arrays: Mapping[str, NDArray[Any]], following: int) -> None:
    """Give a run what another one of the same graph and texts kept before the node `following`."""
    forward, values = run.context.forward, dict[int, Any]()
    for name, number, described in places:
        value = _restored(f"{name}.{number}", described, arrays)
        if name == "value":
            values[number] = value
        elif name == "shared_keys":
            forward.shared_keys[number] = value
        else:
            setattr(forward, name, value)
    run.restore(values, following)


def _restored(name: str, described: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if described is None:
        return None
    if isinstance(described, list):
        parts = (_restored(f"{name}.{i}", each, arrays) for i, each in enumerate(described[1:]))
        return _as_tuple(TUPLES[described[0]], parts)
    return torch.from_numpy(arrays[name]) if described == "tensor" else arrays[name]


def counters(forward: ForwardContext) -> list[int]:
    """Return what a pass counts outside of it: neurons that a predictor chose."""
    return [] if forward.sparsity is None else [forward.sparsity.marked, forward.sparsity.neurons]


def set_counters(forward: ForwardContext, counted: list[int]) -> None:
    """Set what `counters` returned."""
    if forward.sparsity is not None:
        forward.sparsity.marked, forward.sparsity.neurons = counted
