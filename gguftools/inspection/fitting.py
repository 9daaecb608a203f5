"""Tell how much memory llama.cpp needs to run models, and how each fits into a card's memory or into RAM.

Weights, caches and states are exact. Compute buffers follow from the graph of one step, laid out as ggml's allocator
does (see `runtime.memory`): exact for nearly all architectures in RAM, and close on a device, where each backend has
needs of its own. Other architectures get an interval; decisions use its upper end.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quants.arguments import PathLike, as_count
from quants.errors import GgufToolsError, ModelError, OptionError
from quants.format import format_named
from runtime.memory.caches import layer_caches
from runtime.memory.compute import ComputeBuffers, compute_buffers
from runtime.memory.description import CELLS, Described, Settings, described
from runtime.memory.estimates import cache_interval, compute_interval, unmodelled
from runtime.memory.placement import ALL_LAYERS, DEVICE, IN_RAM, Placement, weights

from ..models.contents import check_is_model
from ..models.model import Model, opened_gguf, path_of

GIB = 1 << 30
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
MAX_CONTEXT = 1 << 22


@dataclass(frozen=True)
class FitOptions:
    """How models are to be run: the options of llama-server.

    context: tokens of all slots together. cache_type, cache_type_v: of keys, and of values if they differ. parallel:
    slots, each with its part of the context. ubatch: tokens of a step. margin: bytes to leave free. mmproj: the file of
    the encoder of images or sounds. cpu: run in RAM alone. all_logits: compute logits of all tokens of a step, as
    llama-perplexity does.
    """

    context: int = 8192
    cache_type: str = "f16"
    cache_type_v: str | None = None
    parallel: int = 1
    ubatch: int = 512
    margin: int = GIB
    mmproj: PathLike | None = None
    cpu: bool = False
    all_logits: bool = False

    def settings(self) -> Settings:
        """Return them as the arithmetic wants them. Raises OptionError for what llama.cpp doesn't take."""
        context = as_count(self.context, "context", 1)
        if context > MAX_CONTEXT:
            raise OptionError(f"context is {context}; at most {MAX_CONTEXT} is expected")
        parallel, ubatch = as_count(self.parallel, "parallel", 1), as_count(self.ubatch, "ubatch", 1)
        as_count(self.margin, "margin", 0)
        types = [self.cache_type, self.cache_type if self.cache_type_v is None else self.cache_type_v]
        for name, given in zip(("cache_type", "cache_type_v"), types, strict=True):
            if not isinstance(given, str) or given.lower() not in CACHE_TYPES:
                raise OptionError(f"{name} is {given!r}; one of {', '.join(CACHE_TYPES)} is expected")
        keys, values = (each.upper() for each in types)
        return Settings(context, parallel, keys, values, max(2048, ubatch), ubatch, self.all_logits)


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on the device and in RAM.

    cache: keys, values and states. compute: of compute buffers, at most. encoder: weights of the encoder, and an
    estimate of its buffer. output: logits and ids that llama.cpp keeps in RAM.
    """

    weights: tuple[int, int]
    cache: tuple[int, int]
    compute: tuple[int, int]
    encoder: int
    output: int

    @property
    def device(self) -> int:
        return self.weights[0] + self.cache[0] + self.compute[0] + self.encoder

    @property
    def ram(self) -> int:
        return self.weights[1] + self.cache[1] + self.compute[1] + self.output

    def as_dict(self) -> dict[str, int]:
        names = ("weights", "cache", "compute")
        pairs = (self.weights, self.cache, self.compute)
        parts = {f"{name}_bytes": pair[0] for name, pair in zip(names, pairs, strict=True)}
        rest = {f"ram_{name}_bytes": pair[1] for name, pair in zip(names, pairs, strict=True)}
        sums = {"encoder_bytes": self.encoder, "device_bytes": self.device}
        return {**parts, **sums, **rest, "ram_output_bytes": self.output, "ram_bytes": self.ram}


@dataclass(frozen=True)
class FileFit:
    """How one file fits.

    exact: the architecture's compute buffers are modelled; otherwise `estimated` says what is not. compute_low: bytes
    of compute buffers at least. whole: memory with all layers on the device (or all in RAM). fits: whole fits. use:
    memory of the plan; gpu_layers, layers: how many of the layers are on the device, the output counted as one;
    cpu_moe: of how many layers the experts are in RAM. longest: the longest context with all layers in place, None if
    there is none. command: runs it.
    """

    path: Path
    architecture: str
    size: int
    trained_context: int
    estimated: str
    compute_low: int
    whole: MemoryUse
    fits: bool
    use: MemoryUse
    gpu_layers: int
    layers: int
    cpu_moe: int
    longest: int | None
    command: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": str(self.path),
            "architecture": self.architecture,
            "size_bytes": self.size,
            "trained_context": self.trained_context,
            "estimated": self.estimated or None,
            "compute_low_bytes": self.compute_low,
            "fits": self.fits,
            "whole": self.whole.as_dict(),
            "plan": self.use.as_dict(),
            "gpu_layers": self.gpu_layers,
            "layers": self.layers,
            "cpu_moe": self.cpu_moe,
            "longest_context": self.longest,
            "command": list(self.command),
        }


@dataclass(frozen=True)
class FitReport:
    """How files fit into `memory` bytes. chosen: the place of the largest file that fits whole, None if none does."""

    memory: int | None
    options: FitOptions
    files: tuple[FileFit, ...]
    chosen: int | None

    def as_dict(self) -> dict[str, Any]:
        options = self.options
        return {
            "memory_bytes": self.memory,
            "margin_bytes": options.margin,
            "context": options.context,
            "parallel": options.parallel,
            "cache_type_k": options.cache_type,
            "cache_type_v": options.cache_type_v or options.cache_type,
            "cpu": options.cpu,
            "files": [each.as_dict() for each in self.files],
            "chosen": None if self.chosen is None else str(self.files[self.chosen].path),
        }


def fit(
    models: PathLike | Model | Iterable[PathLike | Model],
    memory: int | None = None,
    options: FitOptions | None = None,
    **changes: Any,
) -> FitReport:
    """Tell how much memory llama.cpp needs for models, and which fit into `memory` bytes.

        report = gguftools.fit(["m-Q4_K_M.gguf", "m-Q8_0.gguf"], 24 << 30, context=32768, cache_type="q8_0")
        print(report.files[report.chosen].command)

    memory: of the graphics card, or the RAM with `cpu`; None: only the needs are computed. options, changes: a
    `FitOptions`, and its fields by name. A file that does not fit whole gets a plan: a mixture of experts keeps all
    layers on the card and the experts of some in RAM, others keep as many layers as fit. Raises OptionError,
    FileError, and ModelError for architectures that llama-server does not run.
    """
    chosen = replace(options or FitOptions(), **_known(changes))
    settings = chosen.settings()
    if memory is not None:
        as_count(memory, "memory", 1)
    several = [models] if isinstance(models, (str, Path, Model)) or hasattr(models, "__fspath__") else models
    if not isinstance(several, Iterable):
        raise OptionError(f"models is {models!r}; a file, or several, is expected")
    given: list[Any] = list(several)
    if not given:
        raise OptionError("models is empty; at least one file is expected")
    encoder = 0 if chosen.mmproj is None else _encoder_bytes(chosen.mmproj)
    files: list[FileFit] = []
    sets = set[tuple[Any, ...]]()
    for source in given:
        opened = opened_gguf(source)
        shards = tuple(opened.files)
        if len(shards) < 2 or shards not in sets:  # of a split set, each shard stands for all of it
            files.append(_fit_file(opened, path_of(source), memory, chosen, settings, encoder))
        sets.add(shards)
    fitting = [i for i, each in enumerate(files) if each.fits]
    best = max(fitting, key=lambda i: files[i].size) if fitting and memory is not None else None
    return FitReport(memory, chosen, tuple(files), best)


def _known(changes: dict[str, Any]) -> dict[str, Any]:
    for name in changes:
        if name not in FitOptions.__dataclass_fields__:
            raise OptionError(f"there is no option {name!r}", f"one of {', '.join(FitOptions.__dataclass_fields__)}")
    return changes


def _fit_file(
    opened: Model, path: Path, memory: int | None, options: FitOptions, settings: Settings, encoder: int
) -> FileFit:
    check_is_model(opened)
    model = described(opened.metadata, opened.tensors)
    _check_runs(model, path)
    _check_rows(model, settings)
    finder = _Finder(model, settings, options.cpu, encoder)
    whole_placement = IN_RAM if options.cpu else Placement(ALL_LAYERS)
    whole, room = finder.use(whole_placement), None if memory is None else memory - options.margin
    fits = room is None or finder.total(whole) <= room
    placement = whole_placement
    if room is not None and not fits and not options.cpu:
        placement = finder.plan(room)
    layers = int(model.keys.need("block_count")) + 1
    gpu_layers = 0 if options.cpu else min(layers, placement.gpu_layers)
    low = finder.lowest(whole_placement)
    longest = None if room is None else finder.longest(whole_placement, room)
    return FileFit(
        path,
        model.architecture.name,
        sum(tensor.nbytes for tensor in opened.tensors.values()),
        model.hparams.context,
        unmodelled(model),
        low,
        whole,
        fits,
        finder.use(placement),
        gpu_layers,
        layers,
        placement.cpu_moe,
        longest,
        _command(path, options, gpu_layers, layers, placement.cpu_moe),
    )


def _check_runs(model: Described, path: Path) -> None:
    if any(prefix.startswith(("enc.", "dec.", "posnet.")) for prefix in model.grouped):
        hint = "it runs decoders, encoders, and what has states"
        raise ModelError(f"{path}: llama-server does not run models like {model.architecture.name}", hint)


def _check_rows(model: Described, settings: Settings) -> None:
    """Check that heads are whole blocks of the caches' types, as llama.cpp wants them."""
    for kind, part in ((settings.cache_type_k, "key"), (settings.cache_type_v, "value")):
        block = format_named(kind).block_size
        for layer in model.hparams.layers if model.cached else ():
            width = getattr(layer, f"{part}_width")
            if layer.kv_heads and width % block:
                problem = f"heads have {width} values for each {part}; {kind} needs a multiple of {block}"
                raise OptionError(problem, "choose another cache type")


