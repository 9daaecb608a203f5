"""Open image and video models: a weight file, a sharded set, a diffusers folder, a GGUF file, a whole checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from archs.metadata import Metadata, ValueType
from archs.small_files import read_json_object, record_state, recorded_reads
from quants import Tensor
from quants.arguments import PathLike
from quants.errors import FileError, ModelError

from ..io.checkpoint.folder import DIFFUSERS_LAYOUTS, SHARD, open_torch, weight_files
from ..io.checkpoint.safetensors import open_safetensors, read_metadata
from ..io.gguf.shards import shard_paths
from ..io.naming import few, is_remote, is_stored_gguf
from ..io.stores.path import located
from ..writing.origin import Origin
from .sources import Parts

if TYPE_CHECKING:
    from archs.diffusion.spec import Reader
    from archs.plans.diffusion import Change

SAFETENSORS = (".safetensors", ".sft")
PICKLES = (".ckpt", ".pt", ".pth", ".bin")
FLOATS = ("F32", "F16", "BF16")
INDEX = ".index.json"
MODEL_FOLDERS = ("transformer", "unet")  # of a diffusers pipeline
SECOND_MODEL = "transformer_2"  # of Wan 2.2, for the steps with little noise
RECIPE = "recipe"  # the type of a source that is to be quantized
PIPELINE, COMPONENT = "model_index.json", "_class_name"
LANGUAGE_MODEL = ("architectures", "model_type")  # keys of a config.json that is no diffusers component's
WRAPPERS = ("state_dict.", "model.", "module.", "params.", "ema.")  # of tensors in pickles
LANGUAGE_TENSORS = re.compile(r"(model\.|language_model\.)*(layers\.0\.|embed_tokens\.)|lm_head\.")
FIXED_SHAPES = "fix_5d_tensors_{}.safetensors"  # the tensors that ComfyUI-GGUF's converter leaves out of its files


class Weights(NamedTuple):
    """Tensors of a source by their names in it, the texts of its safetensors headers, and its files.

    kept: typed keys of a GGUF file that describe the model. notes: what was added, for a warning. remote: name and
    commit, or versions, of a source that is read over the network.
    """

    tensors: Mapping[str, Tensor]
    header: Mapping[str, str]
    files: tuple[Path, ...]
    kept: Metadata = Metadata()
    notes: tuple[str, ...] = ()
    remote: tuple[str, str] | None = None


def is_diffusion(source: PathLike) -> bool:
    """Return True if a source is read as an image or video model: a weight file, or a folder of one.

    GGUF files are opened as any other: see `is_diffusion_gguf`.
    """
    if is_remote(source):
        return not is_stored_gguf(source) and _is_diffusion_there(source)
    path = Path(source)
    if path.is_file():
        return path.suffix.lower() in (*SAFETENSORS, *PICKLES) or path.name.endswith(INDEX)
    return path.is_dir() and (model_folder(path) is not None or bool(_bare_files(path)))


def _is_diffusion_there(source: PathLike) -> bool:
    """Return the same of a URL; of a folder its files are listed."""
    from ..io.checkpoint.remote_weights import is_weight_file, weight_names

    return is_weight_file(source) or weight_names(source, MODEL_FOLDERS) is not None


def is_diffusion_gguf(source: PathLike) -> bool:
    """Return True for a GGUF file of an image or video model, which `convert` arranges for another program."""
    if is_remote(source) or not Path(source).is_file() or not is_gguf(Path(source)):
        return False
    from archs.diffusion.detection import prefix_of, shapes_of, without_prefix

    tensors = _of_gguf(Path(source)).tensors
    return _is_known(shapes_of(without_prefix(tensors, prefix_of(tensors))))


def _is_known(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    from archs.diffusion.detection import family_in_diffusers, family_of

    return (family_of(shapes) or family_in_diffusers(shapes)) is not None


def model_folder(folder: Path) -> Path | None:
    """Return the folder of the model in one of diffusers: itself, or a part of the pipeline; None for another folder.

    Raises FileError for a config.json or model_index.json that is no JSON object.
    """
    if (folder / PIPELINE).is_file():
        return next((folder / name for name in MODEL_FOLDERS if (folder / name).is_dir()), None)
    config = folder / "config.json"
    if config.is_file():
        keys = read_json_object(config)
        return folder if COMPONENT in keys and not any(key in keys for key in LANGUAGE_MODEL) else None
    return next((folder / name for name in MODEL_FOLDERS if (folder / name / "config.json").is_file()), None)


def model_folders(folder: Path) -> list[Path]:
    """Return the folders of a pipeline's models: two of Wan 2.2, one of others, none of another folder."""
    first = model_folder(folder)
    if first is None:
        return []
    second = folder / SECOND_MODEL
    return [first, second] if first != folder and second.is_dir() else [first]


