"""Open image and video models: a .safetensors file, a sharded set, a diffusers folder, a checkpoint with more parts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archs.small_files import read_json_object, recorded_reads
from quants import Tensor
from quants.arguments import PathLike
from quants.errors import FileError, ModelError

from ..io.checkpoint.folder import DIFFUSERS_LAYOUTS, open_torch, weight_files
from ..io.checkpoint.safetensors import header_metadata, open_safetensors
from ..io.naming import is_remote
from ..writing.origin import Origin
from .sources import Parts

if TYPE_CHECKING:
    from archs.diffusion.spec import Reader

SAFETENSORS = (".safetensors", ".sft")
PICKLES = (".ckpt", ".pt", ".pth", ".bin")
MODEL_FOLDERS = ("transformer", "unet")  # of a diffusers pipeline
PIPELINE, COMPONENT = "model_index.json", "_class_name"


class Weights(NamedTuple):
    """Tensors of a source by their names in it, the texts of its safetensors headers, and its files."""

    tensors: Mapping[str, Tensor]
    header: Mapping[str, str]
    files: tuple[Path, ...]


def is_diffusion(source: PathLike) -> bool:
    """Return True if a source is read as an image or video model: a weight file, or a folder of diffusers."""
    if is_remote(source):
        return False
    path = Path(source)
    if path.is_file():
        return path.suffix.lower() in (*SAFETENSORS, *PICKLES)
    return path.is_dir() and model_folder(path) is not None


def model_folder(folder: Path) -> Path | None:
    """Return the folder of the model in one of diffusers: itself, or a part of the pipeline; None for another folder.

    Raises FileError for a config.json or model_index.json that is no JSON object.
    """
    if (folder / PIPELINE).is_file():
        return next((folder / name for name in MODEL_FOLDERS if (folder / name).is_dir()), None)
    config = folder / "config.json"
    if config.is_file():
        return folder if COMPONENT in read_json_object(config) else None
    return next((folder / name for name in MODEL_FOLDERS if (folder / name / "config.json").is_file()), None)


def open_weights(path: Path) -> Weights:
    """Open the weights of an image or video model; only headers are read. Raises FileError."""
    if path.is_dir():
        folder = model_folder(path)
        if folder is None:
            raise FileError(f"{path} has no image or video model", "name its .safetensors file, or a diffusers folder")
        files, _, _ = weight_files(folder, DIFFUSERS_LAYOUTS)
        return _joined(files)
    return _joined([path])


def _joined(files: list[Path]) -> Weights:
    """Return the tensors of several files. Raises FileError for a tensor that is in two."""
    tensors: dict[str, Tensor] = {}
    header: dict[str, str] = {}
    for file in files:
        is_pickle = file.suffix.lower() in PICKLES
        for name, tensor in (open_torch if is_pickle else open_safetensors)(file).items():
            if name in tensors:
                raise FileError(f"tensor {name!r} is in two files: {tensors[name].origin} and {tensor.origin}")
            tensors[name] = tensor
        header |= {} if is_pickle else header_metadata(file)
    return Weights(tensors, header, tuple(files))


def of_diffusion(source: PathLike, outtype: str = "AUTO", reader: Reader | None = None) -> Parts:
    """Return the parts of the file that an image or video model becomes; nothing is read but headers.

    outtype: F32, F16, BF16, AUTO for the type of most weights, or another for ComfyUI-GGUF's rule. reader: as of
    `archs.plans.diffusion.plan_diffusion`. Raises FileError, ModelError.
    """
    from archs.plans.diffusion import plan_diffusion

    from ..quantization.outtypes import FILE_TYPES, checkpoint_type, with_file_type

    path = Path(source)
    with recorded_reads() as states:
        weights = open_weights(path)
    own_type = checkpoint_type(weights.tensors.values(), packed=False)
    plain = own_type if outtype == "AUTO" else outtype if outtype in ("F32", "F16", "BF16") else "AUTO"
    planned = plan_diffusion(weights.tensors, weights.header, str(path), plain, reader)
    if not planned.tensors:
        raise ModelError(f"{path} has no tensors of a model")
    origin = Origin(
        path,
        weights.files,
        states,
        recorded=(("diffusion", plain, reader or ""),),
        outtype=own_type,
        candidates=planned.candidates,
        warnings=(*planned.warnings, *_left_out(planned.other_parts)),
        reopen=partial(_tensors, path.absolute(), outtype, reader),
    )
    return Parts(with_file_type(planned.metadata, FILE_TYPES[own_type]), planned.tensors, origin)


def _tensors(path: Path, outtype: str, reader: Reader | None) -> Mapping[str, Tensor]:
    return of_diffusion(path, outtype, reader).tensors


def _left_out(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return a warning of tensors of other parts of a checkpoint, or none."""
    if not names:
        return ()
    prefixes = sorted({name.partition(".")[0] for name in names})
    return (f"{len(names)} tensors of other parts are not in this file: {', '.join(prefixes)}",)
