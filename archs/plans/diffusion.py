"""Plan the file of an image or video model: tensors of any layout → published names, shapes for readers, and a tag.

Every tensor of the source is in the file, belongs to another part of the checkpoint, or is known to be unused.
"""

import fnmatch
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quants import Format, Tensor, format_named
from quants.errors import ModelError

from ..diffusion.blocks import missing_block, unlike_neighbours
from ..diffusion.detection import family_in_diffusers, family_of, prefix_of, required_family, shapes_of, without_prefix
from ..diffusion.formats import FLOATS, may_be_quantized, plain_format, stored_as
from ..diffusion.layout import fold, rearrange
from ..diffusion.parts import MODEL, split
from ..diffusion.readers import NEEDED_PREFIXES
from ..diffusion.spec import DiffusionFamily, Reader
from ..metadata import Metadata, Value
from ..prequantized.comfy import unpacked_weights
from ..spec import Tensors
from ..transforms import as_float32

# Of safetensors' metadata: of the file, not of the model.
LEFT_OUT_KEYS = ("format", "_quantization_metadata")
OF_PACKED = "a part of a quantized weight, which is read as values"
MAX_TEXT = 1 << 20  # bytes of a text that is copied from the safetensors header
OWN = "OWN"  # the type of most weights, for all
KEEP = "KEEP"  # every tensor in the type that it has
SAFE = ("F32", "F16")  # types that programs read in any tensor; of others some take the stored bytes for values
Change = Callable[[DiffusionFamily, Tensors], Tensors]
MAX_UNLIKE = 8  # of the tensors that differ from their neighbours', which are named
LOST = "a shard may be missing, or the file was cut by another tool"


@dataclass(frozen=True)
class DiffusionPlan:
    """An image or video model as the GGUF file that it will be: only headers are read yet.

    metadata: all but `general.file_type`. candidates: names of tensors whose type the output's decides. outtype: the
    type of most weights; BF16 where GGUF lacks it, or weights are packed. ignored: source tensors that no reader
    needs → why. other_parts: names of other parts of the checkpoint.
    """

    family: DiffusionFamily
    metadata: Metadata
    tensors: Tensors
    candidates: frozenset[str]
    outtype: str
    ignored: Mapping[str, str] = field(default_factory=dict)
    other_parts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def plan_diffusion(
    tensors: Tensors,
    header: Mapping[str, str],
    where: str,
    outtype: str,
    reader: Reader | None = None,
    change: Change | None = None,
) -> DiffusionPlan:
    """Plan the file of an image or video model.

    tensors: by their names in the source, with or without a prefix, in the published layout or diffusers'. header:
    `__metadata__` of its safetensors file. where: names the source in errors. outtype: F32, F16 or BF16, AUTO for
    ComfyUI-GGUF's rule, OWN for the type of most weights, or KEEP. reader: the layout that this program alone reads
    best; None for one that all but diffusers read. change: of tensors under their published names (adapters). Raises
    ModelError for an unknown model and for one with gaps between its blocks.
    """
    plain = unpacked_weights(tensors, header)
    found = split({name: _in_ggml(tensor) for name, tensor in plain.tensors.items()})
    own_type = _own_type(split(tensors).parts.get(MODEL, {}))
    outtype = own_type if outtype == OWN else outtype
    if MODEL not in found.parts and found.parts:
        only = ", ".join(sorted(found.parts))
        raise ModelError(f"{where} has no image or video model, only {only}", "name the part to be written")
    family, own, unknown = _published(found.parts.get(MODEL, {}), where)
    unused = {name: why for name in own if (why := _why_ignored(family, name))}
    ignored = {**dict.fromkeys(plain.ignored, OF_PACKED), **found.ignored, **unused}
    published: Tensors = {name: tensor for name, tensor in own.items() if name not in ignored}
    if gap := missing_block(published):
        raise ModelError(f"{where}: {gap[0]} is missing; the last of them has number {gap[1]}", LOST)
    unlike = [f"{name} {what}; {LOST}" for name, what in unlike_neighbours(shapes_of(published)).items()]
    changed = published if change is None else change(family, published)
    stored, shapes = in_layout(family, changed, reader)
    candidates = frozenset(name for name, each in stored.items() if may_be_quantized(family, name, each.shape))
    written = {
        name: tensor if name in candidates else stored_as(tensor, _format(family, published[name], outtype, reader))
        for name, tensor in stored.items()
    }
    if reader == "diffusers" and (prefix := NEEDED_PREFIXES.get(family.name)):
        written = {prefix + name: tensor.renamed(prefix + name) for name, tensor in written.items()}
        candidates = frozenset(prefix + name for name in candidates)
    metadata, warnings = _metadata(family, header)
    for key, value in shapes.items():
        metadata[key] = value
    if reader is None and family.rearranged and outtype == "AUTO" and (count := len(rearrange(changed)[1])):
        warnings = (
            *warnings,
            f"{count} weights keep 16 bits for all programs; `reader` comfyui lets recipes take them",
        )
    warnings = (*warnings, *unlike[:MAX_UNLIKE], *_unused({**found.ignored, **unused}))
    others = tuple(sorted(part for part in found.parts if part != MODEL))
    if unknown:
        names = f"{unknown[0]}{', …' if len(unknown) > 1 else ''}"
        warnings = (*warnings, f"{len(unknown)} tensors of no known part are left out: {names}")
    return DiffusionPlan(family, metadata, written, candidates, own_type, ignored, others, warnings)


