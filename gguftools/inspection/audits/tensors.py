"""Tensors that differ from their like: changed after quantizing, or with values far out of line.

A hidden change of weights shows, if at all, as a tensor whose errors or values don't fit those of its role in other
layers. These findings are hints at best.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quants import Tensor, format_named

from ...writing.row_blocks import Progress, over_rows
from .finding import Finding

FEWEST = 6  # tensors of a role that can be compared with each other
FAR = 8.0  # robust standard deviations
FACTOR = 2.0  # and at least so many times what is usual
MEASURE = format_named("Q8_0")


@dataclass
class Statistics:
    """Of a tensor's values. error: relative rmse of storing them as Q8_0 (None where rows don't fit it)."""

    count: int = 0
    squares: float = 0.0
    largest: float = 0.0
    lost: float = 0.0
    zeros: int = 0

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    @property
    def peak(self) -> float:
        """The largest value over the root mean square."""
        return self.largest / self.rms if self.rms else 0.0

    @property
    def error(self) -> float:
        return math.sqrt(self.lost / self.squares) if self.squares else 0.0

    def add(self, other: Statistics) -> None:
        self.count += other.count
        self.squares += other.squares
        self.largest = max(self.largest, other.largest)
        self.lost += other.lost
        self.zeros += other.zeros


def measure(
    tensors: Mapping[str, Tensor], threads: int | None = None, progress: Progress | None = None
) -> dict[str, Statistics]:
    """Statistics of every weight that can be decoded."""
    usable = [tensor for tensor in tensors.values() if len(tensor.shape) > 1 and tensor.size]
    found = {tensor.name: Statistics() for tensor in usable}
    for tensor, _, part in over_rows(usable, _look, threads=threads, progress=progress):
        found[tensor.name].add(part)
    return found


def _look(tensor: Tensor, start: int, stop: int) -> Statistics:
    values = tensor.float32(start, stop)
    wide = values.astype(np.float64)
    lost = 0.0
    if tensor.width % MEASURE.block_size == 0:
        with np.errstate(all="ignore"):
            difference = MEASURE.decode(MEASURE.encode(np.ascontiguousarray(values))) - wide
        lost = float(np.vdot(difference, difference))
    return Statistics(
        values.size, float(np.vdot(wide, wide)), float(np.abs(wide).max(initial=0)), lost, int((values == 0).sum())
    )


def audit_statistics(found: Mapping[str, Statistics]) -> Iterator[Finding]:
    """Weights whose size, peaks or rounding errors are out of line with those of their role in other layers."""
    measures: dict[str, Callable[[Statistics], float]] = {
        "root mean square": lambda s: s.rms,
        "largest value over root mean square": lambda s: s.peak,
        "error of 8-bit storage": lambda s: s.error,
    }
    for name, statistics in found.items():
        if statistics.count and statistics.zeros == statistics.count:
            yield Finding("low", "outlier", name, "every value is zero")
    for names in _roles(found).values():
        for what, of in measures.items():
            for name, value, usual in _far({name: of(found[name]) for name in names}):
                yield Finding("low", "outlier", name, f"{what} is {value:.3g}; in other layers it is about {usual:.3g}")


def audit_errors(relative: Mapping[str, tuple[str, float]]) -> Iterator[Finding]:
    """Tensors that are further from the source than others of their format. relative: name → format, relative rmse."""
    for form in {form for form, _ in relative.values()}:
        errors = {name: error for name, (kind, error) in relative.items() if kind == form}
        for name, value, usual in _far(errors):
            if value > usual:
                message = f"is {100 * value:.3g} % from the source; other {form} tensors are about {100 * usual:.3g} %"
                yield Finding("medium", "changed", name, message)


def _roles(names: Mapping[str, Any]) -> dict[str, list[str]]:
    roles: dict[str, list[str]] = {}
    for name in names:
        roles.setdefault(re.sub(r"\.\d+\.", ".#.", name), []).append(name)
    return roles


def _far(values: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    """Names whose value is far from the others', with the value and the median; on a logarithmic scale."""
    usable = {name: value for name, value in values.items() if value > 0 and math.isfinite(value)}
    for name in values.keys() - usable.keys():
        if math.isnan(values[name]) or math.isinf(values[name]):
            yield name, values[name], float(np.median(list(usable.values()) or [0.0]))
    if len(usable) < FEWEST:
        return
    logs = np.log(list(usable.values()))
    middle = float(np.median(logs))
    spread = max(1.4826 * float(np.median(np.abs(logs - middle))), 0.02)
    for (name, value), log in zip(usable.items(), logs, strict=True):
        if abs(log - middle) > FAR * spread and abs(log - middle) > math.log(FACTOR):
            yield name, value, math.exp(middle)
