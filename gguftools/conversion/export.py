"""Export GGUF files: tensors as .safetensors or .npy, or a Hugging Face folder that converts to the same file again."""

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from archs.metadata import Metadata
from archs.plans.export import ExportPlan, plan_export
from archs.plans.export.generation import generation_config
from archs.schema import SPECIAL_TOKENS
from archs.small_files import read_json_object
from archs.vocab import vocabulary
from archs.vocab.chat import FOLDER, JINJA, restored_templates, template_files
from archs.vocab.checked import ROLES
from archs.vocab.ends import ends
from archs.vocab.restore import restored_files
from quants import Format, Tensor, format_named
from quants.arguments import PathLike, as_count, as_path
from quants.errors import FileError, OptionError, VocabularyError

from ..io.atomic import atomic_output, check_space, check_target
from ..io.checkpoint.safetensors import check_written, plan_safetensors
from ..io.folders import files_of_folder, made_folder, new_folder
from ..io.gguf.shards import distribute, shard_paths
from ..io.gguf.writer import TensorInfo
from ..metadata.checks import check_types
from ..metadata.difference import compare_metadata
from ..models.contents import readable_tensors
from ..models.model import Model, opened, opened_gguf, selected
from ..writing.options import WriteOptions
from ..writing.report import Report
from ..writing.row_blocks import over_rows

OUTTYPES = ("F32", "F16", "BF16")
FLOATS = ("F64", *OUTTYPES)
DEFAULT_SHARD = 5_000_000_000
TOKENIZER_CONFIG = "tokenizer_config.json"
# Files of another checkpoint in the folder, which transformers would read instead of what is written.
INSTEAD = {
    "config.json": (
        "model.safetensors",
        "model-*-of-*.safetensors",
        "model.safetensors.index.json",
        "generation_config.json",
    ),
    TOKENIZER_CONFIG: (
        "tokenizer.json",
        "tokenizer.model",
        "spiece.model",
        "tekken.json",
        "vocab.json",
        "merges.txt",
        "vocab.txt",
        "added_tokens.json",
        "special_tokens_map.json",
        "chat_template.json",
        JINJA,
        f"{FOLDER}/*.jinja",
    ),
}
TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class ExportReport(Report):
    """Report what was written.

    differing: metadata keys that a conversion of it would write otherwise; empty is best.
    """

    path: Path
    files: tuple[str, ...]
    tensors: int
    bytes: int
    hf_class: str | None = None
    differing: tuple[str, ...] = ()


def export(
    source: PathLike | Model,
    output: PathLike,
    *,
    mmproj: PathLike | Model | None = None,
    tensors: str | None = None,
    outtype: str | None = None,
    max_size: int | None = None,
    write: WriteOptions = WriteOptions(),
) -> ExportReport:
    """Make the Hugging Face folder that a model could come from, or write tensors under their GGUF names.

    output: a folder for a checkpoint; for tensors a .safetensors file, a .npy file for one, or a folder for a .npy file
    of each. mmproj: the image or audio encoders of the text model `source`: the checkpoint has both. tensors: a regular
    expression that must match part of their names. outtype: F32, F16 or BF16; None keeps floats and decodes block
    formats to F32; .npy has no BF16, which becomes F32. max_size: bytes of weights in a file of a checkpoint. write:
    how files are written; threads, progress and overwrite are used.

    A checkpoint converts to the same tensors again; `differing` lists metadata that would differ. Raises FileError,
    OptionError, FormatError, VocabularyError, ModelError if a conversion cannot be undone.
    """
    write.check_used(export, "threads", "progress", "overwrite", "reads")
    wanted, path = None if outtype is None else str(outtype).upper(), as_path(output, "the output")
    if wanted is not None and wanted not in OUTTYPES:
        raise OptionError(f"tensors cannot be exported as {outtype!r}", hint=f"choose one of {', '.join(OUTTYPES)}")
    as_count(1 if max_size is None else max_size, "max_size", 1)
    is_tensors = tensors is not None or os.fspath(output).endswith((".safetensors", ".npy"))
    if is_tensors and max_size is not None:
        raise OptionError("max_size has no effect for single tensors", "it is for the weights of a checkpoint")
    if is_tensors and mmproj is not None:
        raise OptionError("mmproj has no effect for single tensors", "name that file as the source")
    model, encoders = opened(source), None if mmproj is None else opened_gguf(mmproj)
    reads = model.origin.reads if encoders is None else model.origin.reads.union(encoders.origin.reads)
    writing = _Writing(wanted, not is_tensors, replace(write, reads=reads.union(write.reads)))
    if not is_tensors:
        return _write_checkpoint(model, encoders, path, max_size or DEFAULT_SHARD, writing)
    chosen, is_folder = selected(readable_tensors(model), tensors), path.is_dir() or os.fspath(output).endswith("/")
    if is_folder:
        with made_folder(path):
            return _write_npys({f"{_file_name(each.name)}.npy": each for each in chosen}, path, writing)
    if path.suffix == ".npy":
        if len(chosen) != 1:
            message = f"a .npy file holds one tensor; {len(chosen)} were chosen"
            raise OptionError(message, hint="narrow it by `tensors`, or name a folder that exists")
        check_target(path, writing.options.reads, writing.options.overwrite)
        return ExportReport(path, (path.name,), 1, _write_npy(chosen[0], path, writing))
    if path.suffix != ".safetensors":
        raise OptionError(f"{path} is neither .safetensors nor .npy nor a folder")
    size = writing.safetensors(path, [(tensor.name, tensor) for tensor in chosen])
    return ExportReport(path, (path.name,), len(chosen), size)


