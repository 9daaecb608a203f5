"""Predict what a run takes: bytes, requests, memory, hours, money.

Tasks are those of `write_files`. Encoding speed is measured on this machine, on a few rows for each pair of formats.
Tasks are then assigned in order, each to the worker that is free first.
"""

import heapq
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from archs.bounded_files import PRICES, read_bytes
from archs.small_files import parse_json
from quants import Format
from quants.errors import OptionError
from quants.format import format_named

from .cost_model import CostModel, Prices
from .options import DEFAULT_MEMORY
from .pipeline import FilePlan, Task, tasks_of

PROBE_WIDTH, PROBE_ROWS = 2048, 512  # as many values as a task has
PROBE_TRIES = 2
PART_BYTES = 64 << 20  # of an upload
WORKER_MEMORY = 350 << 20  # of Python, numpy and the kernels, before any rows


@dataclass(frozen=True)
class WorkPlan:
    """Predict what a run takes.

    bytes_read, bytes_written: each once. requests: ranges read, and parts written. memory: bytes of a worker at most.
    encode_seconds: of all workers together, as measured on this machine; transfer_seconds: the same for transfers.
    hours: from start to end. busy: fraction of the time that workers have work. cost: by the prices of the cost model.
    """

    workers: int
    tasks: int
    bytes_read: int
    bytes_written: int
    requests: int
    memory: int
    encode_seconds: float
    transfer_seconds: float
    hours: float
    busy: float
    cost: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def plan_work(files: Sequence[FilePlan], cost_model: CostModel, memory: int = DEFAULT_MEMORY) -> WorkPlan:
    """Predict what writing these files takes. memory: bytes that the tasks of a worker may hold."""
    tasks = tasks_of(files, 1, memory, statistics=False)
    read = sum(task.nbytes for task in tasks)
    written = sum(file.layout.total for file in files)
    requests = len(tasks) + sum(math.ceil(file.layout.total / PART_BYTES) for file in files)
    encoding = [_encode_seconds(task) for task in tasks]
    moving = [_transfer_seconds(task, cost_model) for task in tasks]
    free = [0.0] * cost_model.workers  # a heap: when each worker is free
    for seconds, transfer in zip(encoding, moving, strict=True):
        heapq.heapreplace(free, free[0] + seconds + transfer)
    last = max(free)
    prices, giga = cost_model.prices, 1e9
    cost = (
        prices.worker_hour * cost_model.workers * last / 3600
        + prices.gigabyte_read * read / giga
        + prices.gigabyte_written * written / giga
        + prices.thousand_requests * requests / 1000
    )
    held = max((task.nbytes + 12 * task.values for task in tasks), default=0)  # stored, decoded, kept by encoders
    return WorkPlan(
        cost_model.workers,
        len(tasks),
        read,
        written,
        requests,
        WORKER_MEMORY + 2 * held,
        sum(encoding),
        sum(moving),
        last / 3600,
        sum(free) / (last * cost_model.workers) if last else 1.0,
        cost,
    )


def _transfer_seconds(task: Task, cost_model: CostModel) -> float:
    wanted = sum((task.stop - task.start) * item.format.row_bytes(task.tensor.width) for _, _, item in task.wanted)
    return cost_model.latency + (task.nbytes + wanted) / cost_model.rate


def _encode_seconds(task: Task) -> float:
    if all(item.is_copy for _, _, item in task.wanted):
        return 0.0
    seconds = _decode_rate(task.tensor.format.name)
    for _, _, item in task.wanted:
        seconds += 0.0 if item.is_copy else _encode_rate(item.format.name, item.importance is not None)
    return seconds * task.values


@lru_cache
def _decode_rate(name: str) -> float:
    """Return seconds per value."""
    form = _known(name)
    if form is None:
        return 0.0
    raw = np.zeros((PROBE_ROWS, form.row_bytes(_width(form))), np.uint8)
    return _best(lambda: form.decode(raw)) / (PROBE_ROWS * _width(form))


@lru_cache
def _encode_rate(name: str, weighted: bool) -> float:
    form = _known(name)
    if form is None:
        return 0.0
    width = _width(form)
    values = np.random.default_rng(0).standard_normal((PROBE_ROWS, width)).astype(np.float32)
    importance = np.ones(width, np.float32) if weighted or form.needs_importance else None
    return _best(lambda: form.encode(values, importance)) / (PROBE_ROWS * width)


def _known(name: str) -> Format | None:
    try:
        form = format_named(name)
    except Exception:  # a dialect's, which is decoded by other means
        return None
    return form if form.has_codec else None


def _width(form: Format) -> int:
    return PROBE_WIDTH // form.block_size * form.block_size


def _best(work: Any) -> float:
    """Return the seconds of the fastest of a few runs, after one that compiles."""
    work()
    timings = []
    for _ in range(PROBE_TRIES):
        started = time.perf_counter()
        work()
        timings.append(time.perf_counter() - started)
    return min(timings)


def read_prices(path: Path) -> Prices:
    """Read a price table: JSON with some of the fields of Prices. Raises OptionError for anything else."""
    try:
        given = parse_json(read_bytes(path, PRICES))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"{path} is no price table: {reason}", f"JSON with {', '.join(Prices._fields)}") from error
    if not isinstance(given, Mapping) or not given or not set(given) <= set(Prices._fields):
        raise OptionError(f"{path} is no price table", f"an object with some of {', '.join(Prices._fields)}")
    for name, price in given.items():
        if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 <= price < 1e9:
            raise OptionError(f"{path}: {name} is {price!r:.50}; a price of 0 or more was expected")
    return Prices(**{name: float(price) for name, price in given.items()})
