"""Check whether a GGUF file is sound: structure, required keys and tensors, vocabulary, every block."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archs.diffusion.image_file import Fault, ImageFile, family_faults, image_file
from archs.diffusion.readers import Verdict, text_encoder_faults, verdict, verdicts
from archs.diffusion.spec import READERS, Reader
from archs.encoder import GENERAL_TYPE, NAME
from archs.gguf_names import tensor_names
from archs.layered import is_zero
from archs.mtp import faults_beyond, has_only_mtp
from archs.powerinfer import MAGIC
from archs.registry import architectures, draft_of_file, drafts
from archs.spec import Architecture
from archs.unsupported_encoders import unread
from archs.validation.draft_validators import validate_draft
from archs.validation.encoder_validators import validate_encoder
from archs.validation.model_validators import SUFFIX, faults, target_names, written_names
from quants import Format, Tensor
from quants.arguments import PathLike
from quants.errors import GgufToolsError, OptionError
from quants.tensor import readable, restated

from ..io.gguf.reader import GgufFile, align
from ..io.gguf.writer import RESERVE_KEY
from ..metadata.assumptions import assumed_values, deliberate_differences, typed_value
from ..metadata.checks import problems as key_problems
from ..metadata.text import brief
from ..models.contents import streamed_tensors
from ..models.model import Model, opened_gguf
from ..writing.finiteness import not_finite
from ..writing.report import Report
from ..writing.row_blocks import Progress, by_tensor
from .vocabulary_check import ERROR, WARNING, check_vocabulary

NOTE = "note"
NEEDED_KEYS = ("block_count", "context_length", "embedding_length")
NOT_MODELS = ("imatrix", "mmproj", "adapter", "delta", "vocab", "dataset", "logits-base")


@dataclass(frozen=True)
class Problem:
    """A problem of a file.

    severity: "error" (programs refuse the file, or it gives wrong results), "warning", "note" (not checked). where: a
    key, a tensor, or the file. remedy: what to do, "" for nothing.
    """

    severity: str
    where: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class ReaderReport:
    """Whether a program loads a file of an image or video model. reader: its short name; title: for people."""

    reader: Reader
    title: str
    loads: bool
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class ValidationReport(Report):
    """The problems of a file. tensors, keys, bytes: how much was checked. readers: of an image or video model, programs
    that load such files.
    """

    also = ("ok",)

    path: Path
    problems: tuple[Problem, ...]
    keys: int = 0
    tensors: int = 0
    bytes: int = 0
    readers: tuple[ReaderReport, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether there is no error."""
        return not any(problem.severity == ERROR for problem in self.problems)


def validate(
    source: PathLike | Model,
    *,
    reader: Reader | None = None,
    data: bool = True,
    threads: int | None = None,
    progress: Progress | None = None,
) -> ValidationReport:
    """Check a GGUF file, a split set or a Model. Problems are results, not exceptions, also those of the structure.

    reader: also check by the rules of a program that loads image and video models, or a text encoder of one: "comfyui"
    (ComfyUI-GGUF), "sdcpp" (stable-diffusion.cpp) or "diffusers"; what prevents it from loading the file is an error.
    data: also read every tensor and find blocks with NaN or infinity. threads: default all processors. progress(bytes
    read, of how many, tensor). Raises OptionError for a source that is neither path nor Model, and for another reader.
    """
    if reader is not None and reader not in READERS:
        raise OptionError(f"reader is {reader!r}", f"choose one of {', '.join(READERS)}")
    try:
        model = opened_gguf(source)
        tensors = streamed_tensors(model)
    except OptionError:
        raise
    except GgufToolsError as error:
        hint = f"; {error.hint}" if error.hint else ""
        return ValidationReport(Path(str(source)), (Problem(ERROR, "structure", f"{error}{hint}"),))
    problems = [*(_check_structure(model.file) if model.file else ()), *_check_keys(model)]
    wrong_places = {problem.where for problem in problems if problem.severity == ERROR}
    images = image_file(model.metadata, model.tensors, len(model.files))
    by_names = _check_architecture(model) if images is None else map(_problem, family_faults(images))
    problems += [problem for problem in by_names if problem.where not in wrong_places]
    of_reader = () if reader is None else _check_reader(model, images, reader)
    problems += of_reader
    problems += _check_dialects(tensors.values())
    problems += [Problem(*each) for each in check_vocabulary(model.metadata, model.tensors)]
    if data:
        unknown = sorted({tensor.format.name for tensor in tensors.values() if not can_check(tensor.format)})
        undecodable = "tensors of this type were not looked into: it cannot be decoded here"
        problems += [Problem(NOTE, name, undecodable) for name in unknown]
        tensors = {name: readable(tensor) if can_check(tensor.format) else tensor for name, tensor in tensors.items()}
        bad = find_bad_blocks(tensors.values(), threads=threads, progress=progress)
        severity = WARNING if model.metadata.get("general.type") == "imatrix" else ERROR  # statistics may have gaps
        problems += [Problem(severity, name, message) for name, message in bad.items()]
    order = {ERROR: 0, WARNING: 1, NOTE: 2}
    unique = sorted(dict.fromkeys(problems), key=lambda problem: order[problem.severity])
    size = model.nbytes if data else 0
    readers = tuple(map(_reader_report, _verdicts(images, reader)))
    if reader is not None and images is None:
        loads = not any(problem.severity == ERROR for problem in of_reader)
        readers = (ReaderReport(reader, READERS[reader], loads, tuple(of_reader)),)
    return ValidationReport(model.path, tuple(unique), len(model.metadata), len(tensors), size, readers)


