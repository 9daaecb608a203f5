"""Find the family of an image or video model by the names and shapes of its tensors."""

import importlib
import pkgutil
from collections.abc import Collection, Iterable, Mapping
from functools import cache

from quants.errors import ModelError

from ..metadata import Metadata
from ..spec import Tensors
from . import families
from .layout import published_shape
from .others import is_like_diffusers, recognized
from .spec import DiffusionFamily

Shapes = Mapping[str, tuple[int, ...]]

# Before the names of a model's own tensors; the first that any tensor has is removed, and tensors without it belong to
# other parts of the checkpoint.
PREFIXES = ("model.diffusion_model.", "diffusion_model.", "model.model.", "model.", "net.", "_orig_mod.", "module.")
OTHER_PARTS = (
    "vae.",
    "audio_vae.",
    "first_stage_model.",
    "text_encoders.",
    "cond_stage_model.",
    "conditioner.",
    "text_embedding_projection.",
    "vocoder.",
    "model_ema.",
    "lm_head.",
)
LIKE = 0.5  # part of a signature that a model has to be named as the nearest


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


def family_of(shapes: Shapes, where: str = "") -> DiffusionFamily | None:
    """Return the family whose published names and shapes these are; None if there is none.

    shapes: by names without prefix. where: names the file in the error. Raises ModelError if two families claim them.
    """
    return _only([each for each in all_families() if _has(each, each.signatures, shapes)], where)


def family_in_diffusers(shapes: Shapes, where: str = "") -> DiffusionFamily | None:
    """Return the family whose names in diffusers' layout these are; None if there is none."""
    found = [each for each in all_families() if _has(each, each.diffusers_signatures, shapes, published=False)]
    return _only(found, where)


def family_of_file(metadata: Metadata, shapes: Shapes, where: str = "") -> DiffusionFamily | None:
    """Return the family of a GGUF file's model, whose tensors may have other shapes than the published ones."""
    prefix = prefix_of(shapes)
    own = {
        name.removeprefix(prefix): published_shape(metadata, name, shape)
        for name, shape in shapes.items()
        if name.startswith(prefix)
    }
    return family_of(own, where)


def required_family(shapes: Shapes, where: str) -> DiffusionFamily:
    """Return `family_of`. where: names the file in the error. Raises ModelError if it is unknown."""
    if (family := family_of(shapes, where)) is not None:
        return family
    if (other := recognized(shapes)) is not None:
        raise ModelError(f"{where}: this seems to be {other.what}, not an image or video model", other.hint)
    if lacking := _nearest(shapes):
        raise ModelError(f"{where}: {lacking}", "a shard may be missing, or another tool renamed or cut tensors")
    if is_like_diffusers(shapes):
        problem = f"{where}: the names are of diffusers' layout, but of no known model in it"
        raise ModelError(problem, "take the model's own checkpoint, or that of ComfyUI")
    names = ", ".join(sorted(shapes)[:3])
    problem = f"{where}: no known image or video model has these tensors: {names} …"
    raise ModelError(problem, "`gguftools architectures` lists the known ones")


def prefix_of(names: Collection[str]) -> str:
    """Return what stands before the names of an image or video model's own tensors, "" for nothing."""
    for prefix in PREFIXES:
        some = [name for name in names if name.startswith(prefix)]
        if some and (prefix.endswith("diffusion_model.") or _are_all(names, prefix)):
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
    return not published or all(_agrees(family, name, shapes) for name in family.shapes)


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(size in (None, n) for size, n in zip(wanted, shape, strict=True))


def _only(found: list[DiffusionFamily], where: str) -> DiffusionFamily | None:
    if len(found) > 1:
        titles = " and of ".join(each.title for each in found)
        raise ModelError(f"{where}: the tensors are those of {titles}".removeprefix(": "), "a file holds one model")
    return found[0] if found else None


def _are_all(names: Iterable[str], prefix: str) -> bool:
    """Return True if all names have a prefix but those of other parts."""
    return all(name.startswith((prefix, *OTHER_PARTS)) for name in names)


def _nearest(shapes: Shapes) -> str:
    """Return what an unknown model lacks or has beyond the family that its names are nearest to; "" if none is near."""
    candidates = [(family, names) for family in all_families() for names in family.signatures]
    near = [each for each in candidates if _present(each[1], shapes) >= LIKE * len(each[1])]
    if not near:
        return ""
    family, names = min(near, key=lambda each: _distance(each[0], each[1], shapes))
    start = f"the tensors are like those of {family.title}, but "
    if missing := [name for name in names if name not in shapes]:
        return f"{start}{', '.join(missing[:3])}{' …' if len(missing) > 3 else ''} {_are(missing)} missing"
    if beyond := [name for name in family.absent if name in shapes]:
        return f"{start}that has no {beyond[0]}"
    wrong = next(name for name in family.shapes if not _agrees(family, name, shapes))
    wanted = "×".join("…" if size is None else str(size) for size in family.shapes[wrong])
    found = "×".join(map(str, shapes.get(wrong, ())))
    return f"{start}{wrong} is {found or 'missing'}, not {wanted}"


def _distance(family: DiffusionFamily, names: Collection[str], shapes: Shapes) -> tuple[int, int]:
    """Return how much a model differs from a family; of equal ones, that with more of its names is nearer."""
    missing = len(names) - _present(names, shapes)
    wrong = sum(name in shapes and not _agrees(family, name, shapes) for name in family.shapes)
    return missing + wrong + _present(family.absent, shapes), -_present(names, shapes)


def _present(names: Collection[str], shapes: Shapes) -> int:
    return sum(name in shapes for name in names)


def _agrees(family: DiffusionFamily, name: str, shapes: Shapes) -> bool:
    return _fits(shapes.get(name, ()), family.shapes[name])


def _are(names: Collection[str]) -> str:
    return "is" if len(names) == 1 else "are"


def is_tag(value: object) -> bool:
    """Return whether a value of `general.architecture`, of any type, is that of an image or video model."""
    return isinstance(value, str) and value in tags()


def families_by_tag() -> Mapping[str, tuple[DiffusionFamily, ...]]:
    """Return each tag → the families whose files have it."""
    return {tag: tuple(each for each in all_families() if each.tag == tag) for tag in sorted(tags())}
