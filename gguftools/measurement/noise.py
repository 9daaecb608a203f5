"""Models of a divergence that run on a device: their passes ahead, and the noise floor of a report."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.evaluation.divergence import RunningLogits
    from runtime.evaluation.noise import NoiseFloor
    from runtime.model import RunningModel

    from .divergence_report import FileDivergence
    from .progress_record import ProgressRecord


@dataclass(frozen=True)
class Measured:
    """A model that is measured, and its logits of the windows."""

    net: "RunningModel"
    logits: "RunningLogits"


def begin_on_device(
    models: Sequence[Measured], windows: Sequence[int], record: "ProgressRecord | None"
) -> "NoiseFloor | None":
    """Say what models will compute, and return the noise floor of the first one; None for models on the processor.

    windows: the numbers of those that are measured, ascending; None can be measured anew if there are none. record:
    has the noise floor of an interrupted run.
    """
    from runtime.evaluation.noise import NoiseFloor, batches_of_noise, noise_floor, windows_of_noise

    first = models[0]
    if first.net.device is None:
        return None
    known = None if record is None or record.noise is None else NoiseFloor(*record.noise)
    twice = windows_of_noise(first.logits.group(windows[0])) if windows and known is None else []
    for model in models:
        batches = model.logits.batches(windows)
        again = batches_of_noise(first.net, twice) if model is first else ()
        model.net.prepare([*islice(batches, 1), *again, *batches])
    if not twice:
        return known
    begin = windows[0]
    floor = noise_floor(first.net, twice, lambda place: first.logits.states(begin + place, 0, len(twice[place].scored)))
    if record is not None:
        record.note_noise(floor.mean, floor.max)
    return floor


def lost_in_noise(files: Sequence["FileDivergence"], floor: "NoiseFloor | None") -> list[str]:
    """Return a remark for each file whose divergence cannot be told from rounding."""
    from runtime.evaluation.noise import FACTOR

    if floor is None:
        return []
    return [
        f"{file.path}: a mean KL divergence of {file.kl_divergence['mean']:.1e} nats cannot be told from noise,"
        f" of which the floor is {floor.mean:.1e}"
        for file in files
        if 0 < file.kl_divergence["mean"] < FACTOR * floor.mean
    ]
