"""Open checkpoint folders in Hugging Face's layout: config.json, and weights in one file or in shards."""

import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archs.decisions import encoder_config, with_decision
from archs.small_files import read_json_object, recorded_reads
from quants import Tensor
from quants.errors import FileError, GgufToolsError

from ..gguf.reader import MAGICS
from ..gguf.shards import shard_paths
from ..locks import state_of
from ..naming import few, hint_for_absent
from ..replacing import PATIENCE, check_whole
from .safetensors import open_safetensors

log = logging.getLogger(__name__)
OpenWeights = Callable[[Path], dict[str, Tensor]]


def open_torch(path: Path) -> dict[str, Tensor]:
    """Call `torch_pickle.open_torch`, imported on first use."""
    from .torch_pickle import open_torch as opened

    return opened(path)


# In order of preference: single file, pattern of shards, function that opens a file.
LAYOUTS: tuple[tuple[str, str, OpenWeights], ...] = (
    ("model.safetensors", "model*.safetensors", open_safetensors),
    ("pytorch_model.bin", "pytorch_model*.bin", open_torch),
)
# The same of a diffusers folder.
DIFFUSERS_LAYOUTS: tuple[tuple[str, str, OpenWeights], ...] = (
    ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model*.safetensors", open_safetensors),
    ("diffusion_pytorch_model.bin", "diffusion_pytorch_model*.bin", open_torch),
)
WEIGHT_SUFFIXES = (".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin", ".gguf")
PLAIN_NAME = re.compile(r"[^/\\\x00]{1,255}")
SHARE = re.compile(r".*-TP-(\d{3})\.safetensors")  # one processor's share of the tensors (Grok 2)
SHARES = "*-TP-*.safetensors"
SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\..*)")


@dataclass(frozen=True)
class Checkpoint:
    """Hold a model as it was published.

    tensors: shard by shard; by name inside a safetensors file, in its own order inside a pickle. A share of a tensor
    for one of several processors is called NAME.TP-000. files: the weight files. remote: name and commit of a
    repository that is read over the network.
    """

    folder: Path
    config: dict[str, Any]
    generation_config: dict[str, Any] | None
    tensors: dict[str, Tensor]
    files: list[Path]
    remote: tuple[str, ...] = ()


def open_checkpoint(folder: Path, open_weights: OpenWeights | None = None) -> Checkpoint:
    """Open a checkpoint; of its weights only headers are read. open_weights: opens weight files that are elsewhere.

    Raises FileError, also if a killed run left its files half replaced.
    """
    folder, end = Path(folder), time.monotonic() + PATIENCE
    while True:
        check_checkpoint_whole(folder)
        state = state_of(folder / "config.json")
        try:
            with recorded_reads() as reads:
                opened = _open(folder, open_weights)
                check_checkpoint_whole(folder)
                if state_of(folder / "config.json") == state or time.monotonic() > end:
                    return opened
                reads.clear()  # the next attempt reads all files again
        except GgufToolsError:
            if state_of(folder / "config.json") == state or time.monotonic() > end:
                raise


def check_checkpoint_whole(folder: Path) -> None:
    """Raise FileError if a killed run left a folder's files half replaced; wait for a running one."""
    check_whole(folder, lambda each: each.is_of_checkpoint)


def _open(folder: Path, open_weights: OpenWeights | None) -> Checkpoint:
    config = _config(folder, tensors_tell=open_weights is None)
    generation = folder / "generation_config.json"
    files, open_file, weight_map = weight_files(folder)
    tensors: dict[str, Tensor] = {}
    for path in files:
        share = SHARE.fullmatch(path.name)
        for name, tensor in (open_weights or open_file)(path).items():
            if share is not None:
                name = f"{name}.TP-{share[1]}"
            if name in tensors:
                raise FileError(f"tensor {name!r} is in two files: {tensors[name].origin} and {tensor.origin}")
            tensors[name] = tensor
    if head_file := (config.get("decision") or {}).get("head_file"):
        files = [*files, folder / head_file]
        head = open_safetensors(files[-1])
        tensors |= {f"{files[-1].stem}.{name}": tensor for name, tensor in head.items()}
    if missing := [name for name in weight_map if name not in tensors]:
        more = f" ({len(missing)} tensors in all)" if len(missing) > 1 else ""
        where = f"{missing[0]!r} in {weight_map[missing[0]]}, which does not have it"
        raise FileError(f"{folder}: the index puts tensor {where}{more}")
    log.info("opened %s: %d tensors in %d files", folder, len(tensors), len(files))
    return Checkpoint(folder, config, read_json_object(generation) if generation.exists() else None, tensors, files)


