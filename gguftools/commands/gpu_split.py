"""Choose the neurons of a PowerInfer model that go to the GPU, and write the file that says so."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

EXAMPLES = ("gguftools gpu-split activation/ --vram 6G --model model.powerinfer.gguf",)


def gpu_split(
    activations: Annotated[Path, Argument(help="Folder of activation_N.pt: how often each neuron fired.")],
    vram: Annotated[int, "Memory of the GPU for neurons, such as 6G."],
    model: Annotated[
        Path | None, Option("--model", "-m", help="The model's GGUF file; the one beside the folder if not given.")
    ] = None,
    output: Annotated[str | None, "a file; default MODEL.generated.gpuidx."] = None,
    batch: Annotated[int, Option(min=1, help="Neurons that are placed together.")] = 256,
    least: Annotated[int, Option(min=0, help="Neurons that a layer gets if it gets any.")] = 0,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    from ..console.ui import print_line, said, size
    from ..conversion.placement import gpu_split as run

    report = run(activations, vram, model, output, batch=batch, least=least, overwrite=overwrite)
    if said(report, json, [report.file]):
        return
    found = report.placement
    neurons = sum(len(gpu) for gpu in found.gpu)
    print_line(f"{report.file}: {sum(int(gpu.sum()) for gpu in found.gpu)} of {neurons} neurons, {size(found.used)}")
    print_line(
        f"they made {100 * found.activations:.1f} % of all activations"
        + ("" if found.optimal else "; the solver's time was up, there may be a better placement")
    )
