"""Choose which files of a repository are fetched: what convert reads of a checkpoint, or the GGUF files that are named.

A repository often has the same weights several times: safetensors, pickles, ONNX, the author's own layout. Only one of
them is needed.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from quants.errors import FileError

from ...io.gguf.shards import SHARD_NAME
from ...io.naming import few
from ...io.stores.hub import RemoteFile

SMALL = (".json", ".jinja", ".md", ".model", ".tiktoken", ".txt")
TERMS = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")
# Of folders: chat templates, modules of sentence-transformers, parts of decision models.
INNER = re.compile(
    r"additional_chat_templates/[^/]+\.jinja|\d+_\w+/(config\.json|model\.safetensors)"
    r"|encoder/config\.json|tokenizer/[^/]+\.(json|txt|model)|helper/shim\.py"
)
PIPELINE = "model_index.json"  # of diffusers
VARIANT = re.compile(
    r"\.(fp16|bf16|fp8|non_ema)(-\d{5}-of-\d{5})?\.(safetensors|json)|\.index\.(fp16|bf16|fp8|non_ema)\.json"
)
HEADS = ("joint_head.safetensors", "head.pt")
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
LAYOUTS = ("model.safetensors", "pytorch_model.bin")
NOT_MODELS = re.compile(r"(?i)(^|[-_.])(mmproj|imatrix)[-_.]|^(mtp|eagle3|dflash|dspark)-")
TYPE_BITS = re.compile(r"(?<![A-Z0-9])(?:BF|F|IQ|TQ|Q|MXFP|NVFP)(\d+)")
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".h5", ".msgpack", ".gguf", ".ot", ".tflite")
OTHER_FORMAT, NOT_READ, EXCLUDED, NOT_CHOSEN = (
    "another copy of the weights",
    "convert does not read it",
    "excluded",
    "not chosen",
)

Named = dict[str, RemoteFile]
ReadIndex = Callable[[RemoteFile], Iterable[str]]


@dataclass(frozen=True)
class LeftOut:
    """Name a file that is not fetched, and why."""

    file: str
    size_bytes: int
    reason: str


@dataclass(frozen=True)
class Choice:
    """Hold the files that are fetched, and those that are not."""

    files: tuple[RemoteFile, ...]
    left_out: tuple[LeftOut, ...]


def choose(
    where: str, files: Sequence[RemoteFile], include: Sequence[str], exclude: Sequence[str], read_index: ReadIndex
) -> Choice:
    """Choose files by patterns, or those that convert needs.

    where: the repository, for messages. include: choose what one of these matches instead of what convert needs, and
    the mmproj of GGUF files. exclude: of those, leave out what one of these matches. read_index(file): the names of the
    files with weights in an index. Raises FileError if nothing remains, or if there are several GGUF models.
    """
    named = {file.path: file for file in files}
    for pattern in (*include, *exclude):
        if not any(_matches(path, [pattern]) for path in named):
            raise FileError(f"{where} has no file that {pattern!r} matches", _hint_of_names(named))
    if include:
        reasons = dict.fromkeys(named, NOT_CHOSEN)
        chosen = {path for path in named if _matches(path, include)}
        chosen |= _companions(named, chosen)
    elif PIPELINE in named:
        chosen = _of_pipeline(named)
        reasons = {path: OTHER_FORMAT if path.endswith(WEIGHTS) else NOT_READ for path in named}
    elif "config.json" in named or any(path.endswith(".safetensors") for path in named):
        chosen = _of_checkpoint(named, read_index)
        reasons = {path: OTHER_FORMAT if path.endswith(WEIGHTS) else NOT_READ for path in named}
    else:
        chosen = _of_gguf(where, named)
        reasons = dict.fromkeys(named, NOT_CHOSEN)
    reasons |= dict.fromkeys((path for path in chosen if _matches(path, exclude)), EXCLUDED)
    kept = tuple(file for path, file in named.items() if path in chosen and reasons[path] != EXCLUDED)
    if not kept:
        raise FileError(f"{where}: no file is left to fetch", "exclude less")
    taken = {file.path for file in kept}
    left = (LeftOut(path, file.size, reasons[path]) for path, file in named.items() if path not in taken)
    return Choice(kept, tuple(left))


def _matches(path: str, patterns: Iterable[str]) -> bool:
    """Return True if a pattern matches the path or the file's name."""
    name = PurePosixPath(path).name
    return any(fnmatchcase(path, pattern) or fnmatchcase(name, pattern) for pattern in patterns)


