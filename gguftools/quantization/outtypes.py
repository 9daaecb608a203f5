"""Plan a plain conversion to F32, F16, BF16 or Q8_0, with the formats of the reference's converter."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from archs.encoder import encoder_format
from archs.metadata import Metadata
from archs.plans.text import stays_float32
from archs.spec import COMMON
from quants import Format, Tensor, format_named

from ..writing.items import Item
from ..writing.origin import Origin
from ..writing.pipeline import FilePlan
from .recipes import RECIPES

FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}  # `general.file_type`
QUANTIZATION_VERSION = 2  # of the block formats, `general.quantization_version`


def checkpoint_type(tensors: Iterable[Tensor], packed: bool) -> str:
    """Return the type of most weights of a checkpoint; BF16 if GGUF lacks it, or for prequantized weights (packed)."""
    if packed:
        return "BF16"
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        if len(tensor.shape) > 1:
            sizes[tensor.format.name] += tensor.size
    main_type = sizes.most_common(1)[0][0] if sizes else "F32"
    return main_type if main_type in ("F32", "F16", "BF16") else "BF16"


def converted_format(tensor: Tensor, outtype: str, keep: tuple[str, ...] = (), fixed: Mapping[str, str] = {}) -> Format:
    """Return the format of a tensor in a conversion to one of FILE_TYPES. keep, fixed: as in `Origin`."""
    if tensor.format.is_quantized or tensor.format.name in ("I32", "I64"):  # ids of tokens, experts
        return tensor.format  # a checkpoint that already has ggml's blocks (MXFP4) goes over without loss
    if fixed and (of_encoder := encoder_format(tensor.name, tensor.shape, fixed, outtype)):
        return format_named(of_encoder)
    if stays_float32(tensor.name, tensor.shape, keep):
        return format_named("F32")
    if outtype == "Q8_0" and tensor.width % format_named("Q8_0").block_size:
        return format_named("F16")
    return format_named(outtype)


def plan_conversion(
    path: Path, metadata: Metadata, tensors: Iterable[Tensor], origin: Origin, outtype: str, reserve: int = 0
) -> FilePlan:
    """Plan the file of a plain conversion of a checkpoint to one of FILE_TYPES."""
    items = tuple(Item(tensor, _format_of(tensor, outtype, origin)) for tensor in tensors)
    typed = with_file_type(metadata, file_type(items, outtype))
    return FilePlan(path, typed, items, reserve=reserve, magic=origin.magic)


def _format_of(tensor: Tensor, outtype: str, origin: Origin) -> Format:
    if origin.candidates is not None and tensor.name not in origin.candidates:
        return tensor.format
    return converted_format(tensor, outtype, origin.float32, origin.fixed)


def file_type(items: Iterable[Item], outtype: str) -> int:
    """Return `general.file_type` of a conversion; experts in MXFP4 make it that of their recipe."""
    has_mxfp4 = any(item.format.name == "MXFP4" for item in items)
    return RECIPES["MXFP4_MOE"].file_type or 0 if has_mxfp4 and outtype != "Q8_0" else FILE_TYPES[outtype]


def with_file_type(metadata: Metadata, number: int) -> Metadata:
    """Return a copy with the file type, at the place where llama.cpp's converter writes it.

    If the metadata has it already, it keeps its place.
    """
    new = Metadata()
    pending = {"general.file_type": number, "general.quantization_version": QUANTIZATION_VERSION}
    if "general.file_type" in metadata:
        del pending["general.file_type"]
    for key in metadata:
        if key == "general.quantization_version":
            continue
        if key == "general.file_type":
            new[key] = number
            continue
        own = key.partition(".")[2]  # keys of one family only follow the file type
        is_common = own in COMMON or own.startswith("rope.scaling.") or key.startswith("general.")
        if "general.file_type" in pending and not is_common:
            new["general.file_type"] = pending.pop("general.file_type")
        if key.startswith("tokenizer.") and pending:
            new["general.quantization_version"] = pending.pop("general.quantization_version")
        new[key] = metadata.value(key)
    for name, number in pending.items():
        new[name] = number
    return new