def _bare_files(folder: Path) -> list[Path]:
    """Return the weight files of a folder without config.json, if they are one image or video model's."""
    from archs.diffusion.detection import prefix_of, shapes_of, without_prefix

    if (folder / "config.json").exists():
        return []
    listed_files = [
        path for path in sorted(folder.glob("*.safetensors")) if not path.name.startswith("fix_5d_tensors_")
    ]
    if not listed_files or (len(listed_files) > 1 and not all(SHARD.fullmatch(path.name) for path in listed_files)):
        return []
    files = _whole_set(listed_files[0])
    if set(listed_files) - set(files):
        return []
    tensors = joined(files).tensors
    return files if _is_known(shapes_of(without_prefix(tensors, prefix_of(tensors)))) else []


def open_weights(path: Path) -> Weights:
    """Open the weights of an image or video model; only headers are read. Raises FileError."""
    if is_remote(path):
        return _of_store(path)
    if not path.is_dir():
        return _of_gguf(path) if is_gguf(path) else joined(_whole_set(path))
    if bare := _bare_files(path):
        return joined(bare)
    folders = model_folders(path)
    if not folders:
        raise FileError(f"{path} has no image or video model", "name its .safetensors file, or a diffusers folder")
    if len(folders) > 1:
        raise FileError(f"{path} has two models: {' and '.join(map(str, folders))}", "name the folder of one")
    return open_folder(folders[0])


def _of_store(path: Path) -> Weights:
    """Return the tensors of a URL. Raises FileError."""
    from ..io.checkpoint.remote_weights import open_remote_weights, weight_names

    listed_files = weight_names(path, MODEL_FOLDERS)
    if listed_files is None:
        raise FileError(f"{path} has no image or video model", "name one of its .safetensors files")
    opened = open_remote_weights(*listed_files)
    for file, state in opened.states.items():
        record_state(file, state)
    return Weights(opened.tensors, opened.header, opened.files, remote=opened.identity)


def open_folder(folder: Path) -> Weights:
    """Open the weights of a diffusers component. Raises FileError."""
    files, _, weight_map = weight_files(folder, DIFFUSERS_LAYOUTS)
    weights = joined(files)
    if missing := [name for name in weight_map if name not in weights.tensors]:
        where = f"{missing[0]!r} in {weight_map[missing[0]]}, which does not have it"
        raise FileError(f"{folder}: the index puts tensor {where}")
    return weights


def _whole_set(path: Path) -> list[Path]:
    """Return the files of the set that a shard or an index names, or the file alone. Raises FileError."""
    if path.name.endswith(INDEX):
        listed = read_json_object(path).get("weight_map")
        names = set(listed.values()) if isinstance(listed, dict) else set()
        if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise FileError(f"{path} has no weight_map with names of files", "name a weight file instead")
        return _present([path.parent / name for name in sorted(names)], path)
    if (match := SHARD.fullmatch(path.name)) is None:
        return [path]
    prefix, number, count, suffix = match.groups()
    if not 1 <= int(number) <= int(count):
        return [path]
    return _present(shard_paths(path, prefix, int(count), suffix), path)


def _present(files: list[Path], named: Path) -> list[Path]:
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        problem = f"{named} is one of {len(files)} files, {len(missing)} of which are not there: {few(missing)}"
        raise FileError(problem, "fetch the missing files")
    return files


def joined(files: list[Path]) -> Weights:
    """Return the tensors of several files. Raises FileError for a tensor that is in two."""
    tensors: dict[str, Tensor] = {}
    header: dict[str, str] = {}
    for file in files:
        is_pickle = _is_pickle(file)
        for name, tensor in (_of_pickle if is_pickle else open_safetensors)(file).items():
            if name in tensors:
                raise FileError(f"tensor {name!r} is in two files: {tensors[name].origin} and {tensor.origin}")
            tensors[name] = tensor
        header |= {} if is_pickle else read_metadata(file)
    return Weights(tensors, header, tuple(files))


def _is_pickle(path: Path) -> bool:
    """Return whether a file begins as torch.save writes it; weights are often shared under a wrong suffix.

    Raises FileError for a file that cannot be read.
    """
    try:
        with path.open("rb") as file:
            beginning = file.read(4)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
    if beginning.startswith((b"PK\x03\x04", b"\x80\x02")) and path.suffix.lower() in (*SAFETENSORS, *PICKLES):
        return True
    return path.suffix.lower() in PICKLES and not _is_header(path)


def _is_header(path: Path) -> bool:
    """Return whether a file begins with the length and the JSON of a safetensors header."""
    with path.open("rb") as file:
        beginning = file.read(10)
    length = int.from_bytes(beginning[:8], "little")
    return len(beginning) == 10 and 2 <= length <= path.stat().st_size - 8 and beginning[8:9] == b"{"


