"""Sums of the inputs of products on a device, for the importance matrix."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..arrays import Doubles
from ..importance import Importance, Sums

BLOCK = 64  # rows that are summed in float32 where reductions in float64 are slow or missing
WAITING = 1 << 24  # numbers of block sums that wait on a device without float64, at most
PARTS = ("squares", "inputs", "counts")  # of `Sums`
Key = tuple[tuple[str, ...], int, int]  # names of the weights that share inputs, expert, of how many


@dataclass
class DeviceImportance(Importance):
    """`Importance` whose sums are made on the device: float64 there, or float32 sums of BLOCK rows that the host adds.

    Products that share an input, such as those of queries, keys and values, share its sums. Rows are added in their
    order, so that sums are the same whether batches go through the model one by one or layer by layer.
    """

    _sums: dict[Key, torch.Tensor] = field(default_factory=dict)  # float64 (2, width): squares, inputs
    _resting: dict[Key, Doubles] = field(default_factory=dict)  # the same on the host
    _counts: dict[Key, int] = field(default_factory=dict)
    _last: "_Observed | None" = None
    _blocks: list[tuple[Key, torch.Tensor]] = field(default_factory=list)
    _waiting: int = 0

    def observe_tensor(self, name: str, x: torch.Tensor, expert: int, experts: int) -> None:
        """Add the inputs x (n, width) of the weight `name`, or of one of its experts."""
        if not self.wanted(name):
            return
        if self._last is None or not self._last.is_of(x, expert, experts) or name in self._last.names:
            self._add_last()
            self._last = _Observed(x, expert, experts)
        self._last.names.append(name)

    def _add_last(self) -> None:
        """Add the inputs that were observed last, when the names of all weights that share them are known."""
        if (last := self._last) is None:
            return
        self._last, key = None, (tuple(last.names), last.expert, last.experts)
        self._counts[key] = self._counts.get(key, 0) + len(last.x)
        if not has_float64(last.x.device):
            self._wait_for_host(key, last.sums)
            return
        own = self._sums.get(key)
        if own is None and key in self._resting:
            own = self._sums[key] = torch.from_numpy(self._resting.pop(key)).to(last.x.device)
        if own is None:
            self._sums[key] = last.sums
        else:
            own += last.sums

    def _wait_for_host(self, key: Key, blocks: torch.Tensor) -> None:
        self._blocks.append((key, blocks))
        self._waiting += blocks.numel()
        if self._waiting > WAITING:
            self._add_blocks()

    def _add_blocks(self) -> None:
        for key, blocks in self._blocks:
            sums = blocks.cpu().double().sum(dim=1).numpy()
            self._resting[key] = self._resting[key] + sums if key in self._resting else sums
        self._blocks.clear()
        self._waiting = 0

    def rest(self) -> None:
        """Move the sums so far to the host; they are continued if more inputs come."""
        with torch.inference_mode():
            self._add_last()
            self._add_blocks()
            for key, sums in self._sums.items():
                self._resting[key] = sums.cpu().numpy()
        self._sums.clear()

    def kept(self) -> tuple[list[Any], dict[str, NDArray[Any]]]:
        """Return the sums so far to be stored: a list of what they are of, as JSON has it, and arrays by name."""
        self.rest()
        places, arrays = list[Any](), dict[str, NDArray[Any]]()
        for number, (key, sums) in enumerate(self._resting.items()):
            places.append([*key, self._counts[key]])
            arrays[f"device.{number}"] = sums
        for name, mine in self.sums.items():
            arrays |= {f"{part}.{name}": getattr(mine, part) for part in PARTS}
        return places, arrays

    def restore(self, places: list[Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the sums by stored ones."""
        self._last, self._sums, self._blocks, self._waiting = None, {}, [], 0
        keys = [((tuple(names), expert, experts), count) for names, expert, experts, count in places]
        self._counts = dict(keys)
        self._resting = {key: arrays[f"device.{number}"] for number, (key, _) in enumerate(keys)}
        own = [name.partition(".")[2] for name in arrays if name.startswith(f"{PARTS[0]}.")]
        self.sums = {name: Sums(*(arrays[f"{part}.{name}"] for part in PARTS)) for name in own}

    def finish(self) -> dict[str, Sums]:
        """Return the sums, moved to the host."""
        self.rest()
        for (names, expert, experts), (squares, inputs) in self._resting.items():
            count = self._counts[names, expert, experts]
            for name in names:
                if name not in self.sums:
                    shape = experts, len(squares)
                    self.sums[name] = Sums(np.zeros(shape), np.zeros(shape), np.zeros(experts, np.int64))
                mine = self.sums[name]
                mine.squares[expert] += squares
                mine.inputs[expert] += inputs
                mine.counts[expert] += count
        self._resting.clear()
        self._counts.clear()
        return self.sums


class _Observed:
    """Inputs of the products with some weights. names: of the weights. sums: float64 (2, width), squares and inputs; or
    float32 (2, blocks, width) on a device without float64.
    """

    def __init__(self, x: torch.Tensor, expert: int, experts: int) -> None:
        self.x, self.expert, self.experts = x, expert, experts
        self.names = list[str]()
        self.sums = torch.stack(_column_sums(x) if has_float64(x.device) else _block_sums(x))

    def is_of(self, x: torch.Tensor, expert: int, experts: int) -> bool:
        """Return whether x is the same memory; it cannot be another's, as this keeps it."""
        mine = self.x
        is_same: bool = (
            x.data_ptr() == mine.data_ptr()
            and (x.shape, x.stride(), x.device) == (mine.shape, mine.stride(), mine.device)
            and (expert, experts) == (self.expert, self.experts)
        )
        return is_same


def observer_of(observe: Any) -> DeviceImportance | None:
    """Return the sums that an observer of products belongs to, if they are made on the device."""
    owner = getattr(observe, "__self__", None)
    return owner if isinstance(owner, DeviceImportance) else None


def has_float64(device: torch.device) -> bool:
    """Return whether a device computes in float64."""
    if device.type == "xpu":
        return bool(getattr(torch.xpu.get_device_properties(device), "has_fp64", False))
    return str(device.type) != "mps"


def _column_sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums over rows of the squares of x (n, width), and of x: float64 (width,)."""
    if x.device.type == "cpu":  # whose reductions over rows are slow
        squares, inputs = _block_sums(x)
        return squares.sum(dim=0, dtype=torch.float64), inputs.sum(dim=0, dtype=torch.float64)
    lengths = torch.linalg.vector_norm(x, dim=0, dtype=torch.float64)  # nothing as large as x is written
    return lengths.square_(), x.sum(dim=0, dtype=torch.float64)


def _block_sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `_column_sums` of each BLOCK rows: float32 (blocks, width), summed by products with ones."""
    whole = len(x) // BLOCK * BLOCK
    parts = [x[:whole].reshape(-1, BLOCK, x.shape[1]), x[whole:][None]]
    squares, inputs = [], []
    for part in parts:
        if part.numel():
            ones = x.new_ones((len(part), 1, part.shape[1]))
            squares.append(torch.bmm(ones, part.square())[:, 0])
            inputs.append(torch.bmm(ones, part)[:, 0])
    empty = x.new_zeros((0, x.shape[1]))
    return torch.cat([empty, *squares]), torch.cat([empty, *inputs])