def _problem(fault: Fault) -> Problem:
    return Problem(fault.severity, fault.where, fault.problem, fault.remedy)


def _check_reader(model: Model, images: ImageFile | None, reader: Reader) -> list[Problem]:
    """Return what a program finds wrong with an image or video model, or with a text encoder."""
    faults = (
        text_encoder_faults(reader, model.metadata, model.tensors) if images is None else verdict(reader, images).faults
    )
    return [_problem(fault) for fault in faults]


def _verdicts(images: ImageFile | None, reader: Reader | None) -> tuple[Verdict, ...]:
    if images is None:
        return ()
    return verdicts(images) if reader is None else (verdict(reader, images),)


def _reader_report(each: Verdict) -> ReaderReport:
    return ReaderReport(each.reader, each.title, each.loads, tuple(map(_problem, each.faults)))


def _check_dialects(tensors: Iterable[Tensor]) -> Iterator[Problem]:
    """Find formats that llama.cpp itself does not read, or reads as another format."""
    of_format: dict[tuple[Format, Format], list[str]] = {}
    for tensor in tensors:
        if tensor.format.dialect:
            of_format.setdefault((tensor.format, restated(tensor).format), []).append(tensor.name)
    for (form, exact), names in of_format.items():
        some = f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]
        how = "llama.cpp has none with these values"
        if not exact.dialect:
            how = f"`gguftools quantize FILE STOCK` makes it {exact.name}"
        message = f"type {form.ggml_type} is by its size a format of {form.dialect}; {how}"
        yield Problem(WARNING, form.name, f"{message} ({some})")


def _check_structure(file: GgufFile) -> Iterator[Problem]:
    """Check what the reader accepts: trailing bytes, old versions, missing split keys."""
    for part in file.parts:
        end = max((part.offsets[name] + tensor.nbytes for name, tensor in part.tensors.items()), default=0)
        end = max(end, part.header_bytes)
        extra = part.file_size - align(end, part.alignment)
        if extra > 0:
            yield Problem(WARNING, part.path.name, f"{extra} bytes follow the last tensor")
        if part.version < 3:
            yield Problem(NOTE, part.path.name, f"is of version {part.version}; 3 is current")
        if file.is_split and "split.tensors.count" not in part.metadata:
            yield Problem(WARNING, part.path.name, "lacks split.tensors.count")


def _check_keys(model: Model) -> Iterator[Problem]:
    """Check types and values of known keys, and find keys of another architecture."""
    metadata = model.metadata
    attends = any(".attn_q" in name for name in model.tensors)
    for key in metadata:
        if not re.fullmatch(r"[!-~]+", key):
            yield Problem(WARNING, key, "the key has characters other than printable ASCII")
        no_heads = key.endswith(".attention.head_count") and not attends and is_zero(metadata[key])
        if key != RESERVE_KEY and not no_heads:  # head_count 0 of models without attention
            for message in key_problems(key, None, metadata, model.tensors):
                yield Problem(ERROR, key, message)
    own = metadata.get("general.architecture")
    names = {architecture.name for architecture in architectures()} - {own}
    begins = Counter(key.partition(".")[0] for key in metadata if "." in key)
    for name in sorted(begins.keys() & names):
        problem = f"{begins[name]} keys of another architecture: programs read those of {own!r}"
        yield Problem(WARNING, f"{name}.*", problem)
    quantized = any(tensor.format.is_quantized for tensor in model.tensors.values())
    if quantized and "general.quantization_version" not in metadata:
        yield Problem(WARNING, "general.quantization_version", "is missing, though tensors are quantized")


