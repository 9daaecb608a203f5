"""The noise floor of a device: the divergence of a model's predictions from themselves, computed in another way.

The first windows of a run are computed a second time, each alone and with exact products. A divergence near theirs
from the run's own cannot be told from rounding.
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

PREDICTIONS = 200  # that are computed twice
TOLD_APART = 10  # times the noise floor is a divergence that can be told from it


@dataclass(frozen=True)
class NoiseFloor:
    """KL divergences in nats: their mean and the largest one."""

    mean: float
    max: float


def windows_of_noise(group: Sequence[Window]) -> Sequence[Window]:
    """Return the first windows of a group that run together, of PREDICTIONS predictions if there are as many."""
    counts = np.cumsum([len(window.scored) for window in group])
    return group[: 1 + int(np.searchsorted(counts, PREDICTIONS))]


def batches_of_noise(net: RunningModel, windows: Sequence[Window]) -> Iterator[Batch]:
    """Yield the second computation of windows, as arguments of `lazy_logits`."""
    for window in windows:
        inputs = window.inputs
        if net.network.block.causal and net.network.scaling is None:  # nothing depends on the text's length
            inputs = inputs[: window.scored[-1] + 1]
        yield Batch(inputs, window.first, exact=True)


def noise_floor(net: RunningModel, windows: Sequence[Window], measured: Callable[[int], LazyLogits]) -> NoiseFloor:
    """Compute windows a second time; return the divergences from the first time.

    measured: called with the number of each window, gives the final states of its predictions in the run.
    """
    apart: list[Doubles] = []
    for number, (window, batch) in enumerate(zip(windows, batches_of_noise(net, windows), strict=True)):
        first, again = measured(number), net.lazy_logits(*batch)
        again = replace(again, x=np.ascontiguousarray(again.x[window.scored - window.first]))
        apart += [
            compare(
                *(rows_of(replace(each, x=each.x[start:stop]), window.targets[start:stop]) for each in (first, again))
            )
            for start, stop in spans(len(window.scored), max(MIN_POSITIONS, LOGITS_AT_ONCE // first.weight.rows))
        ]
    kl = np.concatenate(apart)[:, KL]
    return NoiseFloor(float(kl.mean()), float(kl.max()))
