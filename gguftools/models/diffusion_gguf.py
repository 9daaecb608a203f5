"""Arrange GGUF files of image and video models that other programs wrote without a tag, or under other names."""

from dataclasses import replace

from archs.diffusion.detection import family_of_file, is_tag, prefix_of

from ..io.gguf.reader import GgufFile
from .diffusion_sources import FIXED_SHAPES, RECIPE, is_diffusion_gguf, of_diffusion
from .model import Model, of_parts

MAX_DIMENSIONS = 4  # that most programs read
UNTOLD_TAGS = ("pig", "cow")  # of image models of any family
OF_TEXT_MODELS = "blk."  # how names of their layers begin


def arranged(model: Model) -> Model:
    """Return a GGUF file's image model under the names and with the tag that programs know; others as they are.

    Its origin's warnings say what was changed. Raises ModelError for an image model that lacks tensors, or is unknown.
    """
    file = model.file
    if file is None or file.is_stored or not model.is_as_opened:
        return model
    if not _is_foreign(file, model.architecture):
        return model
    if not _is_of_images(file, model.architecture) and not is_diffusion_gguf(file.path):
        return model
    parts = of_diffusion(file.path, RECIPE)
    tag, stated = parts.metadata["general.architecture"], model.architecture
    warnings = list(parts.origin.warnings)
    if stated != tag:
        which = f"the tag {stated!r}" if stated else "no tag"
        warnings.append(f"{file.path.name} has {which}; {tag!r}, which its names tell, is written instead")
    if not stated:
        lost = "stable-diffusion.cpp leaves out first dimensions of 1, without which ComfyUI refuses some models"
        warnings.append(f"{lost}: for ComfyUI, start from the original checkpoint")
    return of_parts(parts._replace(origin=replace(parts.origin, warnings=tuple(warnings))))


def _is_foreign(file: GgufFile, tag: str) -> bool:
    """Return True for a file whose tensors may be those of an image model, but not as programs want them."""
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    if any(name.startswith(OF_TEXT_MODELS) for name in shapes):
        return False
    if not is_tag(tag) or prefix_of(shapes) or any(len(shape) > MAX_DIMENSIONS for shape in shapes.values()):
        return True
    companion = file.path.with_name(FIXED_SHAPES.format(tag))
    return companion.is_file() or family_of_file(file.metadata, shapes, str(file.path)) is None


def _is_of_images(file: GgufFile, tag: str) -> bool:
    """Return True for a file that can only be an image model's, whether or not it is known."""
    return tag in UNTOLD_TAGS or prefix_of(file.tensors).endswith("diffusion_model.")
