"""Define the options of commands that run a model on a device."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

if TYPE_CHECKING:
    from ..models.devices import DeviceOptions

DEVICE_PANEL = {"Device": ("device", "device_memory", "fast")}


@dataclass(frozen=True)
class DeviceChoice:
    """Where a model's passes are computed."""

    device: Annotated[
        str | None,
        Option(
            help="Compute by torch on auto (the first GPU), cuda, cuda:N, mps, xpu or cpu (default: without torch)."
        ),
    ] = None
    device_memory: Annotated[
        Any, "Memory for weights on the device, e.g. 20G (larger models are measured layer by layer)."
    ] = None
    fast: Annotated[bool, "TF32 products where the device has them (adds about 2e-6 nats of noise)."] = False

    def chosen(self) -> "DeviceOptions | None":
        """Return the library's options; None, with a note, where there is no GPU to choose.

        Raises OptionError without torch, or without that device.
        """
        from ..models.devices import DeviceOptions, torch_device_for
        from .ui import note

        if self.device is None:
            return None
        options = DeviceOptions(self.device, self.device_memory, self.fast)
        if torch_device_for(options) is None:
            note("torch finds no GPU here: computed on the processor by our own kernels")
            return None
        return options
