"""List the formats of weights, and the architectures that can be converted and run."""

from dataclasses import dataclass, replace
from typing import Literal

from archs.diffusion.detection import all_families
from archs.diffusion.readers import readers_of
from archs.diffusion.spec import READERS, DiffusionFamily
from archs.encoder import Encoder, projectors
from archs.plans.mmproj import all_encoders
from archs.registry import architectures as every_architecture
from archs.registry import drafts as every_draft
from archs.spec import Architecture
from quants.format import formats as every_format

from ..writing.report import Report

FLOATS = ("F32", "F16", "BF16")  # types without blocks that weights are stored in


@dataclass(frozen=True)
class FormatInfo(Report):
    """A format with its name and number in files: `block` values take `block_bytes` bytes.

    importance: whether encoding needs, uses or ignores importance weights.
    """

    name: str
    ggml_type: int
    bits_per_weight: float
    block: int
    block_bytes: int
    importance: Literal["needed", "used", "ignored"]


def formats() -> tuple[FormatInfo, ...]:
    """Return all formats that tensors can be quantized to or kept in, in the order of their numbers."""
    return tuple(
        FormatInfo(
            each.name,
            each.ggml_type,
            each.bits_per_weight,
            each.block_size,
            each.block_bytes,
            "needed" if each.needs_importance else "used" if each.uses_importance else "ignored",
        )
        for each in every_format().values()
        if each.has_codec and (each.is_quantized or each.name in FLOATS)
    )


@dataclass(frozen=True)
class ArchitectureInfo(Report):
    """An architecture: its GGUF name, its Hugging Face classes, and the vocabulary types that are tried in turn.

    encoders: classes with an image or audio encoder, which `convert --mmproj` writes; running_encoders,
    exporting_encoders: those of them whose encoders the runtime runs, and which `export --mmproj` writes checkpoints
    of. refused: keys of config.json for variants that GGUF cannot express. exports: whether files can be exported to
    checkpoints; export_obstacle: why not. draft: a draft model, which shares the vocabulary of its target and neither
    converts nor runs without it. wrapper: a class around a text model of any architecture that its config.json names;
    its name here is empty.
    """

    name: str
    hf_classes: tuple[str, ...]
    vocabularies: tuple[str, ...]
    encoders: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    exports: bool = True
    export_obstacle: str | None = None
    draft: bool = False
    running_encoders: tuple[str, ...] = ()
    exporting_encoders: tuple[str, ...] = ()
    wrapper: bool = False
    image: bool = False
    title: str = ""
    readers: tuple[str, ...] = ()


def architectures() -> tuple[ArchitectureInfo, ...]:
    """Return all architectures, those of other packages included; several may share a name.

    Draft models follow them, then the classes around a text model of any architecture, then image and video models.
    """
    from archs.plans.export import obstacle

    known = encoders()
    encoder_classes = {hf_class for each in known for hf_class in each.hf_classes}
    running_classes = {hf_class for each in known if each.running for hf_class in each.hf_classes}
    exporting_classes = {hf_class for each in known for hf_class in each.exporting}

    def with_encoders(each: ArchitectureInfo) -> ArchitectureInfo:
        encoders, running, exporting = (
            tuple(name for name in each.hf_classes if name in some)
            for some in (encoder_classes, running_classes, exporting_classes)
        )
        return replace(each, encoders=encoders, running_encoders=running, exporting_encoders=exporting)

    def info(each: Architecture) -> ArchitectureInfo:
        reason = "a draft is of no use without its target" if each.draft else obstacle(each)
        return ArchitectureInfo(
            each.name,
            each.hf_classes,
            () if each.draft else each.vocab,
            refused=tuple(each.refused),
            exports=reason is None,
            export_obstacle=reason,
            draft=each.draft,
        )

    def wrapper_info(name: str) -> ArchitectureInfo:
        reason = "its text part becomes a checkpoint of its own class"
        return ArchitectureInfo("", (name,), (), exports=False, export_obstacle=reason, wrapper=True)

    infos = (*map(info, (*every_architecture(), *every_draft())), *map(wrapper_info, wrappers()))
    return (*map(with_encoders, infos), *image_models())


def image_models() -> tuple[ArchitectureInfo, ...]:
    """Return the families of image and video models; several share a name, the tag of their files."""

    def info(family: DiffusionFamily) -> ArchitectureInfo:
        return ArchitectureInfo(
            family.tag,
            (),
            (),
            exports=False,
            export_obstacle="programs load their weights from GGUF or safetensors",
            image=True,
            title=family.title,
            readers=tuple(READERS[reader] for reader in readers_of(family)),
        )

    return tuple(map(info, all_families()))


def wrappers() -> tuple[str, ...]:
    """Return the multimodal classes around a text model of any known class: those that architectures name, and those
    with a known encoder.
    """
    known = {hf_class for each in every_architecture() for hf_class in each.hf_classes}
    encoder_classes = {hf_class for encoder in all_encoders() for hf_class in encoder.hf_classes}
    stated = {name for each in every_architecture() for name in each.wrappers}
    return tuple(sorted(name for name in (encoder_classes | stated) - known if not name.endswith("VisionModel")))


@dataclass(frozen=True)
class EncoderInfo(Report):
    """Image or audio encoders and the Hugging Face classes that have them.

    model_types: types of the classes' vision or audio parts, if these have several encoders. running: parts that the
    runtime can embed with. exporting: classes that `export --mmproj` writes from both files; their text model may be
    one that is not exported.
    """

    hf_classes: tuple[str, ...]
    model_types: tuple[str, ...]
    parts: tuple[str, ...]
    running: tuple[str, ...] = ()
    exporting: tuple[str, ...] = ()


def encoders() -> tuple[EncoderInfo, ...]:
    """Return all encoders that `convert --mmproj` writes, by the names of their classes."""
    from runtime.multimodal import audio, speech, vision

    supported = {"vision": set(vision.RUN), "audio": set(audio.RUN), "speech": {speech.PROJECTOR}}

    def info(each: Encoder) -> EncoderInfo:
        running = tuple(part for part, projector in projectors(each).items() if projector in supported[part])
        exporting = tuple(wrapper.hf_class for wrapper in each.wrappers)
        return EncoderInfo(each.hf_classes, each.model_types, tuple(each.parts), running, exporting)

    return tuple(sorted(map(info, all_encoders()), key=lambda each: (each.hf_classes, each.model_types)))


def coverage() -> dict[str, int]:
    """Return how many classes are converted, run, exported and have encoders; each class counts once."""
    known, encoder_infos = [each for each in architectures() if not (each.wrapper or each.image)], encoders()
    classes = {hf_class for each in known if not each.draft for hf_class in each.hf_classes}
    drafts = {hf_class for each in known if each.draft for hf_class in each.hf_classes}
    exported = {hf_class for each in known if each.exports for hf_class in each.hf_classes}
    with_encoders = {hf_class for each in encoder_infos for hf_class in each.hf_classes}
    running = {hf_class for each in encoder_infos if each.running for hf_class in each.hf_classes}
    exported_encoders = {hf_class for each in encoder_infos for hf_class in each.exporting}
    return {
        "classes": len(classes),
        "wrappers": len(wrappers()),
        "drafts": len(drafts),
        "architectures": len(known),
        "exported": len(exported),
        "with_encoders": len(with_encoders),
        "with_running_encoders": len(running),
        "exported_with_encoders": len(exported_encoders),
    }
