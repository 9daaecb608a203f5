"""Convert a Hugging Face checkpoint to GGUF: in a float type or Q8_0 as a converter does, or straight to a recipe."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from archs.config import normalized
from archs.metadata import Metadata
from archs.plan import Change, Plan, plan, stays_float32
from archs.powerinfer import MAGIC, sparse_metadata, sparse_tensors
from archs.spec import COMMON
from archs.transforms import computed
from gguftools.quantization.recipes import RECIPES, recipe_named
from quants import Format, Tensor, format_named
from quants.errors import OptionError

from ..files.atomic import NOTHING, Reads, check_space, check_target, output_path
from ..files.checkpoint.folder import Checkpoint, is_remote, open_checkpoint
from ..files.locks import state_of
from ..writing.pipeline import DEFAULT_MEMORY, FilePlan, Item, Resumable, write_files
from ..writing.report import OutputReport, QuantizeReport, tensor_report
from ..writing.resume import identity, left_behind
from ..writing.row_blocks import Progress, default_threads
from .adapters import merge_change, plan_adapter
from .predictors import Predictor, open_predictor
from .quantize import PathLike, converted_input, quantize

FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}  # outtypes of a conversion: `general.file_type`
REMOTE_THREADS = 8  # most of the time they wait for the network
QUANTIZATION_VERSION = 2  # of the block formats, GGUF's `general.quantization_version`


@dataclass(frozen=True)
class Converted:
    """A checkpoint as a source of tensors under GGUF names, small ones in float32; nothing read but headers.

    origin: what decides the values beside the checkpoint's files: name and commit of a repository, adapters.
    """

    checkpoint: Checkpoint
    plan: Plan
    metadata: Metadata
    tensors: dict[str, Tensor]
    magic: bytes = b"GGUF"
    origin: tuple[tuple[str, ...], ...] = ()

    @property
    def files(self) -> list[Path]:
        return self.checkpoint.files


def open_converted(
    folder: PathLike,
    pre: str | None = None,
    embed_tokenizer: bool = False,
    change: Change | None = None,
    predictor: Predictor | None = None,
) -> Converted:
    """Plan the conversion of a checkpoint: a folder, or hf://ORG/MODEL[@REVISION].

    pre: the pre-tokenizer's GGUF name, where the tokenizer's structure does not tell. embed_tokenizer: also keep
    tokenizer.json itself. change: what is done to the checkpoint's tensors first. predictor: for a PowerInfer file.
    Raises FileError, ModelError, VocabularyError.
    """
    with _opened(folder) as checkpoint:
        planned = plan(
            checkpoint.folder, checkpoint.config, checkpoint.tensors, checkpoint.generation_config, pre=pre,
            embed_tokenizer=embed_tokenizer, change=change,
        )  # fmt: skip
    if predictor is not None:
        planned = _with_predictor(planned, checkpoint, predictor)
    architecture = planned.architecture
    tensors = {
        name: computed(tensor, lambda x: x)
        if tensor.format.name != "F32" and stays_float32(name, tensor.shape, architecture.float32)
        else tensor
        for name, tensor in planned.tensors.items()
    }
    origin = [checkpoint.remote] if checkpoint.remote else []
    origin += [("an adapter",)] if change is not None else []
    origin += [("a predictor",)] if predictor is not None else []
    magic = b"GGUF" if predictor is None else MAGIC
    return Converted(checkpoint, planned, planned.metadata, tensors, magic, tuple(origin))


def _opened(source: PathLike) -> AbstractContextManager[Checkpoint]:
    """The checkpoint; its folder may be gone after the block."""
    if not is_remote(source):
        return nullcontext(open_checkpoint(Path(source)))
    from ..files.checkpoint.remote import open_remote  # here, because it imports much

    return open_remote(str(source))


def _with_predictor(planned: Plan, checkpoint: Checkpoint, predictor: Predictor) -> Plan:
    config = normalized(checkpoint.config, planned.architecture.defaults, planned.architecture.keys)
    metadata = sparse_metadata(planned.architecture, config, planned.metadata, predictor.threshold)
    return replace(planned, metadata=metadata, tensors=sparse_tensors(planned.tensors, predictor.layers))


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

    Raises FileError where the folder does not exist.
    """
    return output_path("." if output is None else output, f"{folder.resolve().name}-{outtype.upper()}.gguf")


