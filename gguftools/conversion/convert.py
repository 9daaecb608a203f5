"""Convert a Hugging Face checkpoint to GGUF: in a float type or Q8_0 as a converter does, or straight to a recipe."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from archs.config import normalized
from archs.general import general
from archs.metadata import Metadata
from archs.plans.text import Plan, is_left_out
from archs.powerinfer import MAGIC, sparse_metadata, sparse_tensors
from archs.tasks import TASK
from archs.tensor_maps import ALONE
from quants import Tensor
from quants.arguments import PathLike, as_count, as_path, thread_count
from quants.errors import OptionError

from ..files.atomic import Reads, check_target, output_path, published_together
from ..files.checkpoint.folder import Checkpoint
from ..files.naming import is_remote
from ..model import of_parts, write_plain
from ..provenance.parameters import Opening, Parameters
from ..provenance.recording import Described, Recording
from ..quantization.outputs import Run, write_file
from ..quantization.outtypes import FILE_TYPES
from ..quantization.recipes import recipe_named
from ..sources import of_checkpoint, of_encoders
from ..writing.executors import leaves_process
from ..writing.pipeline import DEFAULT_MEMORY, Resumable
from ..writing.report import QuantizeReport
from ..writing.resume import fingerprint, idle_resume, left_behind
from ..writing.row_blocks import Progress
from ..writing.work_plan import Terms
from .adapters import Deciding, deciding, merge_change, plan_adapter
from .dense_modules import with_dense_modules
from .next_layers import alone, counts, without
from .predictors import open_predictor
from .quantize import REMOTE_THREADS, quantize
from .transcoding import EXACT, write_exact


def convert(
    source: PathLike,
    output: PathLike | None = None,
    outtype: str = "auto",
    *,
    pre: str | None = None,
    embed_tokenizer: bool = False,
    lora: PathLike | None = None,
    merge_lora: Sequence[PathLike | tuple[PathLike, float]] = (),
    predictor: PathLike | None = None,
    mmproj: bool = False,
    all_parts: bool = False,
    mtp: bool = False,
    no_mtp: bool = False,
    sentence_transformers_dense_modules: bool = False,
    target_model_dir: PathLike | None = None,
    task: str | None = None,
    fallback: str = "auto",
    rounded_grids: bool = False,
    reserve: int = 0,
    resume: bool = False,
    threads: int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
    executor: Executor | None = None,
    terms: Terms | None = None,
    overwrite: bool = False,
    reads: Iterable[PathLike] = (),
    manifest: bool = False,
    check_tokenizer: bool = True,
    **quantizing: Any,
) -> QuantizeReport:
    """Convert a Hugging Face checkpoint to GGUF.

    source: a folder, or hf://ORG/MODEL[@REVISION], which is read over the network without a copy on disk.
    output: a file, or a folder for NAME-OUTTYPE.gguf; default the current folder. outtype: F32, F16, BF16, Q8_0, any
    recipe, "auto", which follows the checkpoint, or "exact": each weight in the smallest blocks that hold its values
    exactly, else as a conversion to `fallback` stores it (F32, F16, BF16, Q8_0, "auto"). rounded_grids:
    also blocks that give the values of a BF16 or F16 weight when they are rounded to that type. pre: the
    pre-tokenizer's GGUF name, where the tokenizer's structure does not tell.
    lora: write the adapter in this PEFT folder for the base model `source`, F32 unless outtype says otherwise.
    merge_lora: adapters to add to the weights, each with a scale if it is not 1. predictor: folder of the predictor
    for a PowerInfer file.
    mmproj: write the encoders for images and sounds instead of the text model, the file that llama.cpp takes by
    --mmproj; by itself its name is mmproj-NAME-OUTTYPE.gguf. all_parts: write both, the encoders beside the text model
    as mmproj- and its name, in the type that follows the checkpoint where outtype is a recipe.
    mtp: write the layers alone that predict tokens further, with embedding and output, as a draft's file (by itself its
    name is mtp-NAME-OUTTYPE.gguf); no_mtp: write the model without them. By default they are in the model's file.
    sentence_transformers_dense_modules: also write the matrices that EmbeddingGemma multiplies pooled states with.
    task: write the weights of this task, of a checkpoint that has such for several (Jina v3).
    target_model_dir: the folder of the model that `source`, a draft, drafts for; its config.json and tokenizer
    are read.
    embed_tokenizer: also keep tokenizer.json in the file. reserve: bytes of slack for later edits. resume: go on from
    what an interrupted run left; such a run leaves it where it has resume itself, reads over the network, or writes a
    recipe. threads: default all processors. memory: bytes that running tasks may hold. progress(bytes read, of how
    many, tensor): called now and then. executor: runs the tasks, and terms: plans them, see `quantize`. overwrite:
    replace an output that exists. reads: more files that must not be the output. manifest: also write
    OUTPUT.manifest.json, which says what decided the bytes, with their digests. check_tokenizer: compare the file's
    vocabulary with the checkpoint's own tokenizer on some hundred texts; a difference is a warning.
    quantizing: more arguments of `quantize`, where outtype is a recipe that it knows and a conversion does not.
    Raises FileError, ModelError, VocabularyError, FormatError, OptionError.
    """
    wanted, instead = str(outtype).upper(), str(fallback).upper()
    if wanted not in ("AUTO", EXACT, *FILE_TYPES):
        recipe_named(wanted)  # a mistyped one is found before anything is read
    _check_exact(wanted, instead, rounded_grids, bool(quantizing))
    adapters = [each[0] if isinstance(each, tuple) else each for each in merge_lora]
    folders = ((lora, "lora"), (predictor, "predictor"), (target_model_dir, "target_model_dir"))
    for given, what in (*folders, *((each, "merge_lora") for each in adapters)):
        if given is not None:
            as_path(given, what)
    as_path(source, "the model")
    if target_model_dir is not None and (
        mmproj or all_parts or mtp or no_mtp or manifest or lora is not None or merge_lora or predictor is not None
    ):
        raise OptionError("a draft has no encoders, further layers, adapters, predictor or manifest", "leave that out")
    if all_parts:
        if mmproj or mtp or lora is not None or terms is not None:
            raise OptionError(
                "all parts are the text model and its encoders", "leave out mmproj, mtp, lora and the plan"
            )
        shared = {
            "reserve": reserve,
            "resume": resume,
            "threads": threads,
            "memory": memory,
            "progress": progress,
            "executor": executor,
            "overwrite": overwrite,
            "reads": reads,
        }
        own = {
            "fallback": fallback,
            "rounded_grids": rounded_grids,
            "pre": pre,
            "embed_tokenizer": embed_tokenizer,
            "merge_lora": merge_lora,
            "predictor": predictor,
            "manifest": manifest,
            "no_mtp": no_mtp,
            "task": task,
            "check_tokenizer": check_tokenizer,
            **quantizing,
        }
        return _all_parts(source, output, outtype, shared, own)
    as_count(reserve, "reserve", 0)
    if task is not None and (mmproj or lora is not None or predictor is not None or manifest or target_model_dir):
        raise OptionError("a task has weights in an embedding model's own file", "leave out what makes another")
    if (mtp or no_mtp) and ((mtp and no_mtp) or mmproj or lora is not None or predictor is not None or manifest):
        problem = "layers that predict further are written alone or left out, of a model without adapter or predictor"
        raise OptionError(problem, "give mtp or no_mtp, without mmproj, lora, predictor and manifest")
    if mmproj and (lora is not None or merge_lora or predictor is not None or manifest or pre or embed_tokenizer):
        problem = "encoders have no vocabulary, adapters, predictor or manifest"
        raise OptionError(problem, "leave that out, or convert the text model")
    if manifest and (lora is not None or merge_lora or predictor is not None):
        raise OptionError("a manifest says nothing of adapters or a predictor", "leave out manifest, or them")
    read = Reads().also([source, lora, *adapters, predictor, target_model_dir, *reads])
    if terms is not None and (wanted == EXACT or lora is not None):
        raise OptionError("what an adapter or exact blocks take is not planned", "leave out the plan")
    run = Run(threads, memory, progress, executor, resume=resume, overwrite=overwrite, reads=read, terms=terms)
    if lora is not None:
        if merge_lora or predictor or quantizing:
            raise OptionError("an adapter's own file is written as it is: merge it or write it, not both")
        if is_remote(source):
            raise OptionError(f"an adapter needs its base model in a folder, not {source}", "config.json is enough")
        wanted = "F32" if wanted == "AUTO" else wanted
        file, warnings = plan_adapter(source, lora, _target(output, Path(lora), wanted), wanted)
        return write_file(replace(file, reserve=reserve), wanted, run, warnings=warnings)
    if resume and (merge_lora or predictor):
        raise OptionError("a conversion with adapters or a predictor cannot be taken up again: they are not recorded")
    derive: Callable[[Plan, Checkpoint], Plan] | None = None
    if predictor is not None:
        derive = partial(_with_predictor, *open_predictor(predictor))
    change, magic, derived = merge_change(merge_lora), MAGIC if derive else b"GGUF", "a predictor"
    if mtp or no_mtp:
        derive, derived = (_next_layers_alone, "mtp") if mtp else (_without_next_layers, "no mtp")
    if sentence_transformers_dense_modules:
        if derive is not None or lora is not None or mmproj or all_parts or manifest or target_model_dir:
            raise OptionError("dense modules stand in an embedding model's own file", "leave out what makes another")
        derive, derived = with_dense_modules, "dense modules"
    meaning: dict[str, Any] = {} if task is None else {TASK: str(task)}
    meaning |= {ALONE: True} if mtp else {}
    if decision := deciding(merge_lora):
        if derived != "no mtp" and derive is not None:
            raise OptionError("a model that decides has no other parts", "leave out predictor, mtp or dense modules")
        change, meaning, derived = decision.change(change), {**meaning, **decision.config}, "a head"
        derive = partial(_deciding, decision)
    of_draft = None if target_model_dir is None else Path(target_model_dir)
    model = of_parts(
        of_encoders(source)
        if mmproj
        else of_checkpoint(
            source,
            pre,
            embed_tokenizer,
            change,
            derive,
            magic,
            derived,
            of_draft,
            meaning,
            _compared if check_tokenizer else None,
        )
    )
    of_source = model.origin.outtype or "F32"
    wanted = of_source if wanted == "AUTO" else wanted
    path = _target(output, model.path, wanted, "mmproj-" if mmproj else "mtp-" if mtp else "")
    if model.origin.remote and threads is None:
        threads = max(thread_count(None), REMOTE_THREADS)
    if quantizing.get("imatrix") is not None and wanted in FILE_TYPES:
        raise OptionError(f"{wanted} is written without importance", "leave out --imatrix, or name a recipe: Q4_K_M")
    described = Described(source, Opening(pre, embed_tokenizer)) if manifest else None
    if (wanted not in FILE_TYPES and wanted != EXACT) or quantizing:
        return quantize(
            model,
            wanted,
            path,
            reserve=reserve,
            resume=resume,
            threads=threads,
            memory=memory,
            progress=progress,
            executor=executor,
            terms=terms,
            overwrite=overwrite,
            reads=read.paths,
            manifest=described or False,
            **quantizing,
        )
    kept = resume or model.origin.remote or leaves_process(executor)
    resumable = Resumable(fingerprint(model.files, model.origin.recorded), resume) if kept else None
    run = replace(run, threads=threads, reads=replace(read, states=model.origin.states))
    warnings = [*model.origin.warnings, *idle_resume([path], resume), *left_behind([path], resume)]
    instead = of_source if instead == "AUTO" else instead
    recording = None
    if described is not None:
        parameters = Parameters(opening=described.opening, reserve=reserve)
        if wanted == EXACT:
            parameters = replace(parameters, fallback=instead, rounded_grids=rounded_grids)
        recording = Recording(described, model, parameters, None, run)
        recording.check([path])
    if wanted == EXACT:
        report = write_exact(model, path, instead, run, reserve, resumable, warnings, rounded_grids)
    else:
        report = write_plain(model, path, wanted, run, reserve, resumable, warnings)
    return report if recording is None else recording.write(report, [wanted])


def _compared(metadata: Metadata, folder: Path) -> str:
    """What is to be said of the vocabulary beside the tokenizer in the folder."""
    from ..sanity.tokenizer_check import check_tokenizer  # here, because it imports much

    return check_tokenizer(metadata, folder).message


def _all_parts(
    source: PathLike, output: PathLike | None, outtype: str, shared: dict[str, Any], own: dict[str, Any]
) -> QuantizeReport:
    """The text model's file and that of its encoders. own: arguments for the text model alone."""
    model = of_parts(of_encoders(source))  # what is wrong is said before hours of work on the text model
    asked, own_type = outtype.upper(), model.origin.outtype or "F32"
    wanted = asked if asked in ("AUTO", *FILE_TYPES) else "AUTO"
    text = _target(output, model.path, own_type if asked == "AUTO" else asked)
    encoders = text.with_name(f"mmproj-{text.name}")
    check_target(encoders, model.origin.reads.also(shared["reads"]), shared["overwrite"])
    with published_together():
        written = convert(source, text, outtype, **shared, **own)
        more = convert(source, encoders, wanted, mmproj=True, **shared)
    told = [each for each in written.warnings if "--mmproj" not in each]
    return replace(
        written,
        outputs=(*written.outputs, *more.outputs),
        warnings=[*told, *more.warnings],
        seconds=written.seconds + more.seconds,
    )


