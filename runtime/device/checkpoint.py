"""Keep an unfinished pass of layer streaming, so that a killed one goes on after a layer that it finished.

Kept are the values of all batches that later layers read, what operations left in their passes, and the sums of an
importance matrix on the device. The results are those of a pass that was not killed, to the last bit.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quants.errors import FileError, OptionError

from ..ahead import Store
from ..graph.placement import weights_of
from .executor import Run
from .importance import DeviceImportance, observer_of
from .kept import Arrays, arrays_of, counters, restore, set_counters

ANEW = "start anew, or compute it as before"
SHARE = 0.1  # of the time that writing may take
REASONS = {
    "model": "with another model",
    "device": "on another device or by another version of torch",
    "observed": "with other observers",
}


class Checkpoint:
    """A pass in a store. every: seconds between two writes, at least; 0 for one after each layer."""

    def __init__(self, store: Store, every: float) -> None:
        self._store, self._every = store, every
        self._last = time.monotonic()

    def restore(self, runs: Sequence[Run]) -> int:
        """Give runs of the same graph and texts what an earlier pass kept; return how many layers it had done.

        0 if nothing is kept, or only a pass over other texts. Raises FileError for one of another model or device,
        OptionError if there are observers whose sums cannot be kept.
        """
        importance, head = _importance_of(runs), _head(runs)
        kept = self._store.load()
        if kept is None or kept[0].get("texts") != head["texts"]:
            return 0
        earlier, arrays = kept
        for key, reason in REASONS.items():
            if earlier.get(key) != head[key]:
                raise FileError(f"{self._store.name} was begun {reason}", ANEW)
        for number, (run, places) in enumerate(zip(runs, earlier["runs"], strict=True)):
            own = f"{number}."
            restore(run, places, _below(own, arrays), int(earlier["next"]))
        set_counters(runs[0].context.forward, earlier["counters"])
        if importance is not None:
            importance.restore(earlier["sums"], _below("sums.", arrays))
        return int(earlier["done"])

    def write(self, runs: Sequence[Run], done: int) -> None:
        """Keep runs after so many layers, if it is time. Raises FileError if that is not possible."""
        begun = time.monotonic()
        if begun - self._last < self._every:
            return
        head, arrays = _head(runs) | {"done": done, "next": runs[0].next, "runs": []}, Arrays()
        for number, run in enumerate(runs):
            run.check_finite()
            places, own = arrays_of(run)
            head["runs"].append(places)
            arrays |= {f"{number}.{name}": array for name, array in own.items()}
        head["counters"] = counters(runs[0].context.forward)
        if (importance := _importance_of(runs)) is not None:
            head["sums"], sums = importance.kept()
            arrays |= {f"sums.{name}": array for name, array in sums.items()}
        self._store.save(head, arrays)
        self._last = time.monotonic()
        if self._every:
            self._every = max(self._every, (self._last - begun) / SHARE)


def _below(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _importance_of(runs: Sequence[Run]) -> DeviceImportance | None:
    """Return the sums that all runs add to. Raises OptionError for other observers, whose state is not known."""
    forward = runs[0].context.forward
    importance = observer_of(forward.observe)
    unknown = forward.observe is not None and importance is None
    if unknown or forward.observe_experts is not None or forward.observe_values is not None:
        raise OptionError("a pass with observers of its own cannot be kept", "run it without a checkpoint")
    return importance


def _head(runs: Sequence[Run]) -> dict[str, Any]:
    """Return what must be equal for a pass to go on."""
    graph, device = runs[0].graph, runs[0].context.device
    texts = hashlib.sha256()
    for run in runs:
        forward = run.context.forward
        ids = np.empty(0, np.int64) if forward.tokens is None else forward.tokens
        texts.update(json.dumps([forward.texts, forward.length, forward.first, forward.precision]).encode())
        texts.update(np.ascontiguousarray(ids, "<i8").tobytes())
    tensors = [[each.name, each.format.name, *each.shape] for each in weights_of(graph)]
    nodes = [[node.name, type(node.operation).__name__] for node in graph.nodes]
    title = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    threads = torch.get_num_threads() if device.type == "cpu" else 0
    return {
        "texts": texts.hexdigest(),
        "model": hashlib.sha256(json.dumps([tensors, nodes]).encode()).hexdigest(),
        "device": [title, torch.__version__, torch.backends.cuda.matmul.allow_tf32, threads],
        "observed": runs[0].context.forward.observe is not None,
    }
