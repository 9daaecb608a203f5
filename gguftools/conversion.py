"""Convert a Hugging Face checkpoint to GGUF: in a float type or Q8_0 as a converter does, or straight to a recipe."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from archs.metadata import Metadata
from archs.plan import Plan, plan, stays_float32
from archs.transforms import computed
from quants import Format, Tensor, format_named
from quants.errors import FileError

from .files.checkpoint import Checkpoint, open_checkpoint

FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}  # outtypes of a conversion: `general.file_type`
QUANTIZATION_VERSION = 2  # of the block formats, GGUF's `general.quantization_version`

Progress = Callable[[int, int, str], None]


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


def open_converted(folder: str | os.PathLike[str], pre: str | None = None) -> Converted:
    """Plan the conversion of a checkpoint folder.

    pre: the pre-tokenizer's GGUF name, where the tokenizer's structure does not tell.
    Raises FileError, ModelError, VocabularyError.
    """
    checkpoint = open_checkpoint(Path(folder))
    planned = plan(checkpoint.folder, checkpoint.config, checkpoint.tensors, checkpoint.generation_config, pre=pre)
    architecture = planned.architecture
    tensors = {
        name: computed(tensor, lambda x: x)
        if tensor.format.name != "F32" and stays_float32(name, tensor.shape, architecture.float32)
        else tensor
        for name, tensor in planned.tensors.items()
    }
    return Converted(checkpoint, planned, planned.metadata, tensors)


def own_type(source: Converted) -> str:
    """The outtype that follows the checkpoint: what most of its weights are stored in, BF16 where GGUF has no such."""
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


def with_file_type(metadata: Metadata, outtype: str) -> Metadata:
    """A copy that says which type the file is of, before the vocabulary as the reference has it."""
    new = Metadata()
    pending = {"general.file_type": FILE_TYPES[outtype], "general.quantization_version": QUANTIZATION_VERSION}
    for key in metadata:
        if key.startswith("tokenizer.") and pending:
            for name, number in pending.items():
                new[name] = number
            pending = {}
        new[key] = metadata.value(key)
    for name, number in pending.items():
        new[name] = number
    return new


def target_path(output: str | os.PathLike[str] | None, folder: Path, outtype: str) -> Path:
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
        raise FileError(f"{path.parent} does not exist: {path.name} cannot be written there", hint="create the folder first")
    return path
