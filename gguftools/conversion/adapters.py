"""Convert LoRA adapters: to GGUF files for a base model's file, or merged into a checkpoint."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from archs.config import normalized
from archs.decisions import QUESTIONS, of_adapter
from archs.general import general
from archs.lora import REFUSED, Adapter, adapter_of, adapter_tensors, merging
from archs.metadata import Metadata
from archs.plans.diffusion import Change as ImageChange
from archs.plans.image_adapters import ImageAdapter, image_adapter
from archs.plans.image_adapters import merging as merging_images
from archs.plans.text import Change, Plan
from archs.registry import of_config
from archs.small_files import read_json_object
from archs.spec import Architecture, Config, Tensors
from archs.transforms import concatenated
from quants import Format, Tensor, format_named
from quants.arguments import PathLike
from quants.errors import FileError, ModelError, OptionError

from ..io.checkpoint.folder import Checkpoint
from ..io.checkpoint.safetensors import open_safetensors, read_metadata
from ..io.checkpoint.torch_pickle import open_torch, torch_numbers
from ..quantization.outtypes import QUANTIZATION_VERSION
from ..writing.items import Item
from ..writing.pipeline import FilePlan

WEIGHTS = (("adapter_model.safetensors", open_safetensors), ("adapter_model.bin", open_torch))
IMAGE_WEIGHTS = ("pytorch_lora_weights.safetensors", "adapter_model.safetensors")
OUTTYPES = ("F32", "F16", "BF16", "Q8_0")


def open_adapter(folder: PathLike) -> Adapter:
    """Open a PEFT folder: adapter_config.json with adapter_model.safetensors or .bin. Raises FileError, ModelError."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileError(f"there is no folder {folder}", hint="an adapter is a folder with adapter_config.json")
    config = read_json_object(folder / "adapter_config.json")
    for name, open_file in WEIGHTS:
        if (folder / name).exists():
            return adapter_of(str(folder), config, open_file(folder / name))
    raise FileError(f"{folder} has no weights: neither {' nor '.join(name for name, _ in WEIGHTS)}")


def merge_change(adapters: Sequence[PathLike | tuple[PathLike, float]]) -> Change | None:
    """Return the change of a checkpoint that merges adapters: folders, each with a scale (1 if none is given)."""
    pairs = (each if isinstance(each, tuple) else (each, 1.0) for each in adapters)
    return merging([(open_adapter(folder), scale) for folder, scale in pairs]) if adapters else None


def open_image_adapter(source: PathLike) -> ImageAdapter:
    """Open a LoRA of an image or video model: a .safetensors file, or a folder with one.

    Raises FileError, ModelError.
    """
    path = Path(source)
    settings: dict[str, str] = {}
    if path.is_dir():
        if (path / "adapter_config.json").is_file():
            settings = _peft_settings(str(path), read_json_object(path / "adapter_config.json"))
        weight_file = next((path / name for name in IMAGE_WEIGHTS if (path / name).is_file()), None)
        if weight_file is None:
            raise FileError(f"{path} has no LoRA: none of {', '.join(IMAGE_WEIGHTS)}", "name the .safetensors file")
        path = weight_file
    if path.suffix.lower() not in (".safetensors", ".sft"):
        raise FileError(f"{path} is no .safetensors file, in which LoRAs of image models are published")
    return image_adapter(str(path), open_safetensors(path), {**read_metadata(path), **settings})


def _peft_settings(origin: str, config: dict[str, Any]) -> dict[str, str]:
    """Return PEFT's configuration as diffusers has it in a file's header. Raises ModelError for more than LoRA."""
    for key, why in REFUSED.items():
        if config.get(key):
            raise ModelError(f"{origin} has {key}, which is not supported: {why}")
    if config.get("use_rslora"):
        raise ModelError(f"{origin} has use_rslora, which is not supported for image models", "save it as a plain LoRA")
    if "lora_alpha" not in config:
        return {}
    names = {f"transformer.{key}": config.get(key) for key in ("lora_alpha", "alpha_pattern")}
    return {"lora_adapter_metadata": json.dumps(names)}


def image_merge_change(adapters: Sequence[PathLike | tuple[PathLike, float]]) -> tuple[ImageChange | None, list[str]]:
    """Return the change of an image model's tensors that merges LoRAs, and warnings of what they change besides it."""
    pairs = [each if isinstance(each, tuple) else (each, 1.0) for each in adapters]
    opened = [(open_image_adapter(path), scale) for path, scale in pairs]
    warnings = [
        f"{each.origin} also changes text encoders: {each.text} of its tensors are left out"
        for each, _ in opened
        if each.text
    ]
    return (merging_images(opened) if opened else None), warnings