def _check_exact(outtype: str, fallback: str, rounded_grids: bool, quantizing: bool) -> None:
    """Raise OptionError where what belongs to EXACT is wrong, or has no meaning, or EXACT is to be quantized."""
    if fallback not in ("AUTO", *FILE_TYPES):
        known = f"it is one of auto, {', '.join(FILE_TYPES).lower()}"
        raise OptionError(f"{fallback.lower()!r} is nothing to fall back to", known)
    if outtype != EXACT and (fallback != "AUTO" or rounded_grids):
        given = "rounded_grids" if fallback == "AUTO" else f"fallback {fallback.lower()}"
        raise OptionError(f"{given} means nothing for {outtype}", "it belongs to the outtype exact")
    if outtype == EXACT and quantizing:
        raise OptionError("the outtype exact rounds nothing, so that nothing is weighed", "leave out --imatrix")


def _target(output: PathLike | None, folder: Path, outtype: str, beginning: str = "") -> Path:
    """The file that is named, or NAME-OUTTYPE.gguf in the folder that is (or the current one). Raises FileError."""
    return output_path("." if output is None else output, f"{beginning}{folder.resolve().name}-{outtype}.gguf")


def _next_layers_alone(planned: Plan, checkpoint: Checkpoint) -> Plan:
    """The plan of a file with the layers that predict tokens further. Raises OptionError where there are none."""
    left_out = [name for name in planned.left_out if not is_left_out(name)]  # those are encoders'
    tensors = alone(planned.metadata, planned.tensors, checkpoint.folder, left_out)
    return _named_anew(replace(planned, tensors=tensors), checkpoint)