def _file_name(name: str) -> str:
    if re.fullmatch(r"[\w.-]{1,200}", name) and not name.startswith("."):
        return name
    raise FileError(f"tensor {name!r} cannot give a file its name")


@dataclass(frozen=True)
class _Writing:
    """Hold how files are written. keep_small: vectors keep their type, as norms do in conversions."""

    outtype: str | None
    keep_small: bool
    options: WriteOptions

    def format(self, tensor: Tensor) -> Format:
        """Return the format that a tensor is written in."""
        is_float = tensor.format.name in FLOATS
        if tensor.format.elements is not None and not (is_float and self.outtype):
            return tensor.format
        if self.keep_small and len(tensor.shape) < 2 and is_float:
            return tensor.format
        return format_named(self.outtype or "F32")

    def open(self, path: Path) -> AbstractContextManager[IO[Any]]:
        return atomic_output(path, overwrite=self.options.overwrite, reads=self.options.reads)

    def rows(self, file: IO[Any], tensors: Sequence[Tensor], forms: Mapping[str, Format]) -> None:
        def look(tensor: Tensor, start: int, stop: int) -> memoryview:
            raw, form = np.ascontiguousarray(tensor.raw(start, stop)), forms[tensor.name]
            if tensor.format.name != form.name:
                with np.errstate(over="ignore"):
                    raw = form.encode(np.ascontiguousarray(tensor.format.decode(raw)))
            return np.ascontiguousarray(raw).reshape(-1).view(np.uint8).data

        for _, _, raw in over_rows(tensors, look, threads=self.options.threads, progress=self.options.progress):
            file.write(raw)

    def safetensors(self, path: Path, named: Sequence[tuple[str, Tensor]]) -> int:
        """Write a safetensors file; return its bytes."""
        forms = {name: self.format(tensor) for name, tensor in named}
        order = sorted(named, key=lambda each: -forms[each[0]].block_bytes)
        entries = [TensorInfo(name, tensor.shape, forms[name]) for name, tensor in order]
        header = plan_safetensors(entries, {"format": "pt"})
        total = len(header) + sum(entry.nbytes for entry in entries)
        check_target(path, self.options.reads, self.options.overwrite)
        check_space(path, total)
        with self.open(path) as file:
            file.write(header)
            self.rows(file, [tensor.renamed(name) for name, tensor in order], forms)
            file.flush()
            check_written(file.fileno(), path)
        return total


def _write_npys(tensors: Mapping[str, Tensor], folder: Path, writing: _Writing) -> ExportReport:
    """Write a file of each tensor in a folder, all or none."""
    for name in tensors:
        check_target(folder / name, writing.options.reads, writing.options.overwrite)
    with files_of_folder(folder, writing.options.overwrite, writing.options.reads) as made:
        total = sum(_write_npy(tensor, made / name, writing) for name, tensor in tensors.items())
    return ExportReport(folder, tuple(tensors), len(tensors), total)


def _write_npy(tensor: Tensor, path: Path, writing: _Writing) -> int:
    """Write a .npy file; return its bytes."""
    if writing.outtype == "BF16":
        raise OptionError("numpy has no BF16", hint="choose F32 or F16")
    form = writing.format(tensor)
    form = format_named("F32") if form.name == "BF16" else form
    descr = np.lib.format.dtype_to_descr(np.dtype(form.elements))
    with writing.open(path) as file:
        header = {"descr": descr, "fortran_order": False, "shape": tensor.shape}
        np.lib.format.write_array_header_1_0(file, header)
        writing.rows(file, [tensor], {tensor.name: form})
        return file.tell()


