"""Compute an importance matrix from a calibration text.

Give it to `gguftools quantize --imatrix`: recipes such as IQ2_XXS need one, all below 8 bits gain by it.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ..device_options import PLANNED_PANEL, DeviceChoice, PlanChoice

EXAMPLES = (
    "gguftools imatrix model-f16.gguf -f calibration.txt -o imatrix.gguf",
    "gguftools imatrix model.gguf -f prose.txt -f code.txt -o imatrix.gguf --resume",
    "gguftools imatrix model-f16.gguf -f calibration.txt -o imatrix.gguf --plan",
)
GROUP = "Make"
PANELS = PLANNED_PANEL | {
    "Expert options": ("skip_chunks", "parse_special", "process_output", "nextn", "precision", "save_every")
}


def imatrix(
    model: Annotated[Path, Argument(help="GGUF file, unquantized if possible.")],
    file: list[Path],
    output: Annotated[str, "file (.dat for the legacy form)."],
    ctx: int = 512,
    chunks: int | None = None,
    skip_chunks: Annotated[int, Option(min=0, help="Skip the first N chunks of each text.")] = 0,
    parse_special: Annotated[bool, "Parse special tokens that are written in the text."] = False,
    process_output: Annotated[bool, "Also collect data for the output tensor."] = False,
    nextn: Annotated[bool, "Also collect data for the MTP (NextN) layers."] = False,
    precision: str = "float32",
    save_every: Annotated[int, Option(min=0, help="Save after every N chunks, for --resume (0 = never).")] = 10,
    resume: bool = False,
    overwrite: bool = False,
    threads: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    *,
    where: DeviceChoice,
    planned: PlanChoice,
    json: bool = False,
) -> None:
    from ...measurement.importance import imatrix
    from ...measurement.options import ImatrixOptions
    from ...measurement.texts import NamedText
    from ...models.model import opened_gguf
    from ...writing.resume import unfinished_warnings
    from ..device_plans import show_plan
    from ..ui import note, note_before_running, print_matrix, print_result, shared_work, window_progress

    source = opened_gguf(model)
    if planned.plan:
        texts = [NamedText(each.stem, each) for each in file]
        show_plan("imatrix", [source], texts, (ctx, chunks, 0), where, planned, threads, json)
        return
    for warning in unfinished_warnings([Path(output)], resume):
        note(f"warning: {warning}")
    note_before_running(source, threads, ctx)
    with shared_work(workers, scheduler) as executor, window_progress(f"read with {model.name}") as progress:
        matrix = imatrix(
            source,
            file,
            output,
            n_ctx=ctx,
            chunks=chunks,
            threads=threads,
            options=ImatrixOptions(
                skip_chunks=skip_chunks,
                parse_special=parse_special,
                with_output=process_output,
                nextn=nextn,
                precision=precision,
                save_every=save_every,
                resume=resume,
                overwrite=overwrite,
                executor=executor,
                device=where.chosen(),
            ),
            progress=progress,
        )
    if not print_result(matrix, json, [matrix.path]):
        print_matrix(matrix)
