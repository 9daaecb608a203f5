"""What there is: formats that weights are stored in, architectures that are converted and run."""

from dataclasses import dataclass, replace
from typing import Literal

from archs.encoder import Encoder, projectors
from archs.plans.mmproj import all_encoders
from archs.registry import architectures as every_architecture
from archs.registry import drafts as every_draft
from archs.spec import Architecture
from quants.format import formats as every_format

from ..writing.report import Report

FLOATS = ("F32", "F16", "BF16")  # of the types whose values have bytes of their own, those that weights are stored in


@dataclass(frozen=True)
class FormatInfo(Report):
    """A format by its name and its number in files: `block` values take `block_bytes` bytes.

    importance: what becomes of importance weights.
    """

    name: str
    ggml_type: int
    bits_per_weight: float
    block: int
    block_bytes: int
    importance: Literal["needed", "used", "ignored"]


def formats() -> tuple[FormatInfo, ...]:
    """All formats that tensors can be quantized to or kept in, in the order of their numbers."""
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
    """An architecture by its GGUF name, the Hugging Face classes it takes, the kinds of vocabulary tried in turn.

    encoders: those of the classes that have encoders for images or sounds, which `convert --mmproj` writes;
    running_encoders, exporting_encoders: those of them whose encoders run, and that `export --mmproj` makes checkpoints
    of. refused: keys of config.json that can stand for variants which files cannot express. exports: whether files
    become checkpoints again; export_obstacle: why they don't. draft: it drafts for another model, whose vocabulary it
    has, and neither is converted nor runs without it. wrapper: classes around a text model of any architecture that
    their config.json names, whose name the file has; here the name is empty.
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


def architectures() -> tuple[ArchitectureInfo, ...]:
    """All architectures, those of other packages too; each is converted to GGUF and run. Several may share a name.

    Those that draft for another model come behind them, and last the classes around a text model of any of them.
    """
    from archs.plans.export import obstacle

    known = encoders()
    have = {hf_class for each in known for hf_class in each.hf_classes}
    run = {hf_class for each in known if each.running for hf_class in each.hf_classes}
    back = {hf_class for each in known for hf_class in each.exporting}

    def with_encoders(each: ArchitectureInfo) -> ArchitectureInfo:
        having, running, exporting = (
            tuple(name for name in each.hf_classes if name in some) for some in (have, run, back)
        )
        return replace(each, encoders=having, running_encoders=running, exporting_encoders=exporting)

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

    def around(name: str) -> ArchitectureInfo:
        reason = "its text part becomes a checkpoint of its own class"
        return ArchitectureInfo("", (name,), (), exports=False, export_obstacle=reason, wrapper=True)

    found = (*map(info, (*every_architecture(), *every_draft())), *map(around, wrappers()))
    return tuple(map(with_encoders, found))


def wrappers() -> tuple[str, ...]:
    """Classes around a text model, any known one that their config.json names: those that an architecture says it is
    usually in, and those with an encoder that is known.
    """
    known = {hf_class for each in every_architecture() for hf_class in each.hf_classes}
    having = {hf_class for encoder in all_encoders() for hf_class in encoder.hf_classes}
    around = {name for each in every_architecture() for name in each.wrappers}
    return tuple(sorted(name for name in (having | around) - known if not name.endswith("VisionModel")))


@dataclass(frozen=True)
class EncoderInfo(Report):
    """Encoders for images or sounds: the Hugging Face classes that have them, and what they are for.

    model_types: of the classes' vision or audio parts, where these have several encoders. running: those of the parts
    that the runtime makes embeddings with. exporting: classes that `export --mmproj` makes of both files; a text model
    may be one that is not exported.
    """

    hf_classes: tuple[str, ...]
    model_types: tuple[str, ...]
    parts: tuple[str, ...]
    running: tuple[str, ...] = ()
    exporting: tuple[str, ...] = ()


def encoders() -> tuple[EncoderInfo, ...]:
    """All encoders that `convert --mmproj` writes, by the names of their classes."""
    from runtime.multimodal import audio, speech, vision

    run = {"vision": set(vision.RUN), "audio": set(audio.RUN), "speech": {speech.PROJECTOR}}

    def info(each: Encoder) -> EncoderInfo:
        running = tuple(part for part, kind in projectors(each).items() if kind in run[part])
        back = tuple(wrapper.hf_class for wrapper in each.wrappers)
        return EncoderInfo(each.hf_classes, each.model_types, tuple(each.parts), running, back)

    return tuple(sorted(map(info, all_encoders()), key=lambda each: (each.hf_classes, each.model_types)))


def coverage() -> dict[str, int]:
    """How many classes are converted, run, have encoders, …: counted, each class once."""
    known, having = [each for each in architectures() if not each.wrapper], encoders()
    own = {hf_class for each in known if not each.draft for hf_class in each.hf_classes}
    drafts = {hf_class for each in known if each.draft for hf_class in each.hf_classes}
    back = {hf_class for each in known if each.exports for hf_class in each.hf_classes}
    with_encoders = {hf_class for each in having for hf_class in each.hf_classes}
    running = {hf_class for each in having if each.running for hf_class in each.hf_classes}
    whole = {hf_class for each in having for hf_class in each.exporting}
    return {
        "classes": len(own),
        "wrappers": len(wrappers()),
        "drafts": len(drafts),
        "architectures": len(known),
        "exported": len(back),
        "with_encoders": len(with_encoders),
        "with_running_encoders": len(running),
        "exported_with_encoders": len(whole),
    }
