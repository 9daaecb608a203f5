"""Check a GGUF file of an image or video model against its family: tag, blocks, shapes, tensors to keep."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from quants import Tensor
from quants.errors import ModelError

from ..metadata import Metadata, ValueType
from .blocks import missing_block, unlike_neighbours
from .detection import family_in_diffusers, family_of, is_tag, prefix_of, required_family
from .layout import ORIGINAL_SHAPE, published_shape
from .spec import DiffusionFamily

ERROR, WARNING, NOTE = "error", "warning", "note"
TAG = "general.architecture"
ORIGINAL = "convert the original again with `gguftools convert`"
CONVERT = "`gguftools convert` arranges it anew, from the original or from this file"
# Ends of names of scales that quantized checkpoints store next to their weights.
SCALES = (".scale_weight", ".scale_input", ".weight_scale", ".weight_scale_2", ".input_scale", ".comfy_quant")
FP8_MARK = "scaled_fp8"


class Fault(NamedTuple):
    """A fault of a file.

    severity: "error" (it does not load, or gives wrong images), "warning", "note". where: a key, a tensor, or the file.
    remedy: what to do, "" for nothing.
    """

    severity: str
    where: str
    problem: str
    remedy: str = ""


@dataclass(frozen=True)
class ImageFile:
    """A GGUF file of an image or video model.

    prefix: stands before the names of the model's own tensors. family: by their names; None if no family has them.
    in_diffusers: the names are those of diffusers' layout. files: how many the model is in.
    """

    metadata: Metadata
    tensors: Mapping[str, Tensor]
    prefix: str = ""
    family: DiffusionFamily | None = None
    in_diffusers: bool = False
    files: int = 1

    @cached_property
    def own(self) -> Mapping[str, Tensor]:
        """Return the model's own tensors by their names without the prefix."""
        start = len(self.prefix)
        return {name[start:]: tensor for name, tensor in self.tensors.items() if name.startswith(self.prefix)}

    @cached_property
    def tag(self) -> str | None:
        """Return `general.architecture`; None if the file has none, or one that is no text."""
        tag = self.metadata.get(TAG)
        return tag if isinstance(tag, str) else None

    def published(self, name: str) -> tuple[int, ...]:
        """Return the published shape of one of the model's own tensors."""
        return published_shape(self.metadata, self.prefix + name, self.own[name].shape)


def image_file(metadata: Metadata, tensors: Mapping[str, Tensor], files: int = 1) -> ImageFile | None:
    """Return the image or video model that a file, or several, have; None for another."""
    prefix = prefix_of(tensors)
    start = len(prefix)
    shapes = {
        name[start:]: published_shape(metadata, name, tensor.shape)
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    family, in_diffusers = _family(shapes)
    tag = metadata.get(TAG)
    if family is None and not is_tag(tag):
        return None
    return ImageFile(metadata, tensors, prefix, family, in_diffusers, files)


def _family(shapes: Mapping[str, tuple[int, ...]]) -> tuple[DiffusionFamily | None, bool]:
    """Return the family of names and shapes, and whether they are in diffusers' layout."""
    try:
        if (family := family_of(shapes)) is not None:
            return family, False
        family = family_in_diffusers(shapes)
    except ModelError:  # names of two families
        return None, False
    return family, family is not None


def family_faults(file: ImageFile) -> Iterator[Fault]:
    """Yield how a file differs from those of its family, whoever reads it."""
    family = file.family
    if family is None:
        yield Fault(WARNING, TAG, f"is {file.tag!r}; {_why_unknown(file)}", "only shapes and values were checked")
    elif file.tag is None:
        yield Fault(WARNING, TAG, f"is missing; the tensors are those of {family.title}", set_tag(family))
    elif file.tag != family.tag:
        problem = f"is {file.tag!r}, and the tensors are those of {family.title}, whose files have {family.tag!r}"
        yield Fault(WARNING, TAG, problem, set_tag(family))
    yield from wrong_tensors(file)
    yield from shape_faults(file)
    if family and (packed := [name for name, each in file.own.items() if _is_packed(family, name, each)]):
        problem = f"is quantized to {file.own[packed[0]].format.name}; {family.title} needs it in full ({some(packed)})"
        yield Fault(WARNING, packed[0], problem, "quantize the original again")


def _why_unknown(file: ImageFile) -> str:
    """Return why the family of a file is not known."""
    try:
        required_family({name: file.published(name) for name in file.own}, "")
    except ModelError as error:
        return str(error).removeprefix(": ")
    return "the family is not known"


def wrong_tensors(file: ImageFile) -> Iterator[Fault]:
    """Find tensors that are missing, and weights that no reader can make right images of."""
    if gap := missing_block(file.own):
        yield Fault(ERROR, gap[0], f"no tensor of this block, and the last has the number {gap[1]}", ORIGINAL)
    for name, what in unlike_neighbours({name: file.published(name) for name in file.own}).items():
        yield Fault(WARNING, name, what, ORIGINAL)
    if scales := [name for name in file.tensors if name.endswith((*SCALES, FP8_MARK))]:
        problem = f"scales of a quantized checkpoint: its weights were not multiplied by them ({some(scales)})"
        yield Fault(ERROR, scales[0], problem, ORIGINAL)


def check_text_model(tag: object) -> None:
    """Raise ModelError for the tag of an image or video model, where a language model is needed."""
    if is_tag(tag):
        problem = f"{TAG} is {tag!r}: an image or video model, which gguftools does not run or export"
        raise ModelError(problem, "it converts, quantizes, compares and validates such files")


def set_tag(family: DiffusionFamily) -> str:
    """Return the command that gives a file the tag of its family."""
    return f"`gguftools set-metadata FILE {TAG}={family.tag}`"


def some(names: Iterable[str], count: int = 1) -> str:
    """Return the first names, and how many more there are."""
    listed = list(names)
    more = len(listed) - count
    return ", ".join(listed[:count]) + (f" and {more} more" if more > 0 else "")


def shape_faults(file: ImageFile) -> Iterator[Fault]:
    """Find keys of published shapes that no reader can use."""
    for key in file.metadata:
        if not key.startswith(ORIGINAL_SHAPE):
            continue
        value, tensor = file.metadata.value(key), file.tensors.get(key.removeprefix(ORIGINAL_SHAPE))
        if tensor is None:
            yield Fault(WARNING, key, "is the shape of a tensor that the file does not have")
        elif value.type is not ValueType.ARRAY or value.element is not ValueType.INT32:
            problem = f"is of type {value.gguf_type}; ComfyUI-GGUF reads arrays of INT32 alone"
            yield Fault(ERROR, key, problem, CONVERT)
        elif math.prod(sizes := tuple(map(int, value.data))) != tensor.size or min(sizes, default=0) < 1:
            problem = f"is {list(sizes)}, and the tensor has {tensor.size:,} values: {list(tensor.shape)}"
            yield Fault(ERROR, key, problem, CONVERT)


def _is_packed(family: DiffusionFamily, name: str, tensor: Tensor) -> bool:
    parts = (*family.kept, *family.float32)
    return tensor.format.is_quantized and any(part in name for part in parts)
