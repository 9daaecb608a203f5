"""Out of GGUF: tensors as .safetensors or .npy, or a whole Hugging Face folder that converts to the same file again."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from archs.export import ExportPlan, plan_export
from archs.metadata import Metadata
from archs.small_files import read_json_object
from archs.vocab import vocabulary
from archs.vocab.restore import ends, restored_files
from archs.vocab.special import ID_KEYS
from quants import Format, Tensor, format_named
from quants.arguments import PathLike, as_path
from quants.errors import FileError, OptionError, VocabularyError

from ..files.atomic import NOTHING, Reads, atomic_output, check_space, check_target, made_folder, new_folder
from ..files.checkpoint.safetensors import plan_safetensors
from ..files.gguf.shards import filled, shard_paths
from ..files.gguf.writer import TensorInfo
from ..metadata.checks import check_types
from ..metadata.difference import compare_metadata
from ..model import Model, opened, selected
from ..writing.row_blocks import Progress, over_rows

OUTTYPES = ("F32", "F16", "BF16")
FLOATS = ("F64", *OUTTYPES)
DEFAULT_SHARD = 5_000_000_000
TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class ExportReport:
    """What was written. differing: metadata keys that a conversion of it would write otherwise; empty is best."""

    path: Path
    files: tuple[str, ...]
    tensors: int
    bytes: int
    hf_class: str | None = None
    differing: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        own = asdict(self)
        return {"file": str(own.pop("path")), **own}


def export(
    source: PathLike | Model,
    output: PathLike,
    *,
    tensors: str | None = None,
    outtype: str | None = None,
    max_size: int | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Make a Hugging Face folder of a GGUF file, or write tensors under their GGUF names.

    output: a folder for a checkpoint, or a .safetensors or .npy file for tensors. tensors: a regular expression that
    their names must hold. outtype: F32, F16 or BF16; None keeps floats as they are and decodes block formats to F32.
    max_size: bytes of weights in a file of a folder. overwrite: replace what exists. threads: default all processors.
    progress(bytes written, of how many, tensor).
    Raises FileError, OptionError, FormatError, ModelError, VocabularyError; see `export_tensors`, `export_checkpoint`.
    """
    wanted = None if outtype is None else str(outtype).upper()
    as_path(output, "the output")
    if wanted is not None and wanted not in OUTTYPES:
        raise OptionError(f"tensors cannot be exported as {outtype!r}", hint=f"choose one of {', '.join(OUTTYPES)}")
    if tensors is None and not os.fspath(output).endswith((".safetensors", ".npy")):
        return export_checkpoint(
            source, output, outtype=wanted, max_size=max_size or DEFAULT_SHARD, overwrite=overwrite, threads=threads,
            progress=progress,
        )  # fmt: skip
    if max_size is not None:
        raise OptionError("max_size means nothing for tensors by themselves", "it is for the weights of a checkpoint")
    return export_tensors(
        source, output, pattern=tensors, outtype=wanted, overwrite=overwrite, threads=threads, progress=progress
    )


