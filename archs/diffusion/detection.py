"""Find the family of an image or video model by the names and shapes of its tensors."""

import importlib
import pkgutil
from collections.abc import Collection, Mapping
from functools import cache

from quants.errors import ModelError

from ..spec import Tensors
from . import families
from .spec import DiffusionFamily

Shapes = Mapping[str, tuple[int, ...]]

# Before the names of a model's own tensors; the first that any tensor has is removed, and tensors without it belong to
# other parts of the checkpoint.
PREFIXES = ("model.diffusion_model.", "diffusion_model.", "model.", "net.")


@cache
def all_families() -> tuple[DiffusionFamily, ...]:
    """Return all known families, by name."""
    modules = [
        importlib.import_module(f"{families.__name__}.{info.name}") for info in pkgutil.iter_modules(families.__path__)
    ]
    every = [value for module in modules for value in vars(module).values() if isinstance(value, DiffusionFamily)]
    return tuple(sorted({each.name: each for each in every}.values(), key=lambda each: each.name))


@cache
def tags() -> frozenset[str]:
    """Return the values of `general.architecture` that files of image and video models have."""
    return frozenset(each.tag for each in all_families())


def family_of(shapes: Shapes) -> DiffusionFamily | None:
    """Return the family whose published names and shapes these are; None if there is none.

    shapes: by names without prefix. Raises ModelError if two families claim them.
    """
    return _only([each for each in all_families() if _has(each, each.signatures, shapes)])


def family_in_diffusers(shapes: Shapes) -> DiffusionFamily | None:
    """Return the family whose names in diffusers' layout these are; None if there is none."""
    return _only([each for each in all_families() if _has(each, each.diffusers_signatures, shapes, published=False)])


def required_family(shapes: Shapes, where: str) -> DiffusionFamily:
    """Return `family_of`. where: names the file in the error. Raises ModelError if it is unknown."""
    if (family := family_of(shapes)) is not None:
        return family
    names = ", ".join(sorted(shapes)[:3])
    titles = ", ".join(each.title for each in all_families())
    raise ModelError(f"{where}: no known image or video model has these tensors: {names} …", f"known are {titles}")


def prefix_of(names: Collection[str]) -> str:
    """Return what stands before the names of an image or video model's own tensors, "" for nothing."""
    for prefix in PREFIXES:
        some = [name for name in names if name.startswith(prefix)]
        if some and (prefix.endswith("diffusion_model.") or len(some) == len(names)):
            return prefix
    return ""


def shapes_of(tensors: Tensors) -> Shapes:
    """Return each tensor's name → its shape."""
    return {name: tensor.shape for name, tensor in tensors.items()}


def without_prefix(tensors: Tensors, prefix: str) -> Tensors:
    """Return the tensors that have the prefix, under their names without it."""
    return {
        name.removeprefix(prefix): tensor.renamed(name.removeprefix(prefix))
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _has(
    family: DiffusionFamily, signatures: tuple[tuple[str, ...], ...], shapes: Shapes, published: bool = True
) -> bool:
    """Return whether a model has a family's names, and in the published layout its shapes."""
    if not any(all(name in shapes for name in names) for names in signatures):
        return False
    if any(name in shapes for name in family.absent):
        return False
    return not published or all(_fits(shapes.get(name, ()), shape) for name, shape in family.shapes.items())


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(size in (None, n) for size, n in zip(wanted, shape, strict=True))


def _only(found: list[DiffusionFamily]) -> DiffusionFamily | None:
    if len(found) > 1:
        raise ModelError(f"the tensors are those of {' and of '.join(each.title for each in found)}")
    return found[0] if found else None


def families_by_tag() -> Mapping[str, tuple[DiffusionFamily, ...]]:
    """Return each tag → the families whose files have it."""
    return {tag: tuple(each for each in all_families() if each.tag == tag) for tag in sorted(tags())}