class _Finder:
    """Computes memory for one model; remembers what it computed."""

    def __init__(self, model: Described, settings: Settings, cpu: bool, encoder: int) -> None:
        self.model, self.settings, self.cpu, self.encoder = model, settings, cpu, encoder
        self.known: dict[tuple[Placement, int], MemoryUse] = {}
        self.exact = not unmodelled(model)

    def use(self, placement: Placement, context: int | None = None) -> MemoryUse:
        """Return the memory for a placement and a context."""
        settings = self.settings if context is None else replace(self.settings, context=context)
        key = placement, settings.context
        if key not in self.known:
            self.known[key] = self._computed(placement, settings)
        return self.known[key]

    def total(self, use: MemoryUse) -> int:
        """Return the bytes that must fit."""
        return use.ram if self.cpu else use.device

    def plan(self, room: int) -> Placement:
        """Return the placement with the most on the device."""
        count = int(self.model.keys.need("block_count"))
        if self.model.number("expert_count"):
            everything = Placement(ALL_LAYERS, count)
            if self.use(everything).device <= room:
                fewest = _first(1, count, lambda n: self.use(Placement(ALL_LAYERS, n)).device <= room)
                return Placement(ALL_LAYERS, fewest)
        most = _last(0, count, lambda n: n == 0 or self.use(Placement(n)).device <= room)
        return Placement(most)

    def longest(self, placement: Placement, room: int) -> int | None:
        """Return the longest context that fits, at most the one the model was trained for."""
        step = CELLS * self.settings.streams
        trained = max(self.model.hparams.context, self.settings.context, step)
        limit = max(1, trained // step)
        if self.total(self.use(placement, step)) > room:
            return None
        return step * _last(1, limit, lambda n: self.total(self.use(placement, n * step)) <= room)

    def lowest(self, placement: Placement) -> int:
        """Return the least bytes of compute buffers."""
        use = self.use(placement)
        return sum(use.compute) if self.exact else compute_interval(self.model, self.settings).low

    def _computed(self, placement: Placement, settings: Settings) -> MemoryUse:
        model = self.model
        loaded = weights(model, placement)
        caches = layer_caches(model, settings)
        cache = [0, 0]
        for layer, each in enumerate(caches):
            size = each.attention_bytes(settings) + each.state_bytes(settings)
            cache[placement.of_layer(model, layer)] += size
        if self.exact:
            buffers = compute_buffers(model, settings, placement)
        else:
            high = compute_interval(model, settings).high
            more = cache_interval(model, settings, caches)
            cache[DEVICE if placement.gpu_layers else 1] += more.high - sum(cache)
            buffers = ComputeBuffers(high, 0) if placement.gpu_layers else ComputeBuffers(0, high)
        output = 4 * model.vocabulary * max(1, settings.sequences)
        return MemoryUse(
            (loaded.device, loaded.ram), (cache[0], cache[1]), (buffers.device, buffers.ram), self.encoder, output
        )


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the first number for which something holds that holds for the last."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the last number for which something holds that holds for the first."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _encoder_bytes(path: PathLike) -> int:
    """Return the bytes of an encoder's weights, and an estimate of its buffer without flash attention.

    The estimate is for an image of the size in its keys, or for half a minute of sound.
    """
    opened = opened_gguf(path)
    metadata = opened.metadata
    weights_bytes = sum(tensor.nbytes for tensor in opened.tensors.values())
    highest = 0
    for part in ("vision", "audio"):
        width = int(metadata.get(f"clip.{part}.embedding_length") or 0)
        if not width:
            continue
        ffn = int(metadata.get(f"clip.{part}.feed_forward_length") or 4 * width)
        heads = int(metadata.get(f"clip.{part}.attention.head_count") or 1)
        size = int(metadata.get("clip.vision.image_size") or 0)
        patch = int(metadata.get("clip.vision.patch_size") or 1)
        tokens = (size // patch) ** 2 if part == "vision" else 1500
        highest = max(highest, 4 * tokens * (2 * ffn + 6 * width) + 8 * heads * tokens * tokens)
    if not highest:
        raise GgufToolsError(f"{path} is no encoder of images or sounds", "an mmproj file has keys clip.*")
    return weights_bytes + highest


def _command(path: Path, options: FitOptions, gpu_layers: int, layers: int, cpu_moe: int) -> tuple[str, ...]:
    """Return the call that runs a file so."""
    words = ["llama-server", "-m", str(path), "-ngl", str(gpu_layers), "-c", str(options.context)]
    words += ["-np", str(options.parallel)]
    if 0 < gpu_layers < layers:  # by itself llama.cpp turns it off where caches and layers are in different places
        words += ["-fa", "on"]
    if cpu_moe:
        words += ["--n-cpu-moe", str(cpu_moe)]
    values = options.cache_type_v or options.cache_type
    if options.cache_type != "f16" or values != "f16":
        words += ["-ctk", options.cache_type, "-ctv", values]
    if options.ubatch != FitOptions.ubatch:
        words += ["-ub", str(options.ubatch)]
    if options.mmproj is not None:
        words += ["--mmproj", str(options.mmproj)]
    return tuple(words)


def shell(command: Iterable[str]) -> str:
    """Return a command as it is typed."""
    return shlex.join(command)
