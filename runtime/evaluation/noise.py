"""The noise floor of a device: how far a model's predictions are from themselves, computed in another way.

The first windows of a run are computed a second time, each alone and with exact products. Divergences of that size
cannot be told from rounding.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..arrays import Doubles
from ..head import LazyLogits
from ..kernels.threads import spans
from ..model import Batch, RunningModel
from .divergence import KL, LOGITS_AT_ONCE, MIN_POSITIONS, compare, rows_of
from .windows import Window

PREDICTIONS = 200  # that are computed twice, if a batch has as many
FACTOR = 10  # smaller multiples of the noise floor cannot be told from noise


@dataclass(frozen=True)
class NoiseFloor:
    """KL divergences in nats: their mean and the largest one."""

    mean: float
    max: float


def windows_of_noise(batch: Sequence[Window]) -> Sequence[Window]:
    """Return the first windows of a batch, with PREDICTIONS predictions if it has as many."""
    counts = np.cumsum([len(window.scored) for window in batch])
    return batch[: 1 + int(np.searchsorted(counts, PREDICTIONS))]


def batches_of_noise(net: RunningModel, windows: Sequence[Window]) -> Iterator[Batch]:
    """Yield the arguments of `lazy_logits` that compute windows a second time."""
    for window in windows:
        inputs = window.inputs
        if net.network.block.causal and net.network.scaling is None:  # no prediction depends on the text's length
            inputs = inputs[: window.scored[-1] + 1]
        yield Batch(inputs, window.first, exact=True)


def noise_floor(net: RunningModel, windows: Sequence[Window], measured: Callable[[int], LazyLogits]) -> NoiseFloor:
    """Compute windows a second time, and return the divergence of that from the first time.

    measured: called with the place of each window, returns the run's logits of its predictions.
    """
    apart: list[Doubles] = []
    for place, (window, batch) in enumerate(zip(windows, batches_of_noise(net, windows), strict=True)):
        first, again = measured(place), net.lazy_logits(*batch)
        again = replace(again, x=again.x[window.scored - window.first])
        for start, stop in spans(len(window.scored), max(MIN_POSITIONS, LOGITS_AT_ONCE // first.weight.rows)):
            one, other = (
                rows_of(
                    replace(each, x=np.ascontiguousarray(each.x[start:stop])), window.targets[start:stop], net.threads
                )
                for each in (first, again)
            )
            apart.append(compare(one, other))
    kl = np.concatenate(apart)[:, KL]
    return NoiseFloor(float(kl.mean()), float(kl.max()))