def convert(
    folder: PathLike,
    output: PathLike | None = None,
    outtype: str = "auto",
    *,
    pre: str | None = None,
    embed_tokenizer: bool = False,
    lora: PathLike | None = None,
    merge_lora: Sequence[PathLike | tuple[PathLike, float]] = (),
    predictor: PathLike | None = None,
    reserve: int = 0,
    resume: bool = False,
    threads: int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
    overwrite: bool = False,
    reads: Iterable[PathLike] = (),
    **quantizing: Any,
) -> QuantizeReport:
    """Convert a Hugging Face checkpoint to GGUF.

    folder: a folder, or hf://ORG/MODEL[@REVISION], which is read over the network without a copy on disk.
    output: a file, or a folder for NAME-OUTTYPE.gguf; default the current folder. outtype: F32, F16, BF16, Q8_0, any
    recipe, or "auto", which follows the checkpoint. pre: the pre-tokenizer's GGUF name, where the tokenizer's structure
    does not tell.
    lora: write the adapter in this PEFT folder for the base model `folder`, F32 unless outtype says otherwise.
    merge_lora: adapters to add to the weights, each with a scale if it is not 1. predictor: folder of the predictor
    for a PowerInfer file.
    embed_tokenizer: also keep tokenizer.json in the file. reserve: bytes of slack for later edits. resume: go on from
    what an interrupted run left; such a run leaves it where it has resume itself, reads over the network, or writes a
    recipe. memory: bytes that running tasks may hold. overwrite: replace an output that exists. reads: more files that
    must not be the output.
    quantizing: more arguments of `quantize`, where outtype is a recipe that it knows and a conversion does not.
    Raises FileError, ModelError, VocabularyError, FormatError, OptionError.
    """
    wanted = outtype.upper()
    if wanted not in ("AUTO", *FILE_TYPES):
        recipe_named(wanted)  # a mistyped one is found before anything is read
    adapters = [each[0] if isinstance(each, tuple) else each for each in merge_lora]
    read = Reads().also([folder, lora, *adapters, predictor, *reads])
    if lora is not None:
        if merge_lora or predictor or quantizing:
            raise OptionError("an adapter's own file is written as it is: merge it or write it, not both")
        if is_remote(folder):
            raise OptionError(f"an adapter needs its base model in a folder, not {folder}", "config.json is enough")
        path = target_path(output, Path(lora), "F32" if wanted == "AUTO" else wanted)
        file, warnings = plan_adapter(folder, lora, path, "F32" if wanted == "AUTO" else wanted)
        return write_converted(
            replace(file, reserve=reserve), wanted, threads, memory, progress, None, overwrite, read, warnings
        )
    if resume and (merge_lora or predictor):
        raise OptionError("a conversion with adapters or a predictor cannot be taken up again: they are not recorded")
    opened = open_predictor(predictor) if predictor is not None else None
    source = open_converted(folder, pre, embed_tokenizer, merge_change(merge_lora), opened)
    wanted = own_type(source) if wanted == "AUTO" else wanted
    path = target_path(output, source.checkpoint.folder, wanted)
    if source.checkpoint.remote and threads is None:
        threads = max(default_threads(), REMOTE_THREADS)
    if quantizing.get("imatrix") is not None and wanted in FILE_TYPES:
        raise OptionError(f"{wanted} is written without importance", "leave out --imatrix, or name a recipe: Q4_K_M")
    if wanted not in FILE_TYPES or quantizing:
        return quantize(
            converted_input(source), wanted, path, reserve=reserve, resume=resume, threads=threads, memory=memory,
            progress=progress, overwrite=overwrite, reads=read.paths, **quantizing,
        )  # fmt: skip
    keep = source.plan.architecture.float32
    items = tuple(Item(tensor, converted_format(tensor, wanted, keep)) for tensor in source.tensors.values())
    metadata = with_file_type(source.metadata, file_type(items, wanted))
    file = FilePlan(path, metadata, items, reserve=reserve, magic=source.magic)
    resumable = None
    if resume or source.checkpoint.remote:
        resumable = Resumable(identity(source.files, source.origin), resume)
    read = replace(read, states={path: state_of(path) for path in source.files})
    check_target(path, read, overwrite)
    warnings = left_behind([path], resume)
    return write_converted(file, wanted, threads, memory, progress, resumable, overwrite, read, warnings)


def write_converted(
    file: FilePlan,
    outtype: str,
    threads: int | None,
    memory: int,
    progress: Progress | None,
    resumable: Resumable | None = None,
    overwrite: bool = False,
    reads: Reads = NOTHING,
    warnings: Sequence[str] = (),
) -> QuantizeReport:
    """Write a planned file. Raises FileError, FormatError."""
    if resumable is None:
        check_space(file.path, file.layout.total)
    free = shutil.disk_usage(file.path.resolve().parent).free
    outcome = write_files(
        [file], threads=threads, memory=memory, progress=progress, resumable=resumable, overwrite=overwrite, reads=reads
    )
    tensors = tuple(tensor_report(item, written=w) for item, w in zip(file.items, outcome.files[0], strict=True))
    output = OutputReport(outtype, file.path, (file.path,), file.layout.total, tensors)
    return QuantizeReport(
        (output,), False, outcome.source_bytes, free, outcome.resumed_bytes, outcome.seconds, outcome.compile_seconds,
        warnings=list(warnings),
    )  # fmt: skip
