"""Turn a Hugging Face checkpoint into a GGUF file; torch is not needed."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

EXAMPLES = (
    "gguftools convert checkpoint/ -o model.gguf",
    "gguftools convert hf://org/model --outtype f16",
    "gguftools convert checkpoint/ --outtype Q4_K_M --imatrix imatrix.gguf",
    "gguftools convert gptq-checkpoint/ --outtype exact",
    "gguftools convert checkpoint/ --lora adapter/ -o adapter.gguf",
    "gguftools convert checkpoint/ --mmproj --outtype f16",
)


def convert(
    model: Annotated[
        str, Argument(help="Hugging Face folder (config.json, weights, tokenizer), hf://ORG/MODEL[@REVISION], s3://…")
    ],
    output: Annotated[str | None, "a file, or a folder for NAME-OUTTYPE.gguf (or URL/); default: here."] = None,
    outtype: Annotated[
        str, "Type of the weights: f32, f16, bf16, q8_0, any recipe (Q4_K_M, …), auto: as MODEL, exact: not rounded."
    ] = "auto",
    fallback: Annotated[str, "Type of what no blocks of --outtype exact hold: f32, f16, bf16, q8_0, auto."] = "auto",
    rounded_grids: Annotated[bool, "With --outtype exact: also blocks that are MODEL's if rounded to 16 bits."] = False,
    pre: Annotated[str | None, "Pre-tokenizer's GGUF name, if its structure is unknown."] = None,
    embed_tokenizer: Annotated[bool, "Also keep tokenizer.json itself in the file."] = False,
    lora: Annotated[Path | None, "Write this PEFT adapter of MODEL instead; MODEL's config.json is enough."] = None,
    merge_lora: Annotated[list[Any] | None, "Add an adapter."] = None,
    mmproj: Annotated[bool, "Encoders for images and sounds: write these instead, mmproj-NAME-OUTTYPE.gguf."] = False,
    all_parts: Annotated[bool, "Write both files: the text model, and its encoders beside it."] = False,
    mtp: Annotated[bool, "Write the layers alone that predict tokens further: mtp-NAME-OUTTYPE.gguf, a draft."] = False,
    no_mtp: Annotated[bool, "Leave out the layers that predict tokens further (MTP, NextN)."] = False,
    sentence_transformers_dense_modules: Annotated[
        bool, "Also the matrices behind the pooling of an embedding model (its Dense modules)."
    ] = False,
    target_model_dir: Annotated[Path | None, "Folder of the model that MODEL drafts for: EAGLE-3, DFlash, …"] = None,
    task: Annotated[str | None, "Write the weights of this task, where MODEL has some for several (Jina v3)."] = None,
    predictor: Annotated[Path | None, "Predictor folder: write a PowerInfer file of a ReLU model."] = None,
    imatrix: Path | None = None,
    reserve: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    manifest: bool = False,
    threads: int | None = None,
    memory: Any = "512M",
    workers: int | None = None,
    scheduler: str | None = None,
    plan: bool = False,
    rate: Any = None,
    prices: Path | None = None,
    no_check_tokenizer: Annotated[bool, "Do not compare the file's tokenizer with MODEL's own on some texts."] = False,
    check_logits: Annotated[int, Option(min=0, help="Then compare logits of N random prompts with transformers.")] = 0,
    json: bool = False,
) -> None:
    from ..console.arguments import planned_terms
    from ..console.ui import bytes_progress, note_slow_products, print_report, resumable_note, shared_work
    from ..conversion.convert import convert as run
    from ..conversion.options import ConvertOptions, Part
    from ..files.naming import is_remote
    from ..files.stores.path import is_url, located
    from ..measurement.checking import check_output, require_checkable
    from ..writing.options import WriteOptions

    if check_logits:
        require_checkable(model, changed=bool(lora or merge_lora or predictor or task))
    kept = resume or ((is_remote(model) or workers or scheduler) and not is_url(output or "."))
    left = resumable_note() if kept else nullcontext()
    terms = planned_terms(workers, rate, prices) if plan else None
    bar = bytes_progress(f"convert {located(model).name}")
    part: Part = "mmproj" if mmproj else "all" if all_parts else "mtp" if mtp else "lora" if lora else "model"
    options = ConvertOptions(
        pre=pre,
        embed_tokenizer=embed_tokenizer,
        check_tokenizer=not no_check_tokenizer,
        merge_lora=merge_lora or (),
        lora=lora,
        predictor=predictor,
        no_mtp=no_mtp,
        sentence_transformers_dense_modules=sentence_transformers_dense_modules,
        target_model_dir=target_model_dir,
        task=task,
        fallback=fallback,
        rounded_grids=rounded_grids,
    )
    with shared_work(None if plan else workers, scheduler) as executor, bar as progress, left:
        write = WriteOptions(
            threads,
            memory,
            progress,
            executor,
            terms,
            resume=resume,
            overwrite=overwrite,
            reserve=reserve or 0,
            manifest=manifest,
        )
        report = run(model, output, outtype, part=part, imatrix=imatrix, options=options, write=write)
    if check_logits:
        note_slow_products(threads)
        report = replace(report, check=check_output(report.outputs[0], model, check_logits))
    print_report(report, json, resume)
    if report.check is not None and not report.check.passed:
        raise Exit(1)
