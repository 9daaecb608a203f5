"""Convert a Hugging Face checkpoint to GGUF: to a float type or Q8_0, or straight to a recipe."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from archs.config import normalized
from archs.general import general
from archs.metadata import Metadata
from archs.plans.text import Plan, is_left_out
from archs.powerinfer import MAGIC, sparse_metadata, sparse_tensors
from archs.small_files import recorded_reads
from archs.tasks import TASK
from archs.tensor_maps import MTP_ONLY
from quants import Tensor
from quants.arguments import PathLike, as_path, thread_count
from quants.errors import OptionError

from ..calibration.texts import Calibration
from ..io.atomic import check_target, output_path, published_together
from ..io.checkpoint.folder import Checkpoint
from ..io.naming import is_remote
from ..io.stores.path import located
from ..models.diffusion_sources import is_diffusion, is_diffusion_gguf
from ..models.model import Model, of_parts
from ..models.outputs import write_plain
from ..models.sources import Changes, of_checkpoint, of_encoders
from ..provenance.parameters import Opening, Parameters
from ..provenance.recording import Described, Recording, described_as
from ..quantization.imatrix import ImportanceMatrix
from ..quantization.options import QuantizeOptions
from ..quantization.outputs import write_file
from ..quantization.outtypes import FILE_TYPES
from ..quantization.recipes import recipe_named
from ..writing.executors import leaves_process
from ..writing.options import WriteOptions
from ..writing.pipeline import Resumable
from ..writing.report import QuantizeReport
from ..writing.resume import fingerprint, resume_warnings, unfinished_warnings
from . import mtp_layers
from .adapters import DecisionAdapter, decision_adapter, image_merge_change, merge_change, plan_adapter
from .dense_modules import with_dense_modules
from .image_models import ImageConversion
from .options import ConvertOptions, Part, check_image_options, check_options, check_text_options
from .predictors import open_predictor
from .quantize import REMOTE_THREADS, QuantizeRequest, quantize_model
from .transcoding import EXACT, write_exact

PREFIXES = {"mmproj": "mmproj-", "mtp": "mtp-"}  # of the name that a part's file has by itself


def convert(
    source: PathLike,
    output: PathLike | None = None,
    outtype: str = "auto",
    *,
    part: Part = "model",
    imatrix: PathLike | ImportanceMatrix | None = None,
    gptq: PathLike | Sequence[PathLike] | Calibration | None = None,
    options: ConvertOptions = ConvertOptions(),
    write: WriteOptions = WriteOptions(),
) -> QuantizeReport:
    """Convert a Hugging Face checkpoint to GGUF, or an image or video model.

    source: a folder, or hf://ORG/MODEL[@REVISION], which is read over the network without a local copy. Of an image
    or video model also a weight file, any file of a sharded set, or a GGUF file that another program wrote. output:
    a file, or a folder for NAME-OUTTYPE.gguf; default the current folder. outtype: F32, F16, BF16, Q8_0, any
    recipe, "auto", which follows the checkpoint, or "exact": each weight in the smallest blocks that hold its
    values exactly, else in the type `options.fallback`.

    part: "model"; "mmproj", the image and audio encoders, for llama.cpp's --mmproj; "all", the text model, and its
    encoders next to it as mmproj-NAME, in the checkpoint's type if outtype is a recipe; "mtp", the MTP layers with
    embedding and output, as a draft model; "lora", the adapter in the folder `options.lora` for the base model
    `source`, F32 by default. Default names of mmproj and mtp begin with these. Of an image or video model: "model";
    "vae"; "text-encoders" or one of them, "clip-l", "clip-g", "clip-h", "t5xxl" or "llm"; "clip-vision"; "all", each in
    a file of its own: VAE and CLIP as .safetensors, T5 and language models as GGUF, which are Q8_0 if outtype is a
    recipe.

    imatrix, gptq: if outtype is a recipe, as for `quantize`. options: of the conversion. write: how files are written.
    A run leaves its work to resume if `write.resume` is set, if it reads over the network, or if it writes a recipe.
    The source must not change while it is read. Raises FileError, ModelError, VocabularyError, FormatError,
    OptionError.
    """
    job = _Job(source, output, str(outtype).upper(), part, imatrix, gptq, options, write)
    job.check()
    reads = write.reads.also([source, *options.folders()])
    return _convert(replace(job, write=replace(write, reads=reads)))


@dataclass(frozen=True)
class _Job:
    """Hold the arguments of `convert`. with_encoders: another job writes the encoders."""

    source: PathLike
    output: PathLike | None
    outtype: str
    part: Part
    imatrix: PathLike | ImportanceMatrix | None
    gptq: PathLike | Sequence[PathLike] | Calibration | None
    options: ConvertOptions
    write: WriteOptions
    with_encoders: bool = False

    @property
    def more(self) -> list[str]:
        """Return the names of arguments for `quantize` that are given."""
        given = {"imatrix": self.imatrix, "gptq": self.gptq, "quantize": self.options.quantize}
        return [name for name, each in given.items() if each is not None]

    def check(self) -> None:
        """Raise OptionError, FileError for a wrong call, before anything is read."""
        as_path(self.source, "the model")
        if self.outtype not in ("AUTO", EXACT, *FILE_TYPES):
            recipe_named(self.outtype)  # a mistyped one is found before anything is read
        _check_exact(self.outtype, self.options, bool(self.more))
        if self.write.cost_model is not None and self.outtype == EXACT:
            raise OptionError("an exact conversion cannot be planned", "leave out the plan")
        check_options(self.part, self.options, self.write, self.more)


def _convert(job: _Job) -> QuantizeReport:
    if is_diffusion(job.source) or is_diffusion_gguf(job.source):
        return _image_model(job)
    if job.part == "all":
        return _all_parts(job)
    if job.part == "lora":
        return _adapter(job)
    check_text_options(job.part, job.options, job.source)
    with recorded_reads() as states:
        model = _model(job)
    job = replace(job, write=job.write.reading(states))
    of_source, outtype = model.origin.outtype or "F32", job.outtype
    outtype = of_source if outtype == "AUTO" else outtype
    return _written(job, model, _target(job.output, model.path, outtype, PREFIXES.get(job.part, "")), outtype)


def _image_model(job: _Job) -> QuantizeReport:
    """Write an image or video model, or other parts of its checkpoint."""
    check_image_options(job.part, job.options, job.write)
    if job.options.merge_lora and job.part not in ("model", "all"):
        raise OptionError(f"a LoRA is not merged into the part {job.part}", "leave out `merge_lora`")
    with recorded_reads() as states:
        change, warnings = image_merge_change(job.options.merge_lora)
    job = replace(job, write=job.write.reading(states))
    asked = ImageConversion(
        located(job.source),
        job.output,
        job.outtype,
        job.part,
        job.options,
        job.write,
        partial(_written, job),
        change,
        inspect=_compare_tokenizer if job.options.check_tokenizer else None,
    )
    report = asked.convert()
    return replace(report, warnings=[*report.warnings, *warnings])


def _written(job: _Job, model: Model, path: Path, outtype: str) -> QuantizeReport:
    """Write a model's file. outtype: a float type, Q8_0, EXACT or a recipe."""
    write = replace(job.write, reads=model.origin.reads.union(job.write.reads))
    if model.origin.remote and write.threads is None:
        write = replace(write, threads=max(thread_count(None), REMOTE_THREADS))
    if job.imatrix is not None and outtype in FILE_TYPES:
        raise OptionError(f"{outtype} is written without importance", "leave out `imatrix`, or name a recipe: Q4_K_M")
    described = described_as(job.source, write.manifest, write.writes_nothing)
    if described is not None:
        described = Described(job.source, Opening(job.options.pre, job.options.embed_tokenizer))
    if (outtype not in FILE_TYPES and outtype != EXACT) or job.more:
        asked = QuantizeRequest([outtype], job.imatrix, job.gptq, None, job.options.quantize or QuantizeOptions())
        asked.check()
        return quantize_model(model, asked, path, write, described)
    return _unquantized(replace(job, outtype=outtype, write=write), model, path, described)


