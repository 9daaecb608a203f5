"""Convert a Hugging Face checkpoint to GGUF, also quantized.

Needs no torch. Reads safetensors and PyTorch weights, local or from the Hub; also prequantized ones (GPTQ, AWQ, FP8).
"""

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
GROUP = "Make"
PANELS = {
    "Adapters, encoders and MTP layers": ("lora", "merge_lora", "mmproj", "all_parts", "mtp", "no_mtp"),
    "Checks": ("no_check_tokenizer", "check_logits"),
    "Expert options": (
        "fallback",
        "rounded_grids",
        "pre",
        "embed_tokenizer",
        "sentence_transformers_dense_modules",
        "target_model_dir",
        "task",
        "predictor",
        "reserve",
        "manifest",
        "memory",
    ),
}


def convert(
    model: Annotated[
        str, Argument(help="Hugging Face folder (config.json, weights, tokenizer), hf://ORG/MODEL[@REVISION] or s3://…")
    ],
    output: Annotated[str | None, "file, or folder or URL/ for NAME-OUTTYPE.gguf (default: here)."] = None,
    outtype: Annotated[
        str,
        "Output type: f32, f16, bf16, q8_0, any recipe (Q4_K_M, …), auto (as the checkpoint), or exact (the blocks of a"
        " prequantized checkpoint, losslessly).",
    ] = "auto",
    fallback: Annotated[str, "With --outtype exact: type of weights that no GGUF format holds exactly."] = "auto",
    rounded_grids: Annotated[
        bool, "With --outtype exact: also accept blocks that are equal after rounding to 16 bits."
    ] = False,
    pre: Annotated[str | None, "Pre-tokenizer (tokenizer.ggml.pre), where it is not recognized."] = None,
    embed_tokenizer: Annotated[bool, "Also store tokenizer.json itself in the file."] = False,
    lora: Annotated[Path | None, "Convert this PEFT adapter instead; of MODEL only config.json is needed."] = None,
    merge_lora: Annotated[list[Any] | None, "Merge a PEFT adapter into the weights."] = None,
    mmproj: Annotated[bool, "Vision/audio encoder (mmproj): write it instead, as mmproj-NAME-OUTTYPE.gguf."] = False,
    all_parts: Annotated[bool, "Write both files: the text model and its mmproj."] = False,
    mtp: Annotated[bool, "Write only the MTP layers, as a draft model: mtp-NAME-OUTTYPE.gguf."] = False,
    no_mtp: Annotated[bool, "Leave out the MTP (NextN) layers."] = False,
    sentence_transformers_dense_modules: Annotated[
        bool, "Also write the Dense modules after the pooling of an embedding model."
    ] = False,
    target_model_dir: Annotated[Path | None, "Folder of the target model, for a draft model (EAGLE-3, DFlash)."] = None,
    task: Annotated[str | None, "Task whose weights are written, where MODEL has several (Jina v3)."] = None,
    predictor: Annotated[Path | None, "Write a PowerInfer file of a ReLU model with this predictor folder."] = None,
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
    no_check_tokenizer: Annotated[bool, "Skip the comparison of the tokenizer with MODEL's own."] = False,
    check_logits: Annotated[int, Option(min=0, help="Compare logits with transformers on N random prompts.")] = 0,
    json: bool = False,
) -> None:
    from ...conversion.convert import convert as run
    from ...conversion.options import ConvertOptions, Part
    from ...io.naming import is_remote
    from ...io.stores.path import is_url, located
    from ...measurement.checking import check_output, require_checkable
    from ...writing.options import WriteOptions
    from ..arguments import planned_terms
    from ..ui import bytes_progress, note_slow_products, print_report, resumable_note, shared_work

    if check_logits:
        require_checkable(model, changed=bool(lora or merge_lora or predictor or task))
    kept = resume or ((is_remote(model) or workers or scheduler) and not is_url(output or "."))
    left = resumable_note() if kept else nullcontext()
    cost_model = planned_terms(workers, rate, prices) if plan else None
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
            cost_model,
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
