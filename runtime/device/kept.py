"""What a run on a device keeps for later nodes: values, and what operations leave in its pass."""

from collections.abc import Callable
from typing import Any

import torch

from .executor import Run

Move = Callable[[torch.Tensor], torch.Tensor]


def exchange(run: Run, move: Move) -> None:
    """Replace all tensors that a run keeps by what `move` makes of them."""
    for number, value in run.values.items():
        run.values[number] = _moved(value, move)
    forward = run.context.forward
    for layer, pair in forward.shared_keys.items():
        forward.shared_keys[layer] = _moved(pair, move)
    forward.hidden_keys = _moved(forward.hidden_keys, move)
    forward.first_values = _moved(forward.first_values, move)


def _moved(value: Any, move: Move) -> Any:
    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, tuple):
        parts = (_moved(each, move) for each in value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
