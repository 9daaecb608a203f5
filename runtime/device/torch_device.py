"""A device of torch's: chosen by name, set to exact float32, and used by a model's passes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from quants import Tensor
from quants.errors import OptionError

from ..arrays import Floats
from ..graph.builder import Graph
from ..graph.placement import WEIGHTS_SHARE, bytes_on_device
from ..head import LazyLogits, Output
from ..layer import ForwardContext
from ..products.precision import Precision
from .executor import Hook, run
from .logits import DeviceLogits
from .precision import has_tf32, use_ieee_float32
from .streaming import stream
from .weights import Weights


class TorchDevice:
    """Where the passes of one model are computed.

    title: its name for people, such as "cuda:0 (NVIDIA H200)". memory: bytes for weights; None for no limit. fast: let
    products of matrices be TF32 where a pass does not ask for exact ones.
    """

    def __init__(self, device: torch.device, memory: int | None = None, fast: bool = False) -> None:
        self.device, self.memory, self.fast, self.weights = device, memory, fast, Weights(device)
        self.weights.uses_tf32 = fast and has_tf32(device)
        self.title = _title(device)
        self._outputs: dict[str, Output] = {}

    def products(self, precision: Precision) -> str:
        """Return in words how products of matrices are computed."""
        return "TF32" if self.weights.uses_tf32 and precision != "exact" else "float32"

    def streams(self, tensors: Iterable[Tensor]) -> bool:
        """Return whether these weights do not fit, so that texts go through the model layer by layer."""
        return self.memory is not None and sum(map(bytes_on_device, tensors)) > self.memory

    def stream(self, graph: Graph, passes: Sequence[tuple[ForwardContext, Floats]]) -> Iterator[Floats]:
        """Yield the graph's result for each pass and its input (tokens, width), reading each weight once."""
        self.weights.drop(output.weight for output in self._outputs.values())
        return stream(graph, passes, self.weights, self.memory)

    def run(self, graph: Graph, forward: ForwardContext, x: Floats, hooks: Mapping[int, Hook] | None = None) -> Floats:
        """Return the graph's result for the input x (tokens, width), on the host."""
        return run(graph, forward, x, self.weights, hooks)

    def logits(self, logits: LazyLogits, output: Output) -> LazyLogits:
        """Return the same logits, computed on the device."""
        output = self._outputs.setdefault(output.weight.name, output)  # the same tensor each time, to keep it there
        fields = logits.x, output.weight, logits.finish, logits.threads, logits.precision, logits.profile
        return DeviceLogits(*fields, logits.streams, weights=self.weights, output=output, memory=self.memory)


def available() -> list[str]:
    """Return the names of this machine's devices, the fastest first; "cpu" is always among them."""
    names = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        names += [f"xpu:{i}" for i in range(torch.xpu.device_count())]
    return [*names, "cpu"]


def torch_device(name: str, memory: int | None = None, *, fast: bool = False, models: int = 1) -> TorchDevice | None:
    """Return a device by name: "cpu", "cuda", "cuda:N", "mps", "xpu" or "xpu:N"; for "auto" the first GPU, or None.

    memory: bytes for weights; None for most of what is free, on the processor for no limit. fast: as of `TorchDevice`.
    models: how many share the memory. Raises OptionError for a device that this machine does not have.
    """
    use_ieee_float32()
    names = available()
    if name == "auto" and names == ["cpu"]:
        return None
    wanted = names[0] if name == "auto" else f"{name}:0" if name in ("cuda", "xpu") else name
    if wanted not in names:
        raise OptionError(f"torch finds no device {name!r} here", hint=f"there are: {', '.join(names)}")
    device = torch.device(wanted)
    memory = _free_memory(device) if memory is None else memory
    return TorchDevice(device, None if memory is None else memory // models, fast)


def _title(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    if device.type == "xpu":
        return f"{device} ({torch.xpu.get_device_name(device)})"
    return "the processor (torch)" if device.type == "cpu" else str(device)


def _free_memory(device: torch.device) -> int | None:
    """Return the bytes for weights on a device: what activations leave of its free memory; None for no limit."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * WEIGHTS_SHARE)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() * WEIGHTS_SHARE)
    if device.type == "xpu":
        return int(torch.xpu.mem_get_info(device)[0] * WEIGHTS_SHARE)
    return None