def _of_pickle(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a PyTorch file, without the dictionaries that training scripts put them in."""
    tensors: Mapping[str, Tensor] = open_torch(path)
    while wrapper := next((each for each in WRAPPERS if any(name.startswith(each) for name in tensors)), None):
        if wrapper == "model." and any(name.startswith("model.diffusion_model.") for name in tensors):
            break  # a name of the checkpoint itself
        inner = {name.removeprefix(wrapper): each for name, each in tensors.items() if name.startswith(wrapper)}
        if len(inner) < len(tensors) and wrapper != "state_dict.":
            break
        tensors = {name: each.renamed(name) for name, each in inner.items()}
    return tensors


def _of_gguf(path: Path) -> Weights:
    """Return the tensors of a GGUF file in their published shapes. Raises FileError."""
    from archs.diffusion.detection import is_tag
    from archs.diffusion.layout import ORIGINAL_SHAPE, published_shape, unfolded, with_first_one
    from archs.transforms import as_float32, reshape

    from ..io.gguf.reader import open_gguf

    file = open_gguf(path)
    tensors = dict(file.tensors)
    for name, tensor in tensors.items():
        shape = with_first_one(name, published_shape(file.metadata, name, tensor.shape))
        if shape != tensor.shape:
            whole = not tensor.format.is_quantized or shape[-1] == tensor.shape[-1]
            tensors[name] = reshape(tensor if whole else as_float32(tensor), shape)
    if "general.architecture" not in file.metadata:
        tensors = unfolded(tensors)
    kept = Metadata()
    for key in file.metadata:
        structural = key.startswith(("general.", ORIGINAL_SHAPE, "split.", "comfy.gguf."))
        if key in ("general.name", "general.file_type", "general.quantization_version") or (
            not structural and file.metadata.value(key).type is not ValueType.ARRAY
        ):
            kept[key] = file.metadata.value(key)
    weights = Weights(tensors, {}, tuple(file.shards), kept)
    tag = file.metadata.get("general.architecture")
    companion = path.with_name(FIXED_SHAPES.format(tag)) if is_tag(tag) else None
    if companion is None or not companion.is_file():
        return weights
    more = {name: each for name, each in open_safetensors(companion).items() if name not in tensors}
    note = f"{few(sorted(more))} of {companion} joined to it"
    return weights._replace(tensors=tensors | more, files=(*weights.files, companion), notes=(note,) if more else ())


def of_diffusion(
    source: PathLike, outtype: str = "AUTO", reader: Reader | None = None, change: Change | None = None
) -> Parts:
    """Return the parts of the file that an image or video model becomes; nothing is read but headers.

    outtype: F32, F16, BF16, AUTO for the type of most weights (of a GGUF file, for the types that it has), or another
    for ComfyUI-GGUF's rule; RECIPE also warns of other parts. reader, change: as of
    `archs.plans.diffusion.plan_diffusion`. Raises FileError, ModelError.
    """
    from archs.plans.diffusion import KEEP, OWN, plan_diffusion

    from ..quantization.outtypes import FILE_TYPES, with_file_type

    path = located(source)
    with recorded_reads() as states:
        weights = open_weights(path)
    tensors, is_copy = weights.tensors, outtype == "AUTO" and is_gguf(path)
    plain = KEEP if is_copy else OWN if outtype == "AUTO" else outtype if outtype in FLOATS else "AUTO"
    if is_gguf(path) and outtype in FLOATS:
        tensors = {name: as_values(each) for name, each in tensors.items()}
    try:
        planned = plan_diffusion(tensors, weights.header, str(path), plain, reader, change)
    except ModelError:
        _refuse_language_model(path, tensors)
        raise
    metadata = planned.metadata.copy()
    for key in weights.kept:
        metadata[key] = weights.kept.value(key)
    decided = ("diffusion", outtype, reader or "")
    origin = Origin(
        path,
        weights.files,
        states,
        recorded=tuple(filter(None, (weights.remote, decided, ("an adapter",) if change else ()))),
        outtype=None if is_copy else planned.outtype,
        candidates=planned.candidates,
        remote=weights.remote is not None,
        warnings=(*weights.notes, *planned.warnings, *(_left_out(planned.other_parts) if outtype == RECIPE else ())),
        reopen=None if change else partial(_tensors, path.absolute(), outtype, reader),
    )
    if not is_copy:
        metadata = with_file_type(metadata, FILE_TYPES[planned.outtype])
    return Parts(metadata, planned.tensors, origin)


def _left_out(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return a warning of other parts of a checkpoint, or none."""
    return (f"other parts are not in the file: {', '.join(parts)}; `convert` writes them",) if parts else ()


def is_gguf(path: Path) -> bool:
    """Return True for the name of a GGUF file."""
    return path.suffix.lower() == ".gguf"


def as_values(tensor: Tensor) -> Tensor:
    """Return a quantized tensor in float32, others as they are."""
    from archs.transforms import as_float32

    return as_float32(tensor) if tensor.format.is_quantized else tensor


def _tensors(path: Path, outtype: str, reader: Reader | None) -> Mapping[str, Tensor]:
    return of_diffusion(path, outtype, reader).tensors


def _refuse_language_model(path: Path, tensors: Mapping[str, Any]) -> None:
    """Raise FileError for a weight file of a language model, which its folder's other files belong to."""
    if path.is_dir() or not any(LANGUAGE_TENSORS.match(name) for name in tensors):
        return
    config = path.parent / "config.json"
    hint = f"name its folder: {path.parent}" if config.is_file() else "name the folder of the whole checkpoint"
    raise FileError(f"{path} has weights of a language model, and neither its config.json nor its tokenizer", hint)
