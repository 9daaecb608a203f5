"""Find tensors that differ from those of their role in other layers: changed after quantizing, or with outliers.

A hidden change of weights shows, if at all, as a tensor whose errors or values don't fit those of its role in other
layers. These findings are hints at best.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from quants import Tensor, format_named

from ...writing.row_blocks import Progress, by_tensor
from .finding import Finding

MIN_TENSORS = 6  # tensors of a role that can be compared with each other
MAX_DEVIATIONS = 8.0  # robust standard deviations
MIN_FACTOR = 2.0  # minimum ratio to the median
MEASURE = format_named("Q8_0")


def audit_statistics(
    tensors: Mapping[str, Tensor], threads: int | None = None, progress: Progress | None = None
) -> Iterator[Finding]:
    """Find weights whose size, peaks or rounding errors are outliers among those of their role in other layers."""
    usable = [tensor for tensor in tensors.values() if len(tensor.shape) > 1 and tensor.size]
    blocks_by_name = by_tensor(usable, _look, threads=threads, progress=progress)
    measured = {name: _statistics(blocks) for name, blocks in blocks_by_name.items()}
    roles: dict[str, list[str]] = {}
    for name, statistics in measured.items():
        roles.setdefault(re.sub(r"\.\d+\.", ".#.", name), []).append(name)
        if not any(statistics.values()):
            yield Finding("low", "outlier", name, "every value is zero")
    for names in roles.values():
        for what in measured[names[0]]:
            for name, value, usual in _far({name: measured[name][what] for name in names}):
                yield Finding("low", "outlier", name, f"{what} is {value:.3g}; in other layers it is about {usual:.3g}")


def _look(tensor: Tensor, start: int, stop: int) -> tuple[int, float, float, float]:
    """Return of some rows: number of values, sum of squares, largest value, squared error of storing them as Q8_0."""
    values = tensor.float32(start, stop)
    wide = values.astype(np.float64)
    lost = 0.0
    if tensor.width % MEASURE.block_size == 0:
        with np.errstate(all="ignore"):
            difference = MEASURE.decode(MEASURE.encode(np.ascontiguousarray(values))) - wide
        lost = float(np.vdot(difference, difference))
    return values.size, float(np.vdot(wide, wide)), float(np.abs(wide).max()), lost


def _statistics(blocks: Iterable[tuple[int, float, float, float]]) -> dict[str, float]:
    counts, squares, largest, lost = zip(*blocks, strict=True)
    rms = math.sqrt(sum(squares) / sum(counts))
    return {
        "root mean square": rms,
        "largest value over root mean square": max(largest) / rms if rms else 0.0,
        "error of 8-bit storage": math.sqrt(sum(lost) / sum(squares)) if rms else 0.0,
    }


def audit_errors(relative: Mapping[str, tuple[str, float]]) -> Iterator[Finding]:
    """Find tensors with a larger error than others of their format. relative: name → format, relative RMSE."""
    for form in dict.fromkeys(form for form, _ in relative.values()):
        errors = {name: error for name, (name_of_format, error) in relative.items() if name_of_format == form}
        for name, value, usual in _far(errors):
            if value > usual:
                message = f"is {100 * value:.3g} % from the source; other {form} tensors are about {100 * usual:.3g} %"
                yield Finding("medium", "changed", name, message)


def _far(values: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    """Yield outliers with their value and the median, on a logarithmic scale."""
    usable = {name: value for name, value in values.items() if value > 0 and math.isfinite(value)}
    for name, value in values.items():
        if not math.isfinite(value):
            yield name, value, float(np.median(list(usable.values()) or [0.0]))
    if len(usable) < MIN_TENSORS:
        return
    logs = np.log(list(usable.values()))
    middle = float(np.median(logs))
    spread = max(1.4826 * float(np.median(np.abs(logs - middle))), 0.02)
    for (name, value), log in zip(usable.items(), logs, strict=True):
        if abs(log - middle) > MAX_DEVIATIONS * spread and abs(log - middle) > math.log(MIN_FACTOR):
            yield name, value, math.exp(middle)