def _planned(model: Model, encoders: Model | None) -> ExportPlan:
    """Plan the checkpoint of a model, and of its encoders if given."""
    check_types(model.metadata, "")
    if encoders is None:
        return plan_export(model.metadata, dict(readable_tensors(model)))
    from archs.plans.export.multimodal_checkpoint import plan_multimodal_checkpoint

    check_types(encoders.metadata, "")
    return plan_multimodal_checkpoint(
        model.metadata, dict(readable_tensors(model)), encoders.metadata, dict(readable_tensors(encoders))
    )


def _write_checkpoint(
    model: Model, encoders: Model | None, target: Path, max_size: int, writing: _Writing
) -> ExportReport:
    """Write weights, config.json and tokenizer; with encoders also the preprocessor's file."""
    with new_folder(target, writing.options.overwrite, writing.options.reads, INSTEAD) as made:
        rebuilt = _planned(model, encoders)
        config = _config(rebuilt, model.metadata, writing)
        texts = {"config.json": _json(config)}
        if generation := generation_config(config, model.metadata):
            texts["generation_config.json"] = _json(generation)
        if rebuilt.preprocessor:
            texts["preprocessor_config.json"] = _json(rebuilt.preprocessor)
        texts |= restored_files(model.metadata) if "tokenizer.ggml.model" in model.metadata else {}
        if rebuilt.tokenizer and (text := texts.get(TOKENIZER_CONFIG)):
            texts[TOKENIZER_CONFIG] = _json({**json.loads(text), "extra_special_tokens": rebuilt.tokenizer})
        if rebuilt.preprocessor:  # processors do not read tokenizer_config.json
            texts |= template_files(restored_templates(model.metadata))
        for name, content in texts.items():
            with made_folder((made / name).parent), writing.open(made / name) as file:
                file.write(content)
        differing = [*rebuilt.differing, *_vocabulary_differences(made, rebuilt, model.metadata)]
        files, size = _write_weights(made, rebuilt.tensors, max_size, writing)
    return ExportReport(
        target, (*texts, *files), len(rebuilt.tensors), size, rebuilt.config["architectures"][0], tuple(differing)
    )


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=False, default=str).encode()


def _config(rebuilt: ExportPlan, metadata: Metadata, writing: _Writing) -> dict[str, Any]:
    config = dict(rebuilt.config)
    for role in ROLES:
        number = metadata.get(SPECIAL_TOKENS[role])
        if number is not None and f"{role}_token_id" not in config:
            config[f"{role}_token_id"] = ends(metadata) if role == "eos" else int(number)
    if (wanted := rebuilt.architecture.token_ids) and (tokens := metadata.get("tokenizer.ggml.tokens")):
        config[wanted] = {token: number for number, token in enumerate(tokens)}
    sizes: Counter[str] = Counter()
    for tensor in rebuilt.tensors.values():
        sizes[writing.format(tensor).name] += tensor.size
    config["torch_dtype"] = TORCH_NAMES.get(sizes.most_common(1)[0][0], "float32")
    return config


def _vocabulary_differences(folder: Path, rebuilt: ExportPlan, metadata: Metadata) -> list[str]:
    """Return keys of the vocabulary that a conversion of the folder would write otherwise."""
    if "tokenizer.ggml.model" not in metadata:
        return []
    architecture, rows = rebuilt.architecture, metadata["tokenizer.ggml.tokens"]
    pre = metadata.get("tokenizer.ggml.pre") if metadata["tokenizer.ggml.model"] == "gpt2" else None
    config = read_json_object(folder / "config.json")
    try:
        again = vocabulary(
            folder,
            architecture.vocab,
            config,
            len(rows),
            pre,
            extra=architecture.vocab_keys,
            user_defined=architecture.vocab_user_defined,
        )
    except VocabularyError:
        return ["tokenizer.ggml.tokens"]
    keys = [key for key in metadata if key.startswith("tokenizer.") and key != "tokenizer.huggingface.json"]
    own = Metadata({key: metadata.value(key) for key in keys})
    return [difference.key for difference in compare_metadata(own, again)]


def _write_weights(
    folder: Path, tensors: Mapping[str, Tensor], max_size: int, writing: _Writing
) -> tuple[list[str], int]:
    """Write one file, or shards with an index. Returns names and bytes."""
    shards = distribute(tensors.items(), lambda each: each[1].size * writing.format(each[1]).block_bytes, max_size)
    names = [path.name for path in shard_paths(folder / "model", "model", len(shards), ".safetensors")]
    names = ["model.safetensors"] if len(shards) == 1 else names
    total = sum(writing.safetensors(folder / name, shard) for name, shard in zip(names, shards, strict=True))
    if len(shards) == 1:
        return names, total
    places = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor, _ in shard}
    with writing.open(folder / "model.safetensors.index.json") as file:
        file.write(json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2).encode())
    return [*names, "model.safetensors.index.json"], total
