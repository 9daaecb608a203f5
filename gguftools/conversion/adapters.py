"""LoRA adapters: files of their own for a base model's file, or merged into a checkpoint that is being converted."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from archs.config import normalized
from archs.general import general
from archs.lora import Adapter, adapter_of, adapter_tensors, merging
from archs.metadata import Metadata
from archs.plan import Change
from archs.registry import of_config
from archs.small_files import read_json_object
from quants import Format, Tensor, format_named
from quants.arguments import PathLike
from quants.errors import FileError, OptionError

from ..files.checkpoint.safetensors import open_safetensors
from ..files.checkpoint.torch_pickle import open_torch
from ..quantization.outtypes import QUANTIZATION_VERSION
from ..writing.items import Item
from ..writing.pipeline import FilePlan

WEIGHTS = (("adapter_model.safetensors", open_safetensors), ("adapter_model.bin", open_torch))
OUTTYPES = ("F32", "F16", "BF16", "Q8_0")


def open_adapter(folder: PathLike) -> Adapter:
    """A PEFT folder: adapter_config.json with adapter_model.safetensors or .bin. Raises FileError, ModelError."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileError(f"there is no folder {folder}", hint="an adapter is a folder with adapter_config.json")
    config = read_json_object(folder / "adapter_config.json")
    for name, open_file in WEIGHTS:
        if (folder / name).exists():
            return adapter_of(str(folder), config, open_file(folder / name))
    raise FileError(f"{folder} has no weights: neither {' nor '.join(name for name, _ in WEIGHTS)}")


def merge_change(adapters: Sequence[PathLike | tuple[PathLike, float]]) -> Change | None:
    """What merging these adapters does to a checkpoint: folders, each with a scale (1 if none is given)."""
    pairs = (each if isinstance(each, tuple) else (each, 1.0) for each in adapters)
    return merging([(open_adapter(folder), scale) for folder, scale in pairs]) if adapters else None


def plan_adapter(base: PathLike, folder: PathLike, path: Path, outtype: str = "F32") -> tuple[FilePlan, list[str]]:
    """The GGUF file of an adapter, and warnings. base: the base model's folder; its config.json is enough.

    outtype: F32, F16, BF16 or Q8_0; rows that Q8_0 does not fit are F16, vectors F32. Raises FileError, ModelError,
    OptionError.
    """
    if outtype not in OUTTYPES:
        raise OptionError(f"an adapter cannot be {outtype}", hint=f"choose one of {', '.join(OUTTYPES)}")
    base, adapter = Path(base), open_adapter(folder)
    raw = read_json_object(base / "config.json")
    architecture = of_config(raw)
    made = adapter_tensors(architecture, normalized(raw, architecture.defaults, architecture.keys), adapter)
    items = tuple(Item(tensor, _format(tensor, outtype)) for tensor in made.tensors.values())
    metadata = _metadata(Path(folder), base, architecture.name, adapter, made.tensors.values())
    warnings = [f"{module} is left out: such files hold no more than the text model" for module in made.left_out]
    return FilePlan(path, metadata, items), warnings


def _format(tensor: Tensor, outtype: str) -> Format:
    if len(tensor.shape) < 2:
        return format_named("F32")
    fits = outtype != "Q8_0" or not tensor.width % format_named("Q8_0").block_size
    return format_named(outtype if fits else "F16")


def _metadata(folder: Path, base: Path, architecture: str, adapter: Adapter, tensors: Iterable[Tensor]) -> Metadata:
    """Keys in the order of llama.cpp's converter."""
    found = general(folder, architecture, _adapted(tensors), "adapter", base.resolve().name)
    metadata = Metadata()
    for key in found:
        metadata[key] = found.value(key)
        if key == "general.type":
            metadata["adapter.type"] = "lora"
    metadata["adapter.lora.alpha"] = adapter.alpha
    if adapter.invocation_tokens:
        metadata["adapter.alora.invocation_tokens"] = list(adapter.invocation_tokens)
    metadata["general.quantization_version"] = QUANTIZATION_VERSION
    return metadata


def _adapted(tensors: Iterable[Tensor]) -> list[Tensor]:
    """A stand-in for each weight that a pair is added to, for counting parameters."""
    found: list[Tensor] = []
    for tensor in tensors:
        if tensor.name.endswith(".lora_b"):  # behind its .lora_a
            found[-1] = replace(tensor, shape=(*tensor.shape[:-1], found[-1].width))
        else:
            found.append(tensor)
    return found
