"""Choose which neurons of a PowerInfer model go to the GPU, by an integer program, and write PowerInfer's file.

Neurons are placed in batches, the most active first. The program maximizes the activations of the chosen batches within
the available memory; a layer that gets any may be required to get a minimum number.

The file (magic PWRI, architecture "generic.gpu_index") holds for each layer `blk.N.gpu_idx`, int32 (neurons,), 1 for
those on the GPU, and `blk.N.gpu_bucket`, int32, their numbers, sorted; PowerInfer reads them by position: two a layer.

For whoever runs PowerInfer: command `gguftools gpu-split`, page docs/powerinfer.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archs.metadata import Metadata
from archs.powerinfer import MAGIC
from quants import Tensor, from_array
from quants.arguments import PathLike, as_count, as_path
from quants.errors import FileError, GgufToolsError, ModelError, OptionError

from ..conversion.predictors import numbered_files
from ..io.atomic import InputFiles, check_target, output_path
from ..io.checkpoint.torch_pickle import open_torch
from ..io.gguf.reader import open_gguf
from ..writing.items import Item
from ..writing.options import WriteOptions
from ..writing.pipeline import FilePlan, write_files

ARCHITECTURE = "generic.gpu_index"
BATCH = 256  # neurons placed together, as PowerInfer's own solver does
TIME_LIMIT = 30.0  # seconds; the best solution until then is used
MATRICES = ("ffn_gate", "ffn_up", "ffn_down_t", "ffn_down")

Counts = NDArray[np.float64]


@dataclass(frozen=True)
class Placement:
    """A placement of neurons. gpu: for each layer, bool (neurons,). used: bytes on the GPU. activations: their share of
    all. optimal: whether it is proven optimal.
    """

    gpu: tuple[NDArray[np.bool_], ...]
    used: int
    activations: float
    optimal: bool


@dataclass(frozen=True)
class PlacementReport:
    """The file written, the model's file, bytes allowed, and the placement."""

    file: Path
    model: Path
    vram: int
    placement: Placement

    def as_dict(self) -> dict[str, Any]:
        placement = self.placement
        layers = [{"neurons": len(gpu), "on_gpu": int(gpu.sum())} for gpu in placement.gpu]
        return {
            "file": str(self.file),
            "model": str(self.model),
            "vram_bytes": self.vram,
            "used_bytes": placement.used,
            "activations": placement.activations,
            "optimal": placement.optimal,
            "layers": layers,
        }