def _unquantized(job: _Job, model: Model, path: Path, described: Described | None) -> QuantizeReport:
    """Write a float type, Q8_0 or exact blocks."""
    write, options = job.write, job.options
    kept = write.resume or model.origin.remote or leaves_process(write.executor)
    resumable = Resumable(fingerprint(model.files, model.origin.recorded), write.resume) if kept else None
    warnings = [
        *model.origin.warnings,
        *resume_warnings([path], write.resume),
        *unfinished_warnings([path], write.resume),
    ]
    fallback = options.fallback.upper()
    fallback = (model.origin.outtype or "F32") if fallback == "AUTO" else fallback
    recording = None
    if described is not None:
        parameters = Parameters(opening=described.opening, reserve=write.reserve)
        if job.outtype == EXACT:
            parameters = replace(parameters, fallback=fallback, rounded_grids=options.rounded_grids)
        recording = Recording(described, model, parameters, None, write)
        recording.check([path])
    if job.outtype == EXACT:
        report = write_exact(model, path, fallback, write, resumable, warnings, options.rounded_grids)
    else:
        report = write_plain(model, path, job.outtype, write, resumable, warnings)
    return report if recording is None else recording.write(report, [job.outtype])


def _adapter(job: _Job) -> QuantizeReport:
    """Write the file of an adapter."""
    folder = Path(job.options.lora or "")
    if is_remote(job.source):
        raise OptionError(f"an adapter needs its base model in a folder, not {job.source}", "config.json is enough")
    outtype = "F32" if job.outtype == "AUTO" else job.outtype
    with recorded_reads() as states:
        file, warnings = plan_adapter(job.source, folder, _target(job.output, folder, outtype), outtype)
    return write_file(replace(file, reserve=job.write.reserve), outtype, job.write.reading(states), warnings=warnings)


