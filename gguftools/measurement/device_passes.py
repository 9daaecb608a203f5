"""Passes of a divergence's models through a device: announced before the first window, and kept if they are killed."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .pass_state import pass_state

if TYPE_CHECKING:
    from runtime.ahead import AheadOptions
    from runtime.evaluation.divergence import RunningLogits
    from runtime.evaluation.noise import NoiseFloor
    from runtime.evaluation.windows import Window
    from runtime.model import RunningModel

    from .divergence_report import FileDivergence
    from .progress_record import ProgressRecord


@dataclass(frozen=True)
class Measured:
    """A model that is measured, and its logits of the windows."""

    net: "RunningModel"
    logits: "RunningLogits"


@dataclass(frozen=True)
class Kept:
    """A run that can be resumed: its record, the record's path, and what is measured, in words and digests."""

    record: "ProgressRecord"
    path: Path
    head: Mapping[str, Any]


def begin_on_device(
    models: Sequence[Measured], windows: Sequence[int], kept: Kept | None, stack: ExitStack
) -> "NoiseFloor | None":
    """Announce what models will compute, and return the noise floor of the first one; None for models on the processor.

    windows: the numbers of those that are measured, ascending. kept: a run that can be resumed; passes that read
    weights layer by layer are kept in files next to its record until the stack ends. Raises FileError for such files of
    another measurement.
    """
    from runtime.evaluation.noise import NoiseFloor, batches_of_noise, noise_floor, windows_of_noise

    first = models[0]
    if first.net.device is None:
        return None
    twice: Sequence[Window] = ()
    known: NoiseFloor | None = None
    if (not windows or windows[0]) and kept is not None and kept.record.noise is not None:
        known = NoiseFloor(*kept.record.noise)
    elif windows:
        twice = windows_of_noise(first.logits.group(windows[0]))
    for number, model in enumerate(models):
        batches = model.logits.batches(windows)
        again = batches_of_noise(first.net, twice) if model is first else ()
        options = _options(model.net, number, kept, stack)
        stack.enter_context(model.net.prepare([*islice(batches, 1), *again, *batches], options))
    if not twice:
        return known
    begin = windows[0]
    floor = noise_floor(first.net, twice, lambda place: first.logits.states(begin + place, 0, len(twice[place].scored)))
    if kept is not None:
        kept.record.note_noise(floor.mean, floor.max)
    return floor


def _options(net: "RunningModel", number: int, kept: Kept | None, stack: ExitStack) -> "AheadOptions":
    """Return how a model's passes are computed. number: of the model among all."""
    from runtime.ahead import AheadOptions

    if kept is None or net.device is None or not net.device.streams(net.tensors.values()):
        return AheadOptions()
    target = kept.path.with_name(f"{kept.path.name}.{number}")
    return AheadOptions(store=stack.enter_context(pass_state(target, kept.head)))


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
