"""Find the parts of an image or video model's source: its model, VAE, and text encoders, each for a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from archs.diffusion.detection import shapes_of
from archs.diffusion.parts import LANGUAGE_MODEL, MODEL, T5, TEXT_ENCODERS, VAE, encoder_name, split, with_usual_names
from archs.small_files import read_json_object, recorded_reads
from quants import Tensor
from quants.errors import FileError, GgufToolsError, ModelError

from ..io.atomic import InputFiles
from ..io.checkpoint.folder import DIFFUSERS_LAYOUTS, LAYOUTS, weight_files
from ..io.locks import State
from ..io.naming import is_remote
from ..writing.origin import Origin
from .diffusion_sources import SAFETENSORS, Weights, joined, model_folder, model_folders, open_weights
from .sources import Parts, of_checkpoint, of_encoders

PROCESSORS = ("processor", "image_processor", "feature_extractor")
NOT_PARTS = ("safety_checker", "feature_extractor", "scheduler")  # folders that no program reads parts from


@dataclass(frozen=True)
class Component:
    """A part of a source that gets a file of its own.

    part: its name, as asked for. label: of its file's name; "" for the only model. path: the folder of diffusers, or
    the file of the whole checkpoint. tokenizer: a folder; None if the source has none. weights: None where the folder
    is opened as a checkpoint. states: as of `Origin`. problem: why it cannot be read.
    """

    part: str
    label: str
    path: Path
    tokenizer: Path | None = None
    weights: Weights | None = None
    states: Mapping[Path, State] = field(default_factory=dict)
    problem: GgufToolsError | None = None

    @property
    def is_gguf(self) -> bool:
        """Return True if programs read the part from a GGUF file, and the source has all that this needs."""
        if self.part == MODEL:
            return True
        return self.tokenizer is not None or (self.part == T5 and self.weights is not None)

    @property
    def reads(self) -> InputFiles:
        return InputFiles((self.path, *(self.weights.files if self.weights else ())), self.states)


def components_of(source: Path) -> list[Component]:
    """Return the parts of a source, the model first; only headers are read. Of a URL, the model alone.

    Raises FileError.
    """
    if is_remote(source):
        return [Component(MODEL, "", source)]
    models = model_folders(source) if source.is_dir() else []
    if not models or models[0] == source:
        return _of_checkpoint(source)
    labels = ("high-noise", "low-noise") if len(models) > 1 else ("",)
    found = [Component(MODEL, label, folder) for label, folder in zip(labels, models, strict=True)]
    for folder in sorted(source.iterdir()):
        if folder not in models and (folder / "config.json").is_file() and folder.name not in NOT_PARTS:
            found.append(_of_folder(folder, source))
    return _labelled(found)


def _of_checkpoint(source: Path) -> list[Component]:
    """Return the parts of a weight file."""
    with recorded_reads() as states:
        weights = open_weights(source)
    parts = split(weights.tensors).parts
    found = [
        Component(part, "" if part == MODEL else part, source, weights=weights._replace(tensors=own), states=states)
        for part, own in parts.items()
    ]
    return sorted(found, key=lambda each: each.part != MODEL)


def _of_folder(folder: Path, pipeline: Path) -> Component:
    """Return the part in a folder of a diffusers pipeline, which its tensors tell more surely than its config.json."""
    try:
        with recorded_reads() as states:
            files, _, _ = weight_files(folder, (*DIFFUSERS_LAYOUTS, *LAYOUTS))
            weights = joined(files)
    except GgufToolsError as error:
        name = VAE if folder.name.startswith("vae") else folder.name.replace("_", "-")
        return Component(name, name, folder, problem=error)
    part = encoder_name(shapes_of(weights.tensors)) if not folder.name.startswith("vae") else VAE
    part = part or folder.name.replace("_", "-")
    weights = weights._replace(tensors=with_usual_names(part, weights.tensors))
    component = Component(part, part, folder, weights=weights, states=states)
    if part not in (T5, LANGUAGE_MODEL):
        return component
    tokenizer = pipeline / folder.name.replace("text_encoder", "tokenizer")
    return replace(component, tokenizer=tokenizer if tokenizer.is_dir() else folder)


def _labelled(found: Sequence[Component]) -> list[Component]:
    """Return components with different labels."""
    taken: dict[str, int] = {}
    labelled = []
    for each in found:
        number = taken[each.label] = taken.get(each.label, 0) + 1
        labelled.append(each if number == 1 else replace(each, label=f"{each.label}-{number}"))
    return labelled


def of_text_encoder(component: Component, name: str, inspect: Callable[..., str] | None = None) -> Parts:
    """Return the parts of the GGUF file of a text encoder. name: of the pipeline, for `general.name`.

    Raises FileError, ModelError, VocabularyError.
    """
    if component.tokenizer is None:
        return _t5_without_tokenizer(component, name)
    parts = of_checkpoint(component.path, inspect=inspect, with_encoders=True, tokenizer=component.tokenizer)
    metadata = parts.metadata.copy()
    metadata["general.name"] = f"{name} {component.label}"
    return parts._replace(metadata=metadata)


def _t5_without_tokenizer(component: Component, name: str) -> Parts:
    """Return the parts of a T5 encoder whose configuration its tensors tell."""
    from archs.plans.text_encoders import plan_t5
    from archs.prequantized.comfy import unpacked_weights

    from ..quantization.outtypes import FILE_TYPES, checkpoint_type, with_file_type

    assert component.weights is not None
    plain = unpacked_weights(component.weights.tensors, {}).tensors
    metadata, tensors = plan_t5(plain, f"{name} {component.label}")
    packed = any(plain.get(own) is not each for own, each in component.weights.tensors.items())
    outtype = checkpoint_type(component.weights.tensors.values(), packed)
    warning = f"{component.part} has no tokenizer keys: the checkpoint has no tokenizer; ComfyUI-GGUF needs none for T5"
    origin = Origin(
        component.path,
        component.weights.files,
        component.states,
        recorded=(("part", component.part),),
        outtype=outtype,
        warnings=(warning,),
    )
    return Parts(with_file_type(metadata, FILE_TYPES[outtype]), tensors, origin)


def of_vision(component: Component) -> Parts | None:
    """Return the parts of the file of a text encoder's encoder of images; None for one that reads only texts.

    Raises FileError, ModelError.
    """
    from archs.plans.mmproj import encoders_of

    if component.part != LANGUAGE_MODEL or component.tokenizer is None or component.weights is None:
        return None
    known = encoders_of(read_json_object(component.path / "config.json")) is not None
    if not known or not any("visual." in name or "vision" in name for name in component.weights.tensors):
        return None
    folders = [component.path, *(component.path.parent / name for name in PROCESSORS)]
    processor = next((each for each in folders if (each / "preprocessor_config.json").is_file()), component.path)
    return of_encoders(component.path, processor)


def source_name(path: Path) -> str:
    """Return the name of a source for those of its files: of a pipeline, its own; of a shard, that of the set."""
    from ..io.checkpoint.folder import SHARD
    from ..quantization.outputs import MODEL_SUFFIX

    resolved = path.resolve()
    if is_remote(path) and resolved.suffix.lower() not in SAFETENSORS:
        return resolved.name.partition("@")[0]
    if path.is_dir():
        inside = model_folder(path.parent) == path if path.parent != path else False
        return resolved.parent.name if inside else resolved.name
    match = SHARD.fullmatch(resolved.name)
    name = match[1] if match else resolved.name.removesuffix(".index.json").rpartition(".")[0]
    return MODEL_SUFFIX.sub("", name) or name


def chosen(components: Sequence[Component], part: str, source: Path) -> list[Component]:
    """Return the components that a part names. Raises ModelError if there are none, naming those that there are."""
    if found := [each for each in components if part == "all" or part in _names(each)]:
        if problem := next((each.problem for each in found if each.problem is not None), None):
            raise problem
        return found
    if is_remote(source):
        raise FileError(
            f"the part {part} of {source} is not read over the network", "fetch it, and convert that folder"
        )
    present = ", ".join(dict.fromkeys(each.part for each in components))
    raise ModelError(f"{source} has no part {part}", f"it has {present}")


def _names(component: Component) -> set[str]:
    """Return what a component can be asked for by."""
    encoder = component.part in TEXT_ENCODERS or component.path.name.startswith("text_encoder")
    return {component.part, component.label} | ({"text-encoders"} if encoder else set())


def named_tensors(component: Component) -> Mapping[str, Tensor]:
    """Return the tensors of a part that is written as it was published. Raises FileError without any."""
    if component.weights is None or not component.weights.tensors:
        raise FileError(f"{component.path} has no tensors of {component.part}")
    return component.weights.tensors