def _in_ggml(tensor: Tensor) -> Tensor:
    """Return a tensor of a type that only checkpoints have, such as an 8-bit float, in float32."""
    return tensor if tensor.format.ggml_type >= 0 else as_float32(tensor)


def _own_type(tensors: Tensors) -> str:
    """Return the type of most weights; BF16 for one that is no float of GGUF."""
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        sizes[tensor.format.name] += tensor.size * (len(tensor.shape) > 1)
    main_type = sizes.most_common(1)[0][0] if sizes else "F16"
    return main_type if main_type in FLOATS else "BF16"


def _published(tensors: Tensors, where: str) -> tuple[DiffusionFamily, Tensors, list[str]]:
    """Return the family of a model, its tensors under published names, and names that belong to no part."""
    prefix = prefix_of(tensors)
    own = without_prefix(tensors, prefix)
    unknown = [name for name in tensors if not name.startswith(prefix)]
    family = family_of(shapes_of(own), where)
    if family is None and (layout := family_in_diffusers(shapes_of(own), where)) is not None:
        own = layout.from_diffusers(own) if layout.from_diffusers else own  # relatives may have the same names there
    return family or required_family(shapes_of(own), where), own, unknown


def _format(family: DiffusionFamily, tensor: Tensor, outtype: str, reader: Reader | None) -> Format:
    """Return the format of a tensor that is not quantized; with KEEP its own, if all programs read it there."""
    form = tensor.format if outtype == KEEP else plain_format(family, tensor, outtype)
    is_matrix = len(tensor.shape) == 2 and tensor.name.endswith(".weight")
    if is_matrix or form.name in (*SAFE, "I32", "I64") or (outtype != KEEP and reader != "diffusers"):
        return form
    return format_named("F32")  # diffusers takes BF16 for packed bytes, which convolutions cannot unpack


def in_layout(family: DiffusionFamily, tensors: Tensors, reader: Reader | None) -> tuple[Tensors, dict[str, Value]]:
    """Return tensors in the shapes that a reader takes, and the keys that keep published ones."""
    if reader == "diffusers":
        return tensors, {}
    shapes: dict[str, Value] = {}
    if reader == "comfyui" and family.rearranged:
        tensors, shapes = rearrange(tensors)
    tensors, folded = fold(tensors)
    return tensors, {**shapes, **folded}


def _unused(ignored: Mapping[str, str]) -> list[str]:
    """Return a line for each reason why tensors are left out, with the first of them and how many there are."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, why in ignored.items():
        names[why].append(name)
    return [f"{len(some)} tensor{'s' * (len(some) > 1)} left out ({some[0]!r}): {why}" for why, some in names.items()]


def _why_ignored(family: DiffusionFamily, name: str) -> str:
    return next((why for pattern, why in family.ignored.items() if fnmatch.fnmatchcase(name, pattern)), "")


def _metadata(family: DiffusionFamily, header: Mapping[str, str]) -> tuple[Metadata, tuple[str, ...]]:
    """Return the keys of a file, with those of its safetensors header, and warnings of what is left out."""
    metadata = Metadata({"general.architecture": family.tag})
    if title := header.get("modelspec.title"):
        metadata["general.name"] = title
    warnings = []
    for key, text in header.items():
        if key in LEFT_OUT_KEYS or key.startswith("general."):
            continue
        if len(text.encode()) > MAX_TEXT:
            warnings.append(f"the text {key!r} of the safetensors header is left out: it has {len(text):,} characters")
        else:
            metadata[key] = text
    return metadata, tuple(warnings)