def export_tensors(
    source: PathLike | Model,
    output: PathLike,
    *,
    pattern: str | None = None,
    outtype: str | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write tensors under their GGUF names to one .safetensors file or, one each, to .npy.

    pattern: a regular expression that names must hold. outtype: F32, F16 or BF16; None keeps types whose values have
    bytes of their own and decodes block formats to F32. NPY has no BF16, which becomes F32 there. A .npy output takes
    one tensor; a folder, or what ends in a slash, takes them all.
    Raises FileError, OptionError, FormatError.
    """
    path, model = Path(output), opened(source)
    tensors = selected(model.streamed(), pattern)
    is_folder = path.is_dir() or os.fspath(output).endswith("/")
    if path.suffix == ".npy" and not is_folder:
        if len(tensors) != 1:
            message = f"a .npy file holds one tensor; {len(tensors)} were chosen"
            raise OptionError(message, hint="narrow it by --tensors, or name a folder that exists")
        paths = {tensors[0].name: path}
        return _write_npy(tensors, paths, path, outtype, overwrite, model.origin.reads, threads, progress)
    if is_folder:
        with made_folder(path):
            paths = {tensor.name: path / f"{_file_name(tensor.name)}.npy" for tensor in tensors}
            return _write_npy(tensors, paths, path, outtype, overwrite, model.origin.reads, threads, progress)
    if path.suffix != ".safetensors":
        raise OptionError(f"{path} is neither .safetensors nor .npy nor a folder")
    named = [(tensor.name, tensor) for tensor in tensors]
    size = _write_safetensors(path, named, outtype, threads, progress, overwrite=overwrite, reads=model.origin.reads)
    return ExportReport(path, (path.name,), len(tensors), size)


def _file_name(name: str) -> str:
    if re.fullmatch(r"[\w.-]{1,200}", name) and not name.startswith("."):
        return name
    raise FileError(f"tensor {name!r} cannot give a file its name")


def target_format(tensor: Tensor, outtype: str | None, keep_small: bool = False) -> Format:
    """What a tensor is written as. keep_small: vectors keep their type, as norms do in files for conversion."""
    name = tensor.format.name
    if tensor.format.elements is not None and (name not in FLOATS or outtype is None):
        return tensor.format
    if keep_small and len(tensor.shape) < 2 and name in FLOATS:
        return tensor.format
    return format_named(outtype or "F32")


def _encoded(tensor: Tensor, form: Format, start: int, stop: int) -> memoryview:
    raw = np.ascontiguousarray(tensor.raw(start, stop))
    if tensor.format.name != form.name:
        with np.errstate(over="ignore"):
            raw = form.encode(np.ascontiguousarray(tensor.format.decode(raw)))
    return np.ascontiguousarray(raw).reshape(-1).view(np.uint8).data


def _write_safetensors(
    path: Path, named: Sequence[tuple[str, Tensor]], outtype: str | None,
    threads: int | None, progress: Progress | None, keep_small: bool = False, overwrite: bool = False,
    reads: Reads = NOTHING,
) -> int:  # fmt: skip
    """Returns the bytes of the file."""
    forms = {name: target_format(tensor, outtype, keep_small) for name, tensor in named}
    order = sorted(named, key=lambda each: -forms[each[0]].block_bytes)
    entries = [TensorInfo(name, tensor.shape, forms[name]) for name, tensor in order]
    header = plan_safetensors(entries, {"format": "pt"})
    total = len(header) + sum(entry.nbytes for entry in entries)
    check_target(path, reads, overwrite)
    check_space(path, total)
    tensors = [tensor.renamed(name) for name, tensor in order]
    with atomic_output(path, overwrite=overwrite, reads=reads) as file:
        file.write(header)
        _write_rows(file, tensors, forms, threads, progress)
    return total


def _write_rows(
    file: IO[Any], tensors: Sequence[Tensor], forms: Mapping[str, Format],
    threads: int | None, progress: Progress | None,
) -> None:  # fmt: skip
    def look(tensor: Tensor, start: int, stop: int) -> memoryview:
        return _encoded(tensor, forms[tensor.name], start, stop)

    for _, _, raw in over_rows(tensors, look, threads=threads, progress=progress):
        file.write(raw)


def _write_npy(
    tensors: Sequence[Tensor], paths: Mapping[str, Path], output: Path, outtype: str | None, overwrite: bool,
    reads: Reads, threads: int | None, progress: Progress | None,
) -> ExportReport:  # fmt: skip
    if outtype == "BF16":
        raise OptionError("numpy has no BF16", hint="choose F32 or F16")
    for path in paths.values():
        check_target(path, reads, overwrite)
    total = 0
    for tensor in tensors:
        form = target_format(tensor, outtype)
        form = format_named("F32") if form.name == "BF16" else form
        with atomic_output(paths[tensor.name], overwrite=overwrite, reads=reads) as file:
            dtype = np.lib.format.dtype_to_descr(np.dtype(form.elements))
            np.lib.format.write_array_header_1_0(
                file, {"descr": dtype, "fortran_order": False, "shape": tensor.shape}
            )
            _write_rows(file, [tensor], {tensor.name: form}, threads, progress)
            total += file.tell()
    return ExportReport(output, tuple(path.name for path in paths.values()), len(tensors), total)


def export_checkpoint(
    source: PathLike | Model,
    folder: PathLike,
    *,
    outtype: str | None = None,
    max_size: int = DEFAULT_SHARD,
    overwrite: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write the Hugging Face folder that a GGUF file could come from: weights, config.json, tokenizer.

    outtype: F32, F16 or BF16; None keeps floats as they are and decodes block formats to F32. max_size: bytes of
    weights in a file. What is written converts to the same tensors again; `differing` lists metadata that would not.
    Raises FileError, ModelError where the architecture's mapping cannot be undone, VocabularyError.
    """
    model, target = opened(source), Path(folder)
    with new_folder(target, overwrite) as made:
        check_types(model.metadata, "")
        rebuilt = plan_export(model.metadata, model.streamed())
        config = _config(rebuilt, model.metadata, outtype)
        texts = {"config.json": json.dumps(config, indent=2, ensure_ascii=False, default=str).encode()}
        texts |= restored_files(model.metadata) if "tokenizer.ggml.model" in model.metadata else {}
        for name, content in texts.items():
            with atomic_output(made / name, overwrite=overwrite, reads=model.origin.reads) as file:
                file.write(content)
        differing = [*rebuilt.differing, *_vocabulary_differences(made, rebuilt, model.metadata)]
        files, size = _write_weights(
            made, rebuilt.tensors, outtype, max_size, threads, progress, overwrite, model.origin.reads
        )
    return ExportReport(
        target, (*texts, *files), len(rebuilt.tensors), size, rebuilt.config["architectures"][0], tuple(differing)
    )


def _config(rebuilt: ExportPlan, metadata: Metadata, outtype: str | None) -> dict[str, Any]:
    config = dict(rebuilt.config)
    for role, key in ID_KEYS.items():
        number = metadata.get(key)
        if number is not None and f"{role}_token_id" not in config:
            config[f"{role}_token_id"] = ends(metadata) if role == "eos" else int(number)
    sizes: dict[str, int] = {}
    for tensor in rebuilt.tensors.values():
        name = target_format(tensor, outtype, keep_small=True).name
        sizes[name] = sizes.get(name, 0) + tensor.size
    config["torch_dtype"] = TORCH_NAMES.get(max(sizes, key=lambda name: sizes[name]), "float32")
    return config


def _vocabulary_differences(folder: Path, rebuilt: ExportPlan, metadata: Metadata) -> list[str]:
    """Keys of the vocabulary that a conversion of the folder would write otherwise."""
    if "tokenizer.ggml.model" not in metadata:
        return []
    architecture, rows = rebuilt.architecture, metadata["tokenizer.ggml.tokens"]
    pre = metadata.get("tokenizer.ggml.pre") if metadata["tokenizer.ggml.model"] == "gpt2" else None
    try:
        again = vocabulary(
            folder, architecture.vocab, _read_config(folder), len(rows), pre, extra=architecture.vocab_keys
        )
    except VocabularyError:
        return ["tokenizer.ggml.tokens"]
    keys = [key for key in metadata if key.startswith("tokenizer.") and key != "tokenizer.huggingface.json"]
    own = Metadata({key: metadata.value(key) for key in keys})
    return [difference.key for difference in compare_metadata(own, again)]


def _read_config(folder: Path) -> dict[str, Any]:
    return read_json_object(folder / "config.json")


def _write_weights(
    folder: Path, tensors: Mapping[str, Tensor], outtype: str | None, max_size: int,
    threads: int | None, progress: Progress | None, overwrite: bool, reads: Reads,
) -> tuple[list[str], int]:  # fmt: skip
    """One file, or shards with an index. Returns names and bytes."""
    shards = filled(
        tensors.items(), lambda each: each[1].size * target_format(each[1], outtype, True).block_bytes, max_size
    )
    count = len(shards)
    names = [path.name for path in shard_paths(folder / "model", "model", count, ".safetensors")]
    names = ["model.safetensors"] if count == 1 else names
    total = 0
    for name, shard in zip(names, shards, strict=True):
        total += _write_safetensors(folder / name, shard, outtype, threads, progress, True, overwrite, reads)
    if count == 1:
        return names, total
    places = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor, _ in shard}
    with atomic_output(folder / "model.safetensors.index.json", overwrite=overwrite, reads=reads) as file:
        file.write(json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2).encode())
    return [*names, "model.safetensors.index.json"], total
