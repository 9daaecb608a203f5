"""Run a model on a device: a GPU by torch (extra `device`), or this processor by our own kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quants import Tensor
from quants.arguments import as_count, wrong
from quants.errors import OptionError

if TYPE_CHECKING:
    from runtime.device.torch_device import TorchDevice
    from runtime.model import RunningModel
    from runtime.products.precision import Precision

EXTRA = 'install the extra: pip install "gguftools[device]"'
NAMES = "auto, cpu, cuda, cuda:N, mps, xpu or xpu:N"
PATTERN = re.compile(r"auto|cpu|mps|(cuda|xpu)(:\d{1,3})?")


@dataclass(frozen=True)
class DeviceOptions:
    """Where a model's passes are computed, by torch.

    name: "cuda", "cuda:1", "mps", "xpu", "cpu" (torch on the processor), or "auto": the first GPU, and without one this
    processor by our own kernels. memory: bytes for weights on the device; None for most of what is free. Texts go layer
    by layer through a model of more. fast: matrix products in TF32 where the device has it, else IEEE float32.

    Raises OptionError for a name or size that cannot be.
    """

    name: str = "auto"
    memory: int | None = None
    fast: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        if not isinstance(self.name, str) or not PATTERN.fullmatch(self.name):
            raise wrong("device", self.name, NAMES)
        if self.memory is not None:
            as_count(self.memory, "memory", 1)


def as_device(given: str | DeviceOptions | None) -> DeviceOptions | None:
    """Return options of a device; None for this processor by our own kernels. Raises OptionError."""
    return given if given is None or isinstance(given, DeviceOptions) else DeviceOptions(given)


def torch_device_for(given: str | DeviceOptions | None, models: int = 1) -> TorchDevice | None:
    """Return torch's device; None for this processor by our own kernels.

    models: how many share its memory. Raises OptionError without torch, or without such a device.
    """
    chosen = as_device(given)
    if chosen is None:
        return None
    try:
        from runtime.device.torch_device import torch_device
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise OptionError(f"device {chosen.name!r} needs torch, which is not installed", EXTRA) from None
    return torch_device(chosen.name, chosen.memory, fast=chosen.fast, models=models)


def running_on(
    given: str | DeviceOptions | None,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    threads: int | None = None,
    precision: Precision = "float32",
    models: int = 1,
) -> RunningModel:
    """Return a model whose passes are computed on a device, after a test of that device on the model's first layers.

    models: how many share the device's memory. Raises ModelError as `RunningModel` does; OptionError without torch or
    without such a device, for one that computes wrong values, and for what only the processor computes.
    """
    from runtime.model import RunningModel

    net = RunningModel(metadata, tensors, threads=threads, precision=precision)
    put_on(given, net, models)
    return net


def put_on(given: str | DeviceOptions | None, net: RunningModel, models: int = 1) -> None:
    """Let a model's passes be computed on a device, as `running_on` does."""
    device = torch_device_for(given, models)
    if device is None:
        return
    from runtime.device.self_test import check_device

    if net.precision == "llama.cpp":
        raise OptionError("inputs are rounded as llama.cpp does on the processor alone", "leave the device out")
    if net.codes is not None:
        raise OptionError("an audio codec is computed on the processor alone", "leave the device out")
    check_device(net, device)
    net.device = device


def share_memory(models: Sequence[RunningModel]) -> None:
    """Let models that run on one device have all of its memory in turn, while they do not fit in their parts of it."""
    devices = [model.device for model in models if model.device is not None]
    for device in devices:
        device.sharing[:] = [other for other in devices if other is not device]


def name_of_device(net: RunningModel) -> str:
    """Return the name of a model's device as reports have it; "" for this processor by our own kernels."""
    return "" if net.device is None else net.device.title