def _config(folder: Path, tensors_tell: bool) -> dict[str, Any]:
    """Read config.json and the files next to it, or derive it from the tensors of a model published without one.

    Raises FileError, ModelError.
    """
    if folder.is_dir() and (apart := encoder_config(folder)) is not None:
        return apart
    weights = folder / LAYOUTS[0][0]
    if tensors_tell and weights.is_file() and not (folder / "config.json").exists():
        from archs.registry import config_of_tensors  # here, because it imports all families

        if (config := config_of_tensors(open_safetensors(weights))) is not None:
            return config
    _check_folder(folder)
    return with_decision(folder, read_json_object(folder / "config.json"))


def _check_folder(folder: Path) -> None:
    if folder.is_file():
        with folder.open("rb") as file:
            is_gguf = file.read(4) in MAGICS
        hint = "`gguftools quantize` takes GGUF files" if is_gguf else "name the folder that holds config.json"
        raise FileError(f"{folder} is a {'GGUF ' if is_gguf else ''}file; a checkpoint folder was expected", hint)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is neither a folder nor a regular file", "store what it gives in a file first")
    if not folder.exists():
        what = "file" if folder.suffix.lower() in WEIGHT_SUFFIXES else "folder"
        raise FileError(f"there is no {what} {folder}", hint_for_absent(folder))
    if (folder / "config.json").is_file():
        return
    names = {path.name for path in folder.iterdir()}
    if not names:
        raise FileError(f"{folder} is empty", hint="download the model into it first")
    hint = "name the folder that holds config.json and the weights"
    if "adapter_config.json" in names:
        hint = "this is an adapter: it is converted together with its base model"
    elif any(name.endswith(".gguf") for name in names):
        hint = "there are GGUF files in it: name one of them instead"
    elif "params.json" in names:
        hint = "these are weights in their author's own layout: fetch the Hugging Face version"
    raise FileError(f"{folder} has no config.json", hint=hint)


def weight_files(
    folder: Path, layouts: Sequence[tuple[str, str, OpenWeights]] = LAYOUTS
) -> tuple[list[Path], OpenWeights, dict[str, str]]:
    """Return the weight files in order, the function that opens one, and the index's map from tensor to file.

    The map is empty without an index. Of files that each hold a processor's share of the tensors, return all.
    """
    if shared := sorted(folder.glob(SHARES)):
        return shared, open_safetensors, {}
    for single, pattern, open_file in layouts:
        if (folder / single).exists():
            return [folder / single], open_file, {}
        index = folder / f"{single}.index.json"
        if index.exists():
            weight_map = _read_index(index)
            return [folder / name for name in sorted(set(weight_map.values()))], open_file, weight_map
        shards = sorted(folder.glob(pattern))
        if shards:
            _check_shards(shards)
            return shards, open_file, {}
    others = [path for path in sorted(folder.glob("*.safetensors")) if not path.name.startswith("consolidated")]
    if len(others) == 1:
        return others, open_safetensors, {}
    patterns = " nor ".join(pattern for _, pattern, _ in layouts)
    hint = "download the weights too, not just the configuration"
    raise FileError(f"{folder} has no weights: neither {patterns}", hint)


def _read_index(index: Path) -> dict[str, str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FileError(f"{index} has no weight_map")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not PLAIN_NAME.fullmatch(file) or file in (".", ".."):
            raise FileError(f"{index} puts tensor {name!r} in {file!r}, which is no name of a file in its folder")
    files = sorted(set(weight_map.values()))
    missing = [file for file in files if not (index.parent / file).is_file()]
    if missing:
        raise _missing(f"{index} names {len(files)} files", missing)
    return weight_map


def _missing(what: str, names: list[str]) -> FileError:
    return FileError(f"{what}, {len(names)} of which are not there: {few(names)}", hint="fetch the missing files")


def _check_shards(shards: list[Path]) -> None:
    """Check shards without an index: their names tell how many there are."""
    for path in shards:
        match = SHARD.fullmatch(path.name)
        if match is None:
            continue
        prefix, _, count, suffix = match.groups()
        wanted = shard_paths(path, prefix, int(count), suffix)
        missing = [shard.name for shard in wanted if shard not in shards]
        if missing:
            raise _missing(f"{path} is one of {int(count)} files", missing)
