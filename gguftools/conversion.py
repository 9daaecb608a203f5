"""Convert a Hugging Face checkpoint to GGUF: in a float type or Q8_0 as a converter does, or straight to a recipe."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archs.metadata import Metadata
from archs.plan import Plan, plan, stays_float32
from archs.spec import COMMON
from archs.transforms import computed
from quants import Format, Tensor, format_named
from quants.errors import FileError
from quants.recipes import RECIPES, recipe_named

from .files.atomic import check_space
from .files.checkpoint import Checkpoint, open_checkpoint
from .pipeline import DEFAULT_MEMORY, FilePlan, Item, Progress, page_releaser, write_files
from .quantization import PathLike, converted_input, quantize
from .report import OutputReport, QuantizeReport, tensor_report

FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}  # outtypes of a conversion: `general.file_type`
QUANTIZATION_VERSION = 2  # of the block formats, GGUF's `general.quantization_version`


@dataclass(frozen=True)
class Converted:
    """A checkpoint as a source of tensors under GGUF names, small ones in float32; nothing read but headers."""

    checkpoint: Checkpoint
    plan: Plan
    metadata: Metadata
    tensors: dict[str, Tensor]

    @property
    def files(self) -> list[Path]:
        return self.checkpoint.files


def open_converted(folder: PathLike, pre: str | None = None, embed_tokenizer: bool = False) -> Converted:
    """Plan the conversion of a checkpoint folder.

    pre: the pre-tokenizer's GGUF name, where the tokenizer's structure does not tell. embed_tokenizer: also keep
    tokenizer.json itself. Raises FileError, ModelError, VocabularyError.
    """
    checkpoint = open_checkpoint(Path(folder))
    planned = plan(
        checkpoint.folder, checkpoint.config, checkpoint.tensors, checkpoint.generation_config, pre=pre,
        embed_tokenizer=embed_tokenizer,
    )  # fmt: skip
    architecture = planned.architecture
    tensors = {
        name: computed(tensor, lambda x: x)
        if tensor.format.name != "F32" and stays_float32(name, tensor.shape, architecture.float32)
        else tensor
        for name, tensor in planned.tensors.items()
    }
    return Converted(checkpoint, planned, planned.metadata, tensors)


def own_type(source: Converted) -> str:
    """The outtype that follows the checkpoint: what most of its weights are stored in, BF16 where GGUF has no such.

    BF16 too where weights are quantized, whatever the rest is stored in.
    """
    if source.plan.packed:
        return "BF16"
    sizes: Counter[str] = Counter()
    for tensor in source.checkpoint.tensors.values():
        if len(tensor.shape) > 1:
            sizes[tensor.format.name] += tensor.size
    most = sizes.most_common(1)[0][0] if sizes else "F32"
    return most if most in ("F32", "F16", "BF16") else "BF16"


def converted_format(tensor: Tensor, outtype: str, keep: tuple[str, ...] = ()) -> Format:
    """What a tensor is stored as in a conversion to F32, F16, BF16 or Q8_0."""
    if tensor.format.is_quantized:
        return tensor.format  # a checkpoint that already has ggml's blocks (MXFP4) goes over without loss
    if stays_float32(tensor.name, tensor.shape, keep):
        return format_named("F32")
    if outtype == "Q8_0" and tensor.width % format_named("Q8_0").block_size:
        return format_named("F16")
    return format_named(outtype)


def file_type(items: Iterable[Item], outtype: str) -> int:
    """`general.file_type` of a conversion; experts that came as MXFP4 make it that of the recipe for them."""
    has_mxfp4 = any(item.format.name == "MXFP4" for item in items)
    return RECIPES["MXFP4_MOE"].file_type or 0 if has_mxfp4 and outtype != "Q8_0" else FILE_TYPES[outtype]


def with_file_type(metadata: Metadata, number: int) -> Metadata:
    """A copy that says which type the file is of, in the places where the reference says so."""
    new = Metadata()
    pending = {"general.file_type": number, "general.quantization_version": QUANTIZATION_VERSION}
    for key in metadata:
        if "general.file_type" in pending and not key.startswith("general.") and not _is_common(key):
            new["general.file_type"] = pending.pop("general.file_type")
        if key.startswith("tokenizer.") and pending:
            new["general.quantization_version"] = pending.pop("general.quantization_version")
        new[key] = metadata.value(key)
    for name, number in pending.items():
        new[name] = number
    return new


def _is_common(key: str) -> bool:
    """Whether every family may write the key; what a family adds stands behind the file type."""
    own = key.partition(".")[2]
    return own in COMMON or own.startswith("rope.scaling.")


def target_path(output: PathLike | None, folder: Path, outtype: str) -> Path:
    """Where a conversion goes: the file named, or NAME-OUTTYPE.gguf in the folder named (or the current one).

    Raises FileError where the folder of a named file does not exist.
    """
    name = f"{folder.resolve().name}-{outtype.upper()}.gguf"
    if output is None:
        return Path(name)
    path = Path(output)
    if path.is_dir():
        return path / name
    if not path.parent.is_dir():
        raise FileError(f"there is no folder {path.parent} to write {path.name} to", hint="create it first")
    return path


def convert(
    folder: PathLike,
    output: PathLike | None = None,
    outtype: str = "auto",
    *,
    pre: str | None = None,
    embed_tokenizer: bool = False,
    reserve: int = 0,
    threads: int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
    **quantizing: Any,
) -> QuantizeReport:
    """Convert a Hugging Face checkpoint to GGUF.

    output: a file, or a folder for NAME-OUTTYPE.gguf; default the current folder. outtype: F32, F16, BF16, Q8_0, any
    recipe, or "auto", which follows the checkpoint. pre: the pre-tokenizer's GGUF name, where the tokenizer's structure
    does not tell.
    embed_tokenizer: also keep tokenizer.json in the file. reserve: bytes of slack for later edits. memory: bytes that
    running tasks may hold.
    quantizing: more arguments of `quantize`, where outtype is a recipe that it knows and a conversion does not.
    Raises FileError, ModelError, VocabularyError, FormatError, OptionError.
    """
    wanted = outtype.upper()
    if wanted not in ("AUTO", *FILE_TYPES):
        recipe_named(wanted)  # a mistyped one is found before anything is read
    source = open_converted(folder, pre, embed_tokenizer)
    wanted = own_type(source) if wanted == "AUTO" else wanted
    path = target_path(output, source.checkpoint.folder, wanted)
    if wanted not in FILE_TYPES or quantizing:
        return quantize(
            converted_input(source), wanted, path, reserve=reserve, threads=threads, memory=memory, progress=progress,
            **quantizing,
        )  # fmt: skip
    keep = source.plan.architecture.float32
    items = tuple(Item(tensor, converted_format(tensor, wanted, keep)) for tensor in source.tensors.values())
    file = FilePlan(path, with_file_type(source.metadata, file_type(items, wanted)), items, reserve=reserve)
    check_space(path, file.layout.total)
    free = shutil.disk_usage(path.resolve().parent).free
    release = page_releaser(source.checkpoint.tensors.values())
    outcome = write_files([file], threads=threads, memory=memory, progress=progress, release=release)
    tensors = tuple(tensor_report(item, written=w) for item, w in zip(items, outcome.files[0], strict=True))
    return QuantizeReport(
        (OutputReport(wanted, path, (path,), file.layout.total, tensors),), False, outcome.source_bytes, free,
        seconds=outcome.seconds, compile_seconds=outcome.compile_seconds,
    )  # fmt: skip