def _check_architecture(model: Model) -> Iterator[Problem]:
    """Check keys, tensors and shapes against the architecture."""
    metadata = model.metadata
    name, file_type = metadata.get("general.architecture"), metadata.get("general.type")
    family, draft = [architecture for architecture in architectures() if architecture.name == name], draft_of_file(name)
    if isinstance(file_type, str) and isinstance(name, str) and (file_type, name) == (GENERAL_TYPE, NAME):
        yield from (Problem(ERROR, *fault) for fault in validate_encoder(metadata, model.tensors))
        yield from (Problem(NOTE, key, f"is not followed: {meaning}") for key, meaning in unread(metadata))
    elif isinstance(file_type, str) and file_type in NOT_MODELS:
        yield Problem(NOTE, "general.type", f"is {file_type!r}: keys and tensors were not checked")
    elif not isinstance(name, str):
        yield Problem(ERROR, "general.architecture", "is missing")
    elif draft is not None:
        wrong = validate_draft(draft, metadata, model.tensors)
        yield from (Problem(ERROR, fault.where, fault.problem) for fault in wrong)
        yield from _check_names(model, [each for each in drafts() if each.name == name])
    elif not family:
        yield Problem(NOTE, "general.architecture", f"{name!r} is not known: keys and tensors were not checked")
    elif not model.tensors:
        yield Problem(NOTE, "tensors", "there are none: the file is a vocabulary")
    else:
        missing = [f"{name}.{key}" for key in NEEDED_KEYS if f"{name}.{key}" not in metadata]
        yield from (Problem(ERROR, key, "is missing; every program needs it") for key in missing)
        look = faults_beyond if has_only_mtp(metadata, model.tensors) else faults
        model_faults = look(family[0], metadata, model.tensors)
        yield from (Problem(ERROR, fault.where, fault.problem) for fault in model_faults)
        yield from _check_names(model, family)
        yield from _note_meanings(model)


def _note_meanings(model: Model) -> Iterator[Problem]:
    """Note absent keys with an assumed value, and keys that llama.cpp reads differently, on purpose."""
    for each in (each for each in assumed_values(model.metadata) if each.doubtful):
        of = each.reason.removeprefix("absent: ")
        yield Problem(NOTE, each.key, f"is absent, which means {brief(typed_value(each))} ({of})")
    for difference in deliberate_differences(model.metadata):
        key = f"{model.metadata['general.architecture']}.{difference.key}"
        yield Problem(NOTE, key, f"here: {difference.here}; llama.cpp: {difference.llama_cpp} ({difference.reason})")


def _check_names(model: Model, family: list[Architecture]) -> Iterator[Problem]:
    """Find tensors whose name no program looks for."""
    if any(callable(name) for architecture in family for name in target_names(architecture)):
        return  # which names there are depends on a config that the file does not have
    known = tensor_names(family[0].name) | {"rope_freqs", "rope_factors_long", "rope_factors_short"}
    known = known.union(*map(written_names, family))
    if model.origin.magic == MAGIC:
        known |= {"blk.{i}.ffn_down_t", "blk.{i}.fc1", "blk.{i}.fc2"}
    for name in model.tensors:
        general = SUFFIX.sub("", re.sub(r"(blk|posnet|convnext)\.\d+\.", r"\1.{i}.", name))
        if general == "cls.output" and general not in known:
            message = f"scores texts for `gguftools embed`; llama.cpp loads no {family[0].name} file with it"
            yield Problem(WARNING, name, message)
        elif general not in known and not general.endswith((".scale", ".input_scale")):
            yield Problem(WARNING, name, f"{family[0].name} models have no tensor of this name")


def can_check(form: Format) -> bool:
    return not form.is_quantized or form.has_codec


def find_bad_blocks(
    tensors: Iterable[Tensor], *, threads: int | None = None, progress: Progress | None = None
) -> dict[str, str]:
    """Return a message for each tensor with a NaN or infinity in a scale or value; unknown formats are skipped."""
    usable = {tensor.name: tensor for tensor in tensors if can_check(tensor.format)}
    problems = {}
    for name, looks in by_tensor(usable.values(), _look, threads=threads, progress=progress).items():
        if bad := [look for look in looks if look]:
            count, row, block = sum(each[0] for each in bad), *bad[0][1:]
            quantized = usable[name].format.is_quantized
            what = "a scale is NaN or infinite in block" if quantized else "NaN or infinity in column"
            problems[name] = f"{what} {block} of row {row}" + (f", the first of {count:,}" if count > 1 else "")
    return problems


def _look(tensor: Tensor, start: int, stop: int) -> tuple[int, int, int] | None:
    """Return the number of blocks (values, for formats without blocks) that are not finite; row and block of
    the first.
    """
    raw = np.ascontiguousarray(tensor.raw(start, stop))
    wrong = not_finite(tensor.format, raw)
    if wrong is None or not wrong.any():
        return None
    row, block = divmod(int(np.argmax(wrong)), wrong.size // len(raw))
    return int(np.count_nonzero(wrong)), start + row, block