def _model(job: _Job) -> Model:
    """Return a part of a checkpoint as a GGUF file's metadata and tensors."""
    if job.part == "mmproj":
        return of_parts(of_encoders(job.source))
    options = job.options
    return of_parts(
        of_checkpoint(
            job.source,
            options.pre,
            options.embed_tokenizer,
            None if options.target_model_dir is None else Path(options.target_model_dir),
            changes=_changes(job.part, options),
            inspect=_compare_tokenizer if options.check_tokenizer else None,
            with_encoders=job.with_encoders,
        )
    )


def _changes(part: Part, options: ConvertOptions) -> Changes:
    """Return how the options change a checkpoint's tensors and plan."""
    changes = Changes(merge_change(options.merge_lora))
    if options.predictor is not None:
        derive = partial(_with_predictor, *open_predictor(options.predictor))
        changes = changes._replace(derive=derive, derived="a predictor", magic=MAGIC)
    elif part == "mtp":
        changes = changes._replace(derive=_only_mtp, derived="mtp", config={MTP_ONLY: True})
    elif options.no_mtp:
        changes = changes._replace(derive=_without_mtp, derived="no mtp")
    elif options.sentence_transformers_dense_modules:
        changes = changes._replace(derive=with_dense_modules, derived="dense modules")
    if options.task is not None:
        changes = changes._replace(config={TASK: str(options.task), **changes.config})
    if decision := decision_adapter(options.merge_lora):
        if changes.derived not in ("", "no mtp"):
            raise OptionError("a model that decides has no other parts", "leave out predictor, mtp or dense modules")
        config: dict[str, Any] = {**changes.config, **decision.config}
        derive = partial(_with_decision, decision)
        return Changes(decision.change(changes.change), derive, "a head", changes.magic, config)
    return changes


def _compare_tokenizer(metadata: Metadata, folder: Path) -> str:
    """Compare the vocabulary with the tokenizer in the folder; return a warning or ""."""
    from ..inspection.original.tokenizer_check import check_tokenizer  # here, because it imports much

    return check_tokenizer(metadata, folder).message