@dataclass(frozen=True)
class DecisionAdapter:
    """Describe an adapter that makes a model a decision model (see `archs.decisions`).

    config: keys of config.json that it changes. head: tensors that it adds.
    """

    folder: Path
    config: dict[str, Any]
    head: dict[str, Tensor]

    def change(self, merged: Change | None) -> Change:
        """Return the change that merges adapters and adds the head."""

        def both(architecture: Architecture, config: Config, tensors: Tensors) -> Tensors:
            return {**(merged(architecture, config, tensors) if merged else tensors), **self.head}

        return both

    def plan(self, planned: Plan, checkpoint: Checkpoint) -> Plan:
        """Return the plan with the adapter's name and description."""
        metadata = general(self.folder, planned.architecture.name, planned.tensors.values())
        for key in planned.metadata:
            if not key.startswith("general."):
                metadata[key] = planned.metadata.value(key)
        return replace(planned, metadata=metadata)


def decision_adapter(adapters: Sequence[PathLike | tuple[PathLike, float]]) -> DecisionAdapter | None:
    """Return the adapter that makes a decision model, if there is one. Raises FileError, ModelError, OptionError."""
    folders = [Path(each[0] if isinstance(each, tuple) else each) for each in adapters]
    candidates = [
        DecisionAdapter(folder, config, {}) for folder in folders if (config := of_adapter(folder)) is not None
    ]
    if len(candidates) > 1:
        raise OptionError(
            f"{candidates[0].folder} and {candidates[1].folder} both make a model decide", "merge one of them"
        )
    return _with_head(candidates[0]) if candidates else None


def _with_head(adapter: DecisionAdapter) -> DecisionAdapter:
    """Add the matrix that makes a query and a key of a state, if the adapter has one (Kev)."""
    decision = adapter.config["decision"]
    if "head" not in decision:
        return adapter
    path = adapter.folder / decision["head"]
    tensors, numbers = open_torch(path), torch_numbers(path)
    parts = {end: [tensors.get(f"head.{part}.{end}") for part in "qk"] for end in ("weight", "bias")}
    head = {}
    for end, (q, k) in parts.items():
        alike = q is not None and k is not None and q.shape == k.shape and q.format == k.format
        if q is None or k is None or not alike or not numbers.get("temperature", 0) > 0:
            raise ModelError(f"{path} is no head of a query and a key with a temperature")
        head[f"classifier.out_proj.{end}"] = concatenated([q, k], f"classifier.out_proj.{end}")
    rows = head["classifier.out_proj.weight"].shape[0]
    own = {**decision, "head_rows": rows, "temperatures": dict.fromkeys(QUESTIONS, float(numbers["temperature"]))}
    return replace(adapter, config={**adapter.config, "decision": own}, head=head)


def plan_adapter(base: PathLike, folder: PathLike, path: Path, outtype: str = "F32") -> tuple[FilePlan, list[str]]:
    """Plan the GGUF file of an adapter; return it and warnings. base: the base model's folder; config.json is enough.

    outtype: F32, F16, BF16 or Q8_0; rows that do not fit Q8_0 are F16, vectors F32. Raises FileError, ModelError,
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
    """Return the keys in the order of llama.cpp's converter."""
    described = general(folder, architecture, _adapted(tensors), "adapter", base.resolve().name)
    metadata = Metadata()
    for key in described:
        metadata[key] = described.value(key)
        if key == "general.type":
            metadata["adapter.type"] = "lora"
    metadata["adapter.lora.alpha"] = adapter.alpha
    if adapter.invocation_tokens:
        metadata["adapter.alora.invocation_tokens"] = list(adapter.invocation_tokens)
    metadata["general.quantization_version"] = QUANTIZATION_VERSION
    return metadata


def _adapted(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return a stand-in for each weight that a pair is added to, for counting parameters."""
    weights: list[Tensor] = []
    for tensor in tensors:
        if tensor.name.endswith(".lora_b"):  # after its .lora_a
            weights[-1] = replace(tensor, shape=(*tensor.shape[:-1], weights[-1].width))
        else:
            weights.append(tensor)
    return weights
