"""Convert a Hugging Face checkpoint to GGUF, also quantized.

Needs no torch. Reads safetensors and PyTorch weights, local or from the Hub; also prequantized ones (GPTQ, AWQ, FP8).
Image and video models: a .safetensors file, its shards, a diffusers folder, or a GGUF file of another program.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Argument, Exit, Option

from ..run_options import RunOptions

if TYPE_CHECKING:
    from ...conversion.options import ConvertOptions, Part

EXAMPLES = (
    "gguftools convert checkpoint/ -o model.gguf",
    "gguftools convert hf://org/model --outtype f16",
    "gguftools convert checkpoint/ --outtype Q4_K_M --imatrix imatrix.gguf",
    "gguftools convert gptq-checkpoint/ --outtype exact",
    "gguftools convert checkpoint/ --lora adapter/ -o adapter.gguf",
    "gguftools convert checkpoint/ --mmproj --outtype f16",
    "gguftools convert flux1-dev.safetensors --outtype Q4_K_M",
    "gguftools convert diffusers-pipeline/ --outtype Q8_0 --all-parts",
)
GROUP = "Make"
PANELS = {
    "Adapters, encoders and MTP layers": ("lora", "merge_lora", "mmproj", "all_parts", "mtp", "no_mtp"),
    "Image and video models": ("part", "reader"),
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


@dataclass(frozen=True)
class CheckpointOptions:
    """Options for a checkpoint's contents, except for the type of its weights."""

    fallback: Annotated[str, "With --outtype exact: type of weights that no GGUF format holds exactly."] = "auto"
    rounded_grids: Annotated[
        bool, "With --outtype exact: also accept blocks that are equal after rounding to 16 bits."
    ] = False
    pre: Annotated[str | None, "Pre-tokenizer (tokenizer.ggml.pre), where it is not recognized."] = None
    embed_tokenizer: Annotated[bool, "Also store tokenizer.json itself in the file."] = False
    lora: Annotated[Path | None, "Convert this PEFT adapter instead; of MODEL only config.json is needed."] = None
    merge_lora: Annotated[
        list[Any] | None, "Merge a PEFT adapter, or a LoRA file of an image model, into the weights."
    ] = None
    mmproj: Annotated[bool, "Vision/audio encoder (mmproj): write it instead, as mmproj-NAME-OUTTYPE.gguf."] = False
    all_parts: Annotated[bool, "Write all files: the model and its mmproj, or VAE and text encoders."] = False
    mtp: Annotated[bool, "Write only the MTP layers, as a draft model: mtp-NAME-OUTTYPE.gguf."] = False
    no_mtp: Annotated[bool, "Leave out the MTP (NextN) layers."] = False
    sentence_transformers_dense_modules: Annotated[
        bool, "Also write the Dense modules after the pooling of an embedding model."
    ] = False
    target_model_dir: Annotated[Path | None, "Folder of the target model, for a draft model (EAGLE-3, DFlash)."] = None
    task: Annotated[str | None, "Task whose weights are written, where MODEL has several (Jina v3)."] = None
    predictor: Annotated[Path | None, "Write a PowerInfer file of a ReLU model with this predictor folder."] = None
    part: Annotated[
        str | None, "Write this part of the checkpoint instead: vae, text-encoders, clip-l, clip-g, t5xxl, llm, …"
    ] = None
    reader: Annotated[
        str | None,
        Option(
            "--for",
            help="Program that will read the image model: comfyui, sdcpp or diffusers (default: a layout for all).",
        ),
    ] = None
    no_check_tokenizer: Annotated[bool, "Skip the comparison of the tokenizer with MODEL's own."] = False

    @property
    def written(self) -> "Part":
        """Return the part of the checkpoint that is written."""
        if self.part is not None:
            return cast("Part", self.part)
        if self.mmproj:
            return "mmproj"
        return "all" if self.all_parts else "mtp" if self.mtp else "lora" if self.lora else "model"

    @property
    def changes_logits(self) -> bool:
        """Return True where the file's logits are not the checkpoint's."""
        return bool(self.lora or self.merge_lora or self.predictor or self.task)

    def library_options(self) -> "ConvertOptions":
        from ...conversion.options import ConvertOptions

        return ConvertOptions(
            pre=self.pre,
            embed_tokenizer=self.embed_tokenizer,
            check_tokenizer=not self.no_check_tokenizer,
            merge_lora=self.merge_lora or (),
            lora=self.lora,
            predictor=self.predictor,
            no_mtp=self.no_mtp,
            sentence_transformers_dense_modules=self.sentence_transformers_dense_modules,
            target_model_dir=self.target_model_dir,
            task=self.task,
            fallback=self.fallback,
            rounded_grids=self.rounded_grids,
            reader=cast(Any, self.reader),
        )


def convert(
    model: Annotated[
        str, Argument(help="Hugging Face folder, file of an image model, hf://ORG/MODEL[@REVISION] or s3://…")
    ],
    output: Annotated[str | None, "file, or folder or URL/ for NAME-OUTTYPE.gguf (default: here)."] = None,
    outtype: Annotated[
        str,
        "Output type: f32, f16, bf16, q8_0, any recipe (Q4_K_M, …), auto (as the checkpoint), or exact (the blocks of a"
        " prequantized checkpoint, losslessly).",
    ] = "auto",
    imatrix: Path | None = None,
    *,
    checkpoint: CheckpointOptions,
    run: RunOptions,
    check_logits: Annotated[int, Option(min=0, help="Compare logits with transformers on N random prompts.")] = 0,
    json: bool = False,
) -> None:
    from ...conversion.convert import convert as convert_checkpoint
    from ...inspection.original.logits_check import check_output, require_checkable
    from ...io.naming import is_remote
    from ...io.stores.path import is_url, located
    from ..ui import named_progress, note_slow_products, print_report, resumable_note

    if check_logits:
        require_checkable(model, changed=checkpoint.changes_logits)
    kept = run.resume or ((is_remote(model) or run.workers or run.scheduler) and not is_url(output or "."))
    options, left = checkpoint.library_options(), resumable_note() if kept else nullcontext()
    with run.running(f"convert {located(model).name}") as write, left:
        report = convert_checkpoint(
            model, output, outtype, part=checkpoint.written, imatrix=imatrix, options=options, write=write
        )
    if check_logits:
        note_slow_products(run.threads)
        with named_progress("check logits") as progress:
            report = replace(report, check=check_output(report.outputs[0], model, check_logits, progress))
    print_report(report, json, run.resume)
    if report.check is not None and not report.check.ok:
        raise Exit(1)
