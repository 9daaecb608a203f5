"""What a drafted token and its check cost beside a token of the model alone: timed here, or by bytes that are read."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..model import Model

if TYPE_CHECKING:
    from runtime.model import Model as RunningModel

Doubles = NDArray[np.float64]

BEFORE = 64  # tokens in the cache when a pass is timed
PASSES = (1, 2, 4, 8, 16, 32, 64)  # tokens of the passes that are timed; between them is a line
LEAST_ROUNDS, MOST_ROUNDS, LONG = 3, 12, 3.0  # all is timed in turn, again and again, until so many seconds are over


class _Timed:
    """A model behind some tokens, whose passes are timed. fastest: seconds by the number of tokens."""

    def __init__(self, net: "RunningModel", ids: Sequence[int], sizes: Sequence[int]) -> None:
        self.net, self.ids, self.cache = net, ids, net.new_cache()
        self.cache.memory = max(sizes) + 1
        self.fastest = dict.fromkeys(sizes, np.inf)
        net.forward(ids[:BEFORE], self.cache, BEFORE - 1)
        for size in sizes:  # compiles kernels, or loads them
            self._run(size)

    def round(self) -> None:
        for size in self.fastest:
            self.fastest[size] = min(self.fastest[size], self._run(size))

    def _run(self, size: int) -> float:
        start = time.perf_counter()
        self.net.forward(self.ids[BEFORE : BEFORE + size], self.cache, size - 1)
        seconds = time.perf_counter() - start
        self.cache.truncate(BEFORE)
        return seconds


def timed_costs(
    target: "RunningModel", drafts: Sequence["RunningModel"], text: Sequence[int], longest: int
) -> tuple[list[float], Doubles]:
    """What one token of each draft costs beside one of the model; and (longest + 1,), what a pass of the model over one
    token and 0, 1, … drafted ones does. text: token ids, at least one.

    All are timed in turn, and of each the fastest counts: the others ran beside something else.
    """
    sizes = [size for size in PASSES if 4 * size < 3 * (longest + 1)] + [longest + 1]
    ids = [text[i % len(text)] for i in range(BEFORE + longest + 1)]
    timed = [_Timed(target, ids, sizes), *(_Timed(draft, ids, [1]) for draft in drafts)]
    begin = time.perf_counter()
    for turn in range(MOST_ROUNDS):
        if turn >= LEAST_ROUNDS and time.perf_counter() - begin > LONG:
            break
        for each in timed:
            each.round()
    own, *others = timed
    one = own.fastest[1]
    passes = np.interp(np.arange(1, longest + 2), sizes, [own.fastest[size] / one for size in sizes])
    return [each.fastest[1] / one for each in others], np.maximum.accumulate(passes)


def bytes_read(model: Model) -> float:
    """Bytes of weights that are read for one token: of experts those that are chosen, of the embedding one row."""
    used, count = (model.metadata.get(f"{model.architecture}.expert_{name}") for name in ("used_count", "count"))
    share = float(used) / float(count) if used and count else 1.0
    tied = "output.weight" not in model.tensors
    total = 0.0
    for name, tensor in model.tensors.items():
        if name == "token_embd.weight" and not tied:
            continue
        total += tensor.nbytes * (share if "_exps." in name else 1.0)
    return total


def bytes_of_further_layer(model: Model) -> float:
    """The same of the layer that predicts a token further, with the matrix that makes logits."""
    last = int(model.metadata.get(f"{model.architecture}.block_count", 0)) - 1
    layer = {name: tensor for name, tensor in model.tensors.items() if name.startswith(f"blk.{last}.")}
    head = next((each for name, each in layer.items() if "nextn.shared_head_head" in name), None)
    if head is None:
        tensors = model.tensors
        head = tensors.get("output.weight") or tensors["token_embd.weight"]
        layer["output.weight"] = head
    part = Model(model.metadata, {name: each for name, each in layer.items() if "embed_tokens" not in name})
    return bytes_read(part)
