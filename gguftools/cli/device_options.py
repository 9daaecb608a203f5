"""Define the options of commands that run a model on a device."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from typer import Option

if TYPE_CHECKING:
    from ..models.devices import DeviceOptions

DEVICE_PANEL = {"Device": ("device", "device_memory", "fast")}
PLANNED_PANEL = {"Device": (*DEVICE_PANEL["Device"], "plan", "card")}  # of commands that plan, too


@dataclass(frozen=True)
class DeviceChoice:
    """Where a model's passes are computed."""

    device: Annotated[
        str | None,
        Option(help="Compute by torch on auto (the first GPU), cuda, cuda:N, mps, xpu or cpu (no torch if not given)."),
    ] = None
    device_memory: Annotated[
        Any, "Memory for weights on the device, e.g. 20G (larger models are measured layer by layer)."
    ] = None
    fast: Annotated[bool, "TF32 products where the device has them: faster, less exact (see the noise floor)."] = False

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


@dataclass(frozen=True)
class PlanChoice:
    """Whether a measurement is only planned, and for which card."""

    plan: Annotated[bool, "Only estimate what it takes: memory and time of graphics cards."] = False
    card: Annotated[
        str | None, Option(metavar="CARD", help='With --plan: a card, e.g. "RTX 4090" (default: all that are known).')
    ] = None


class Measurement(Protocol):
    """What reports of `perplexity` and `divergence` have in common."""

    @property
    def products(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def noise_floor(self) -> float | None: ...
    @property
    def noise_floor_max(self) -> float | None: ...


def print_noise_floor(report: "Measurement") -> None:
    """Print a line with the noise floor of a report; nothing for the processor, which has none."""
    from .ui import print_line

    if report.noise_floor is not None:
        largest = f"at most {report.noise_floor_max:.1e}" if report.noise_floor_max else "no difference"
        print_line(f"noise floor {report.noise_floor:.1e} nats, {largest} ({report.device}, {report.products})")