def _all_parts(job: _Job) -> QuantizeReport:
    """Write the text model's file and that of its encoders."""
    model = of_parts(of_encoders(job.source))  # errors come before hours of work on the text model
    own_type = model.origin.outtype or "F32"
    outtype = job.outtype if job.outtype in ("AUTO", *FILE_TYPES) else "AUTO"
    text = _target(job.output, model.path, own_type if job.outtype == "AUTO" else job.outtype)
    encoders = text.with_name(f"mmproj-{text.name}")
    write = replace(job.write, manifest=False, statistics=False)
    check_target(encoders, model.origin.reads.union(write.reads), write.overwrite or write.dry_run)
    with published_together():
        written = _convert(replace(job, part="model", output=text, with_encoders=True))
        more = convert(job.source, encoders, outtype, part="mmproj", write=write)
    return replace(
        written,
        outputs=(*written.outputs, *more.outputs),
        warnings=[*written.warnings, *more.warnings],
        seconds=written.seconds + more.seconds,
    )


def _check_exact(outtype: str, options: ConvertOptions, quantizing: bool) -> None:
    """Raise OptionError if options of EXACT are wrong or have no effect, or if EXACT is to be quantized."""
    fallback = str(options.fallback).upper()
    if fallback not in ("AUTO", *FILE_TYPES):
        known = f"it is one of auto, {', '.join(FILE_TYPES).lower()}"
        raise OptionError(f"{fallback.lower()!r} is no fallback type", known)
    if outtype != EXACT and (fallback != "AUTO" or options.rounded_grids):
        given = "rounded_grids" if fallback == "AUTO" else f"fallback {fallback.lower()}"
        raise OptionError(f"{given} has no effect for {outtype}", "it belongs to the outtype exact")
    if outtype == EXACT and quantizing:
        raise OptionError("the outtype exact is lossless, so an importance matrix has no effect", "leave out `imatrix`")


def _target(output: PathLike | None, folder: Path, outtype: str, beginning: str = "") -> Path:
    """Return the output file: the named one, or NAME-OUTTYPE.gguf in a folder, default the current one.

    Raises FileError.
    """
    return output_path("." if output is None else output, f"{beginning}{folder.resolve().name}-{outtype}.gguf")


def _only_mtp(planned: Plan, checkpoint: Checkpoint) -> Plan:
    """Plan a file of the MTP layers. Raises OptionError if there are none."""
    left_out = [name for name in planned.left_out if not is_left_out(name)]  # those are encoders'
    tensors = mtp_layers.only(planned.metadata, planned.tensors, checkpoint.folder, left_out)
    return _named_anew(replace(planned, tensors=tensors), checkpoint)


def _without_mtp(planned: Plan, checkpoint: Checkpoint) -> Plan:
    """Plan a file without MTP layers, and without a warning about them."""
    planned = replace(planned, left_out=[each for each in planned.left_out if is_left_out(each)])
    name, _, mtp_count = mtp_layers.counts(planned.metadata, checkpoint.folder)
    if not mtp_count:
        metadata = planned.metadata.copy()
        metadata.pop(f"{name}.nextn_predict_layers", None)  # which is 0
        return replace(planned, metadata=metadata)
    metadata, tensors = mtp_layers.without(planned.metadata, planned.tensors, checkpoint.folder)
    return _named_anew(replace(planned, metadata=metadata, tensors=tensors), checkpoint)


def _with_decision(decision: DecisionAdapter, planned: Plan, checkpoint: Checkpoint) -> Plan:
    """Plan a decision model, which has no MTP layers."""
    return decision.plan(_without_mtp(planned, checkpoint), checkpoint)


def _named_anew(planned: Plan, checkpoint: Checkpoint) -> Plan:
    """Return the plan with the size label of its tensors."""
    metadata = planned.metadata.copy()
    for key, value in general(checkpoint.folder, planned.architecture.name, planned.tensors.values()).items():
        metadata[key] = value
    return replace(planned, metadata=metadata)


def _with_predictor(
    layers: Sequence[tuple[Tensor, Tensor]], threshold: float | None, planned: Plan, checkpoint: Checkpoint
) -> Plan:
    """Plan a PowerInfer file."""
    config = normalized(checkpoint.config, planned.architecture.defaults, planned.architecture.keys)
    metadata = sparse_metadata(planned.architecture, config, planned.metadata, threshold)
    return replace(planned, metadata=metadata, tensors=sparse_tensors(planned.tensors, layers))
