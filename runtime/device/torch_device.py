"""A device of torch's: chosen by name, set to exact float32, and used by a model's passes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from quants import Tensor
from quants.errors import OptionError

from ..ahead import AheadOptions
from ..arrays import Floats
from ..graph.builder import Graph
from ..graph.placement import SHARE, TOKENS, bytes_of, bytes_of_values, tokens_at_once, weights_of
from ..head import LazyLogits, Output
from ..kv_cache import CacheType
from ..layer import ForwardContext
from ..products.precision import Precision
from .cache import DeviceCache
from .checkpoint import Checkpoint
from .context import DeviceContext
from .executor import Hook, Run, run
from .hessians import DeviceHessians
from .logits import DeviceLogits
from .precision import has_tf32, use_ieee_float32
from .streaming import StreamOptions, stream
from .weights import Weights

TOKENS_OF_PROCESSOR = 2048
STATES_SHARE = 0.2  # of the memory: hidden states that stay between layers


class TorchDevice:
    """Where the passes of one model are computed.

    name: "cuda", "mps", "xpu" or "cpu". title: its name for people, such as "cuda:0 (NVIDIA H200)". memory: bytes for
    weights and the values of a batch; None for no limit. fast: let products of matrices be TF32 where a pass does not
    ask for exact ones. models: how many have a part of the memory each; sharing: the devices of the others, whose
    weights make room while this model's are read layer by layer.
    """

    def __init__(self, device: torch.device, memory: int | None = None, fast: bool = False, models: int = 1) -> None:
        self.device, self.fast, self.whole = device, fast, memory
        self.memory = None if memory is None else memory // models
        self.weights = Weights(device, self.memory)
        self.weights.uses_tf32 = fast and has_tf32(device)
        self.name, self.title = device.type, _title(device)
        self._too_large: dict[tuple[int, int, int], tuple[Graph, bool]] = {}
        self._outputs: dict[str, Output] = {}
        self.sharing: list[TorchDevice] = []

    def for_another(self) -> "TorchDevice":
        """Return the same device for a model that shares some weights with this one."""
        other = TorchDevice(self.device, self.memory, self.fast)
        other.weights = self.weights
        return other

    def products(self, precision: Precision) -> str:
        """Return in words how products of matrices are computed."""
        return "TF32" if self.weights.uses_tf32 and precision != "exact" else "float32"

    def bytes_of(self, tensors: Iterable[Tensor]) -> int:
        """Return the bytes that weights take on the device."""
        return bytes_of(tensors)

    def streams(self, tensors: Iterable[Tensor], values: int = 0) -> bool:
        """Return whether these weights do not fit, so that texts go through the model layer by layer. values: bytes of
        a batch's values.
        """
        return self.memory is not None and self.bytes_of(tensors) + values > self.memory

    def tokens_at_once(self, graph: Graph, length: int, weights: Sequence[Tensor] = ()) -> int:
        """Return how many tokens, of whole texts of this length, are best computed together. weights: that are needed
        besides the graph's.
        """
        most = max(1, (TOKENS_OF_PROCESSOR if self.device.type == "cpu" else TOKENS) // length)
        if self.memory is None:
            return most * length
        return tokens_at_once(graph, length, (self.memory, self.whole or self.memory), most, weights)

    def stream(
        self, graph: Graph, passes: Sequence[tuple[ForwardContext, Floats]], options: AheadOptions | None = None
    ) -> Iterator[Floats]:
        """Yield the graph's result for each pass and its input (tokens, width), reading each weight once."""
        options = options or AheadOptions()
        checkpoint = None if options.store is None else Checkpoint(options.store, options.store_every)
        yield from self._alone(graph, passes, StreamOptions(self.whole, options.progress, checkpoint))

    def _alone(
        self, graph: Graph, passes: Sequence[tuple[ForwardContext, Floats]], options: StreamOptions
    ) -> Iterator[Floats]:
        """Yield `stream`, which has all of the memory that models share."""
        for other in self.sharing:
            other.weights.keep_only(())
        with _explained(self.title):
            yield from stream(graph, passes, self.weights, options)
        if self.sharing:
            self.weights.keep_only(())

    def release(self) -> None:
        """Drop all weights, which are moved to the device again when they are read."""
        self.weights.keep_only(())

    def new_cache(self, cache_type: CacheType, expected: int) -> DeviceCache:
        """Return an empty cache on the device. Raises OptionError for an unknown type."""
        return DeviceCache(self.device, cache_type, expected)

    def run(self, graph: Graph, forward: ForwardContext, x: Floats, hooks: Mapping[int, Hook] | None = None) -> Floats:
        """Return the graph's result for the input x (tokens, width), on the host."""
        self.weights.copies.threads = forward.threads
        with _explained(self.title):
            if self._is_too_large(graph, forward.texts, forward.length):
                (result,) = self._alone(graph, [(forward, x)], StreamOptions(self.whole, hooks=hooks))
                return result
            return run(graph, forward, x, self.weights, hooks)

    def _is_too_large(self, graph: Graph, texts: int, length: int) -> bool:
        """Return whether a graph's weights and values do not fit at once; found once for all passes alike."""
        if self.memory is None:
            return False
        key = id(graph), texts, length
        if key not in self._too_large:
            values = bytes_of_values(graph, texts, length)
            self._too_large[key] = graph, self.streams(weights_of(graph), values)
        return self._too_large[key][1]

    def logits(self, logits: LazyLogits, output: Output) -> LazyLogits:
        """Return the same logits, computed on the device."""
        output = self._outputs.setdefault(output.weight.name, output)  # the same tensor each time, to keep it there
        fields = logits.x, output.weight, logits.finish, logits.threads, logits.precision, logits.profile
        return DeviceLogits(*fields, logits.streams, weights=self.weights, output=output, memory=self.memory)

    def states(self, x: Floats, nbytes: int) -> torch.Tensor:
        """Return hidden states as `through` takes them: on the device if all of them take a small share of its memory.

        nbytes: of all states that are kept at once.
        """
        values: Any = np.ascontiguousarray(x)
        fits = self.memory is None or nbytes < STATES_SHARE * self.memory
        return torch.from_numpy(values).to(self.device if fits else "cpu")

    def through(self, graph: Graph, forward: ForwardContext, x: torch.Tensor) -> torch.Tensor:
        """Return the graph's result for `states`, where these are."""
        self.weights.copies.threads = forward.threads
        too_large = self.streams(weights_of(graph), bytes_of_values(graph, forward.texts, forward.length))
        with _explained(self.title), torch.inference_mode():
            if too_large:
                states = x.cpu().numpy()
                made = next(stream(graph, [(forward, states)], self.weights, StreamOptions(self.memory)))
                return torch.from_numpy(made).to(x.device)
            computing = Run(graph, DeviceContext(forward, self.weights))
            computing.supply(x.to(self.device))
            computing.advance(len(graph.nodes))
            result: torch.Tensor = computing.result.to(x.device)
        return result

    def drop(self, tensors: Iterable[Tensor]) -> None:
        """Release weights."""
        dropped = list(tensors)
        outputs = [self._outputs.pop(each.name).weight for each in dropped if each.name in self._outputs]
        self.weights.drop([*dropped, *outputs])

    def hessians(self, threads: int, columns: int) -> DeviceHessians:
        """Return empty sums of the inputs of products, on the device. columns: maximum block size."""
        return DeviceHessians(threads, columns, device=self.device)


@contextmanager
def _explained(title: str) -> Iterator[None]:
    """Raise OptionError where torch runs out of a device's memory."""
    try:
        yield
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        raise OptionError(
            f"{title} ran out of memory", "give less to `memory`, take a shorter text, or no device"
        ) from None


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
    return TorchDevice(device, memory, fast, models)


def _title(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    if device.type == "xpu":
        return f"{device} ({torch.xpu.get_device_name(device)})"
    return "the processor (torch)" if device.type == "cpu" else str(device)


def _free_memory(device: torch.device) -> int | None:
    """Return the bytes for weights on a device: what activations leave of its free memory; None for no limit."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * SHARE)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() * SHARE)
    if device.type == "xpu":
        return int(torch.xpu.mem_get_info(device)[0] * SHARE)
    return None