def _without_next_layers(planned: Plan, checkpoint: Checkpoint) -> Plan:
    """The plan of a file without the layers that predict tokens further, if there are any; nothing is said of them."""
    planned = replace(planned, left_out=[each for each in planned.left_out if is_left_out(each)])
    name, _, further = counts(planned.metadata, checkpoint.folder)
    if not further:
        metadata = planned.metadata.copy()
        metadata.pop(f"{name}.nextn_predict_layers", None)  # which says 0
        return replace(planned, metadata=metadata)
    metadata, tensors = without(planned.metadata, planned.tensors, checkpoint.folder)
    return _named_anew(replace(planned, metadata=metadata, tensors=tensors), checkpoint)


def _deciding(decision: Deciding, planned: Plan, checkpoint: Checkpoint) -> Plan:
    """The plan of a model that decides, which has no layers that predict further."""
    return decision.plan(_without_next_layers(planned, checkpoint), checkpoint)


def _named_anew(planned: Plan, checkpoint: Checkpoint) -> Plan:
    """The plan with the size label of the tensors that are left."""
    metadata = planned.metadata.copy()
    for key, value in general(checkpoint.folder, planned.architecture.name, planned.tensors.values()).items():
        metadata[key] = value
    return replace(planned, metadata=metadata)


def _with_predictor(
    layers: Sequence[tuple[Tensor, Tensor]], threshold: float | None, planned: Plan, checkpoint: Checkpoint
) -> Plan:
    """The plan of a PowerInfer file."""
    config = normalized(checkpoint.config, planned.architecture.defaults, planned.architecture.keys)
    metadata = sparse_metadata(planned.architecture, config, planned.metadata, threshold)
    return replace(planned, metadata=metadata, tensors=sparse_tensors(planned.tensors, layers))