def gpu_split(
    activations: PathLike,
    vram: int,
    model: PathLike | None = None,
    output: PathLike | None = None,
    *,
    batch: int = BATCH,
    min_neurons: int = 0,
    overwrite: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> PlacementReport:
    """Place a model's neurons and write the file.

    activations: folder of activation_N.pt, one a layer. vram: bytes for neurons. model: the GGUF file, for the size of
    a neuron; default the one next to the folder. output: default MODEL.generated.gpuidx, where PowerInfer looks for it.
    batch: neurons placed together. min_neurons: minimum neurons of a layer that gets any. overwrite: replace an
    existing output. progress(steps done, of how many, the next one).
    Raises FileError, ModelError, OptionError, GgufToolsError without a solver.
    """
    folder = as_path(activations, "activations")
    counts = read_activations(folder)
    as_count(vram, "vram", 0)
    candidates = sorted(folder.resolve().parent.glob("*.gguf")) if model is None else [Path(model)]
    if len(candidates) != 1:
        problem = (
            f"{len(candidates)} GGUF files are next to {folder}; the model's is needed to know the size of a neuron"
        )
        raise OptionError(problem, hint="name it with `model`")
    path = candidates[0]
    opened = open_gguf(path)
    target = output_path(path.parent if output is None else output, f"{path.name}.generated.gpuidx")
    reads = InputFiles((folder,), opened.states)
    check_target(target, reads, overwrite)
    if progress is not None:
        progress(0, 1, f"at most {TIME_LIMIT:.0f} s")
    placement = place(counts, neuron_bytes(opened.tensors, counts), vram, batch, min_neurons)
    counted = {f"{ARCHITECTURE}.block_count": len(placement.gpu), "split.vram_capacity": vram}
    metadata = Metadata({"general.architecture": ARCHITECTURE, **counted})
    tensors = [
        from_array(f"blk.{i}.{name}", values.astype(np.int32))
        for i, gpu in enumerate(placement.gpu)
        for name, values in (("gpu_idx", gpu), ("gpu_bucket", np.flatnonzero(gpu)))
    ]
    file = FilePlan(target, metadata, tuple(Item(tensor, tensor.format) for tensor in tensors), magic=MAGIC)
    write_files([file], WriteOptions(threads=1, overwrite=overwrite, reads=reads))
    if progress is not None:
        progress(1, 1, "")
    return PlacementReport(target, path, vram, placement)


def read_activations(folder: Path) -> list[Counts]:
    """Return how often each neuron fired, float64 (neurons,) for each layer. Raises FileError."""
    counts_by_layer = []
    for path in numbered_files(folder, "activation"):
        tensors = list(open_torch(path).values())
        if len(tensors) != 1 or len(tensors[0].shape) != 1 or not tensors[0].size:
            raise FileError(f"{path} holds {len(tensors)} tensors; one vector of counts was expected")
        is_bits = tensors[0].format.name == "BF16"  # numpy reads it as raw bits
        values = tensors[0].float32() if is_bits else tensors[0].elements()
        counts = values.reshape(-1).astype(np.float64)
        if not np.isfinite(counts).all() or counts.min() < 0:
            raise FileError(f"{path} holds counts that are negative or no numbers")
        counts_by_layer.append(counts)
    return counts_by_layer


def neuron_bytes(tensors: Mapping[str, Tensor], counts: Sequence[Counts]) -> list[int]:
    """Return the bytes of a neuron in each layer: its rows of gate, up and down. Raises ModelError if counts
    don't fit.
    """
    layers = sum(name.endswith(".ffn_up.weight") for name in tensors)
    if layers != len(counts):
        raise ModelError(f"the model has {layers} layers, the activations {len(counts)}")
    sizes = []
    for i, of_layer in enumerate(counts):
        matrices = [tensors[name] for matrix in MATRICES if (name := f"blk.{i}.{matrix}.weight") in tensors]
        neurons = tensors[f"blk.{i}.ffn_up.weight"].shape[0]
        if neurons != len(of_layer):
            raise ModelError(f"layer {i} of the model has {neurons} neurons, its activations are of {len(of_layer)}")
        sizes.append(sum(tensor.nbytes for tensor in matrices) // neurons)
    return sizes


def place(
    counts: Sequence[Counts], sizes: Sequence[int], vram: int, batch: int = BATCH, min_neurons: int = 0
) -> Placement:
    """Return the placement with the most activations in `vram` bytes. sizes: bytes of a neuron in each layer.

    Raises OptionError.
    """
    if batch < 1 or min_neurons < 0 or vram < 0:
        raise OptionError(f"batches of {batch}, at least {min_neurons} neurons a layer, {vram} bytes make no sense")
    orders = [np.argsort(-of_layer, kind="stable") for of_layer in counts]
    starts = [np.arange(0, len(of_layer), batch) for of_layer in counts]
    layer = np.repeat(np.arange(len(counts)), [len(each) for each in starts])
    held = np.concatenate([np.diff([*each, len(c)]) for each, c in zip(starts, counts, strict=True)])
    worth = np.concatenate([np.add.reduceat(c[o], s) for c, o, s in zip(counts, orders, starts, strict=True)])
    chosen, optimal = _solve(worth, held, layer, np.asarray(sizes), vram, min_neurons)
    gpu = []
    for i, order in enumerate(orders):
        mask = np.zeros(len(order), np.bool_)
        mask[order[: int(held[(layer == i) & chosen].sum())]] = True
        gpu.append(mask)
    total = sum(float(c.sum()) for c in counts)
    fired = sum(float(c[mask].sum()) for c, mask in zip(counts, gpu, strict=True))
    used = sum(int(mask.sum()) * size for mask, size in zip(gpu, sizes, strict=True))
    return Placement(tuple(gpu), used, fired / total if total else 0.0, optimal)


def _solve(
    worth: Counts, held: NDArray[Any], layer: NDArray[Any], sizes: NDArray[Any], vram: int, min_neurons: int
) -> tuple[NDArray[np.bool_], bool]:
    """Return which batches are chosen, and whether that is proven optimal.

    Unknowns: x of each batch, y of each layer, all 0 or 1. Maximize worth · x with bytes · x ≤ vram; for every layer
    sum of x ≤ batches * y and neurons · x ≥ min_neurons * y.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import bmat, coo_array, diags
    except ImportError as error:
        hint = 'install the extra: "gguftools[powerinfer]"'
        raise GgufToolsError("placing neurons needs scipy, which is not installed", hint) from error
    batches, layers = len(worth), len(sizes)
    place, shape = (layer, np.arange(batches)), (layers, batches)
    members, neurons = coo_array((np.ones(batches), place), shape), coo_array((held.astype(np.float64), place), shape)
    matrix = bmat(
        [
            [(held * sizes[layer]).astype(np.float64)[None], None],
            [members, diags(-np.bincount(layer, minlength=layers).astype(np.float64))],
            [-neurons, diags(np.minimum(min_neurons, np.bincount(layer, held, layers)))],
        ]
    )
    limits = np.concatenate([[float(vram)], np.zeros(2 * layers)])
    result = milp(
        np.concatenate([-worth / (worth.max() or 1.0), np.zeros(layers)]),
        integrality=np.ones(batches + layers),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix.tocsr(), -np.inf, limits),
        options={"time_limit": TIME_LIMIT, "mip_rel_gap": 0.0},
    )
    if result.x is None:
        raise GgufToolsError(f"the solver found no placement: {result.message}")
    return np.asarray(result.x[:batches] > 0.5), result.status == 0