def _of_pipeline(named: Named) -> set[str]:
    """Return the parts of a diffusers pipeline: of each folder the small files, and the weights in one precision."""
    inside = {path for path in named if path.count("/") == 1}
    small = {path for path in named if path.endswith(SMALL) and (path in inside or "/" not in path)}
    weights = {path for path in inside if path.endswith(".safetensors")}
    plain = {path for path in weights if not _is_variant(path)}
    folders = {path.partition("/")[0] for path in plain}  # others have variants alone
    chosen = plain | {path for path in weights if path.partition("/")[0] not in folders}
    terms = {path for path in named if "/" not in path and path.upper().startswith(TERMS)}
    unused = {path for path in small if _is_variant(path) and path.partition("/")[0] in folders}
    return chosen | terms | (small - unused)


def _is_variant(path: str) -> bool:
    """Return True for the name of weights in another precision, as diffusers marks it: NAME.fp16.safetensors."""
    return VARIANT.search(path) is not None


def _of_checkpoint(named: Named, read_index: ReadIndex) -> set[str]:
    """Return what convert reads: weights in one format, and the small files."""
    weights, indexes = _weights(named, read_index)
    small = {path for path in named if "/" not in path and path.endswith(SMALL)}
    other_indexes = {path for path in small if path.endswith(".index.json")} - indexes
    terms = {path for path in named if "/" not in path and path.upper().startswith(TERMS)}
    inner = {path for path in named if INNER.fullmatch(path) or path in HEADS}
    return weights | (small - other_indexes) | terms | inner


def _weights(named: Named, read_index: ReadIndex) -> tuple[set[str], set[str]]:
    """Return the files with weights, chosen as `io.checkpoint.folder` does, and their index."""
    root = [path for path in named if "/" not in path]
    if shares := {path for path in root if fnmatchcase(path, "*-TP-*.safetensors")}:
        return shares, set()
    for single in LAYOUTS:
        stem, dot, suffix = single.partition(".")
        if single in named:
            return {single}, set()
        index = f"{single}.index.json"
        if index in named and (listed := {name for name in read_index(named[index]) if name in named}):
            return listed, {index}
        if shards := {path for path in root if fnmatchcase(path, f"{stem}*{dot}{suffix}")}:
            return shards, set()
    for adapter in ADAPTERS:
        if adapter in named:
            return {adapter}, set()
    others = {path for path in root if path.endswith(".safetensors") and not path.startswith("consolidated")}
    return others - set(HEADS), set()


def _of_gguf(where: str, named: Named) -> set[str]:
    """Return the files of the only GGUF model. Raises FileError for none and for several."""
    models = gguf_models(named)
    if not models:
        raise FileError(f"{where} has neither a checkpoint nor GGUF files", _hint_of_names(named))
    if len(models) > 1:
        names = [PurePosixPath(name).name for name in models]
        hint = f"choose with `include`, such as {_pattern_for(names)!r}; there are {', '.join(names[:30])}"
        raise FileError(f"{where} has {len(models)} GGUF models", hint + (", …" if len(names) > 30 else ""))
    chosen = set(next(iter(models.values())))
    return chosen | _companions(named, chosen)


def gguf_models(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the GGUF models among files: the first file of each, and all of its shards. No mmproj, no imatrix."""
    sets: dict[str, list[str]] = {}
    for path in sorted(paths):
        name = PurePosixPath(path).name
        if name.endswith(".gguf") and not NOT_MODELS.search(name):
            match = SHARD_NAME.fullmatch(path)
            sets.setdefault(f"{match['prefix']}-{match['count']}" if match else path, []).append(path)
    return {shards[0]: shards for shards in sets.values()}


def _companions(named: Named, chosen: set[str]) -> set[str]:
    """Return the mmproj file that llama.cpp would take with the chosen models: near in place and in bits."""
    models = [path for path in sorted(chosen) if gguf_models([path])]
    encoders = [path for path in named if path.endswith(".gguf") and "mmproj" in PurePosixPath(path).name.lower()]
    if not models or not encoders or chosen.intersection(encoders):
        return set()
    folders = {PurePosixPath(model).parent for model in models}
    above = {parent for folder in folders for parent in (folder, *folder.parents)}
    near = [path for path in encoders if PurePosixPath(path).parent in above] or encoders
    bits = _bits(models[0])
    return {min(near, key=lambda path: (abs(_bits(path) - bits), "bf16" in path.lower(), path))}


def _bits(path: str) -> int:
    """Return the number in the last type that a file's name has: 4 of Q4_K_M, 16 of BF16; 16 without one."""
    found = TYPE_BITS.findall(PurePosixPath(path).name.upper())
    return int(found[-1]) if found else 16


def _pattern_for(names: Sequence[str]) -> str:
    """Return a pattern that chooses one of the models: by its type's name if they have one."""
    wanted = next((name for name in names if "Q4_K_M" in name.upper()), names[0])
    label = re.search(r"(?i)(?:i?q\d\w*|bf16|f16|f32|mxfp4\w*)", wanted)
    return f"*{label[0]}*" if label else wanted


def _hint_of_names(named: Named) -> str:
    return f"its files are {few(sorted(named))}" if named else "it is empty"
