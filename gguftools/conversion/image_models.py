"""Convert image and video models: the model to GGUF, and on request the files of its VAE and text encoders."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from archs.diffusion.parts import MODEL, VAE
from archs.metadata import Metadata
from archs.plans.diffusion import Change
from quants import Format, Tensor, format_named
from quants.arguments import PathLike
from quants.errors import FileError, GgufToolsError, OptionError

from ..io.atomic import atomic_output, check_space, check_target, free_bytes, output_path, published_together
from ..io.checkpoint.safetensors import WRITTEN, check_written, plan_safetensors
from ..io.gguf.writer import TensorInfo
from ..io.naming import is_remote
from ..models.diffusion_parts import (
    Component,
    chosen,
    components_of,
    named_tensors,
    of_text_encoder,
    of_vision,
    source_name,
)
from ..models.diffusion_sources import of_diffusion
from ..models.model import Model, of_parts
from ..models.outputs import write_plain
from ..quantization.outputs import MODEL_SUFFIX
from ..quantization.outtypes import FILE_TYPES
from ..writing.items import Piece, encode_piece
from ..writing.options import WriteOptions
from ..writing.report import OutputReport, QuantizeReport, TensorReport
from ..writing.row_blocks import over_rows
from .options import ConvertOptions

FLOATS = ("F32", "F16", "BF16")
SAFETENSORS = ".safetensors"
WriteModel = Callable[[Model, Path, str], QuantizeReport]


@dataclass(frozen=True)
class _Encoder:
    """Hold the files of a text encoder: None of a part that is written as it was published."""

    model: Model | None = None
    vision: Model | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageConversion:
    """Hold what `convert` was asked to make of an image or video model.

    write_model(model, path, type): writes a GGUF file as of any other model. inspect: compares the vocabulary of a text
    encoder with its tokenizer.
    """

    source: Path
    output: PathLike | None
    outtype: str
    part: str
    options: ConvertOptions
    write: WriteOptions
    write_model: WriteModel
    change: Change | None = None
    inspect: Callable[[Metadata, Path], str] | None = None

    def convert(self) -> QuantizeReport:
        """Write the chosen parts, all or none. Raises as `convert`."""
        found = components_of(self.source)
        if is_remote(self.source) and self.part == "all":
            hint = "fetch the repository, and convert its folder"
            raise FileError(f"the parts of {self.source} are not read over the network", hint)
        wanted = chosen(found, self.part, self.source)
        if self.part == MODEL:
            return replace(report := self._files(wanted), warnings=[*report.warnings, *_left_out(found, wanted)])
        if len(wanted) == 1:
            return self._files(wanted)
        if self.write.manifest:
            raise OptionError("a manifest describes one file, and this writes several", "name one part")
        return self._files(wanted)

    def _files(self, components: Sequence[Component]) -> QuantizeReport:
        """Write the files of some parts, all or none. What can be refused is refused before the model is written."""
        encoders = {each.label: self._encoder(each) for each in components if each.part != MODEL}
        reports: list[QuantizeReport] = []
        is_alone = len(components) == 1 and all(each.vision is None for each in encoders.values())
        with nullcontext() if is_alone else published_together():
            for each in components:
                reports += [self._model(each)] if each.part == MODEL else self._part(each, encoders[each.label])
        return together(reports)

    def _model(self, component: Component) -> QuantizeReport:
        """Write the GGUF file of a model."""
        parts = of_diffusion(component.path, self.outtype, self.options.reader, self.change)
        model = of_parts(parts)
        if model.origin.outtype is None:
            path = self._path(component.label, f"-{self.options.reader or 'copy'}.gguf")
            write = replace(self.write, reads=model.origin.reads.union(self.write.reads))
            return write_plain(model, path, None, write, warnings=model.origin.warnings)
        outtype = model.origin.outtype if self.outtype == "AUTO" else self.outtype
        report = self.write_model(model, self._path(component.label, f"-{outtype}.gguf"), outtype)
        own_warnings = [each for each in model.origin.warnings if each not in report.warnings]
        return replace(report, warnings=[*report.warnings, *own_warnings])

    def _encoder(self, component: Component) -> _Encoder:
        """Return what is written of a part; where it cannot be GGUF, and was not asked for by name, why."""
        if not component.is_gguf:
            return _Encoder()
        name = source_name(self.source)
        try:
            model = of_parts(of_text_encoder(component, name, self.inspect))
        except GgufToolsError as error:
            if self._is_named:
                raise
            return _Encoder(warnings=(f"{component.label} is written as it was published, not as GGUF: {error}",))
        try:
            vision = of_vision(component)
        except GgufToolsError as error:
            warning = f"the encoder of images in {component.label} is not written: {error}"
            return _Encoder(model, warnings=(*model.origin.warnings, warning))
        return _Encoder(model, None if vision is None else of_parts(vision), model.origin.warnings)

    @property
    def _is_named(self) -> bool:
        """Return True if one part was asked for by its name."""
        return self.part not in ("all", "text-encoders")

    def _part(self, component: Component, encoder: _Encoder) -> list[QuantizeReport]:
        """Write the files of a part other than the model."""
        if encoder.model is None:
            report = self._published(component)
            return [replace(report, warnings=[*encoder.warnings, *report.warnings])]
        own_type = encoder.model.origin.outtype or "F16"
        outtype = own_type if self.outtype == "AUTO" else self.outtype
        if self.part == "all" and outtype not in FLOATS:
            outtype = own_type if outtype == "EXACT" else "Q8_0"
        path = self._path(component.label, f"-{outtype}.gguf")
        written = self.write_model(encoder.model, path, outtype)
        reports = [replace(written, warnings=list(dict.fromkeys([*written.warnings, *encoder.warnings])))]
        if encoder.vision is not None:
            outtype = outtype if outtype in FILE_TYPES else encoder.vision.origin.outtype or "F16"
            stem = MODEL_SUFFIX.sub("", path.stem) or path.stem  # by which ComfyUI-GGUF finds the file
            vision_path = path.with_name(f"{stem}-mmproj-{outtype}.gguf")
            reports.append(self.write_model(encoder.vision, vision_path, outtype))
        return reports

    def _published(self, component: Component) -> QuantizeReport:
        """Write the .safetensors file of a part under the names that programs read."""
        if self._is_named and self.outtype not in ("AUTO", *FLOATS):
            problem = f"{component.part} cannot be {self.outtype}: programs read it from a .safetensors file"
            raise OptionError(problem, "choose auto, f16, bf16 or f32")
        wanted = None if self.outtype == "AUTO" or not self._is_named else self.outtype
        path = self._path(component.label, SAFETENSORS)
        header = component.weights.header if component.weights else {}
        reads = component.reads.union(self.write.reads)
        tensors = named_tensors(component)
        report = write_safetensors(path, tensors, header, wanted, replace(self.write, reads=reads))
        return replace(report, warnings=_of_diffusers(component, tensors))

    def _path(self, label: str, ending: str) -> Path:
        """Return a part's file: next to the named one, under its name with the label, or NAME-LABEL-TYPE in a folder.

        A file that is named for the only output keeps its name. ending: of the default name, such as "-F16.gguf".
        """
        suffix = SAFETENSORS if ending == SAFETENSORS else ".gguf"
        middle = f"-{label}" if label else ""
        default = f"{source_name(self.source)}{middle}{ending}"
        path = output_path("." if self.output is None else self.output, default)
        is_named = path.name != default
        if not is_named or not label or self.part not in ("all", "text-encoders", MODEL):
            return path
        stem = path.name.removesuffix(suffix).removesuffix(".gguf").removesuffix(SAFETENSORS)
        type_name = MODEL_SUFFIX.search(stem)
        if self.part == MODEL and type_name:  # one of two models, both of the type that the name has
            return path.with_name(f"{stem[: type_name.start()]}{middle}{type_name[0]}{suffix}")
        return path.with_name(f"{MODEL_SUFFIX.sub('', stem) or stem}{middle}{ending}")


def _left_out(found: Sequence[Component], written: Sequence[Component]) -> list[str]:
    """Return a warning that names the parts that are not written, or none."""
    names = ", ".join(each.label or each.part for each in found if each not in written and each.problem is None)
    return [f'other parts are not written: {names}; part="all" writes them, too'] if names else []


def _of_diffusers(component: Component, tensors: Mapping[str, Tensor]) -> list[str]:
    """Return a warning for a VAE whose names only diffusers reads, or none; those of image models others read, too."""
    names = [name for name in tensors if name.startswith("decoder.up_blocks.")]
    if component.part != VAE or not names or "decoder.up_blocks.0.resnets.0.norm1.weight" in tensors:
        return []
    return [f"{component.label} keeps diffusers' names, which ComfyUI does not read: take its published file there"]


def together(reports: Sequence[QuantizeReport]) -> QuantizeReport:
    """Return one report of several."""
    first = reports[0]
    return replace(
        first,
        outputs=tuple(output for each in reports for output in each.outputs),
        source_bytes=sum(each.source_bytes for each in reports),
        resumed_bytes=sum(each.resumed_bytes for each in reports),
        seconds=sum(each.seconds for each in reports),
        compile_seconds=sum(each.compile_seconds for each in reports),
        warnings=list(dict.fromkeys(warning for each in reports for warning in each.warnings)),
        transcoding=tuple(result for each in reports for result in each.transcoding),
    )


def write_safetensors(
    path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str], outtype: str | None, write: WriteOptions
) -> QuantizeReport:
    """Write tensors to a .safetensors file, floats of 16 bits and more in a type if one is given.

    header: its `__metadata__`. Raises FileError, FormatError.
    """
    forms = {name: _format(tensor, outtype) for name, tensor in tensors.items()}
    order = sorted(tensors, key=lambda name: -forms[name].block_bytes)
    entries = [TensorInfo(name, tensors[name].shape, forms[name]) for name in order]
    beginning = plan_safetensors(entries, {"format": "pt", **header})
    total = len(beginning) + sum(entry.nbytes for entry in entries)
    check_target(path, write.reads, write.overwrite or write.writes_nothing)
    free, started = free_bytes(path), time.perf_counter()
    if not write.writes_nothing:
        check_space(path, total)
        with atomic_output(path, overwrite=write.overwrite, reads=write.reads) as file:
            file.write(beginning)
            renamed = [tensors[name].renamed(name) for name in order]
            for _, _, raw in over_rows(
                renamed, lambda *rows: _encoded(forms, *rows), threads=write.threads, progress=write.progress
            ):
                file.write(raw)
            file.flush()
            check_written(file.fileno(), path)
    reports = tuple(
        TensorReport(name, tensors[name].shape, tensors[name].format.name, forms[name].name, entry.nbytes)
        for name, entry in zip(order, entries, strict=True)
    )
    main = max(forms.values(), key=lambda form: sum(each.nbytes for each in reports if each.format == form.name)).name
    output = OutputReport(main, path, (path,), total, reports)
    source = sum(each.nbytes for each in tensors.values())
    return QuantizeReport((output,), write.dry_run, source, free, seconds=time.perf_counter() - started)


def _format(tensor: Tensor, outtype: str | None) -> Format:
    """Return the format of a tensor in a .safetensors file."""
    if outtype is not None and tensor.format.name in ("F64", *FLOATS):
        return format_named(outtype)
    return tensor.format if tensor.format.name in WRITTEN else format_named("BF16")


def _encoded(forms: Mapping[str, Format], tensor: Tensor, start: int, stop: int) -> memoryview:
    """Return the bytes of rows in their format."""
    raw, form = np.ascontiguousarray(tensor.raw(start, stop)), forms[tensor.name]
    if tensor.format.name != form.name:
        raw = np.ascontiguousarray(encode_piece(Piece(form, False), tensor.format.decode(raw), start, tensor.name))
    return raw.reshape(-1).view(np.uint8).data
